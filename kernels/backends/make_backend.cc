// Which backend a name means on this machine.
#include "kernels/backend.h"

#include <utility>

#include "kernels/backends/cuda/cuda_backend.h"
#include "kernels/backends/faster.h"

namespace seine {

std::unique_ptr<Backend> MakeBackend(const std::string& name, int threads, std::string* why) {
  why->clear();
  if (name == "cpu") return MakeCpuBackend(threads);
  if (name != "cuda" && name != "auto") {
    *why = "unknown backend; there are auto, cpu and cuda";
    return nullptr;
  }
  std::unique_ptr<Backend> cpu = name == "auto" ? MakeCpuBackend(threads) : nullptr;
  if (std::unique_ptr<cuda::Device> device = cuda::OpenDevice(why); device != nullptr) {
    if (auto backend = cuda::MakeCudaBackend(std::move(device), threads, why)) {
      return name == "auto" ? FasterBackend(Trial(), std::move(backend), std::move(cpu), why) : std::move(backend);
    }
  }
  return name == "auto" ? std::move(cpu) : nullptr;
}

}  // namespace seine
