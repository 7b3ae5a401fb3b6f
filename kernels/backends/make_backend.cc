// Which backend a name means on this machine.
#include "kernels/backend.h"

#include <utility>

#include "kernels/backends/cuda/cuda_backend.h"
#include "kernels/backends/faster.h"

namespace seine {

namespace {

// The ordinal of "cuda" or "cuda:N"; -1: it is neither.
int OrdinalOf(const std::string& name) {
  constexpr char kCuda[] = "cuda";
  constexpr size_t kLength = sizeof(kCuda) - 1, kMostDigits = 3;
  if (name.compare(0, kLength, kCuda) != 0) return -1;
  if (name.size() == kLength) return 0;
  const std::string digits = name.substr(kLength + 1);
  const bool number =
      !digits.empty() && digits.size() <= kMostDigits && digits.find_first_not_of("0123456789") == std::string::npos;
  return name[kLength] == ':' && number ? std::stoi(digits) : -1;
}

}  // namespace

bool HasCuda() { return cuda::HasCuda(); }

std::unique_ptr<Backend> MakeBackend(const std::string& name, int threads, std::string* why) {
  why->clear();
  if (name == "cpu") return MakeCpuBackend(threads);
  const int ordinal = name == "auto" ? 0 : OrdinalOf(name);
  if (ordinal < 0) {
    *why = "unknown backend; there are auto, cpu, cuda and cuda:N, a device's ordinal";
    return nullptr;
  }
  std::unique_ptr<Backend> cpu = name == "auto" ? MakeCpuBackend(threads) : nullptr;
  if (std::unique_ptr<cuda::Device> device = cuda::OpenDevice(why, ordinal); device != nullptr) {
    if (auto backend = cuda::MakeCudaBackend(std::move(device), threads, why)) {
      return name == "auto" ? FasterBackend(Trial(), std::move(backend), std::move(cpu), why) : std::move(backend);
    }
  }
  return name == "auto" ? std::move(cpu) : nullptr;
}

}  // namespace seine
