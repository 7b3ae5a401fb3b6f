// The machine's GPU, as the suite opens and describes it.
#include <cuda_runtime.h>

#include <thread>

#include "tests/device/suite.h"

namespace seine::device {

std::unique_ptr<Backend> OpenBackend(std::string* why) { return MakeBackend("cuda", 0, why); }

int64_t BytesInUse() {
  size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<int64_t>(total - free) : 0;
}

Json DescribeMachine() {
  cudaDeviceProp p;
  int driver = 0, runtime = 0;
  if (cudaGetDeviceProperties(&p, 0) != cudaSuccess) return {};
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  return {{"device", p.name},
          {"compute_capability", std::to_string(p.major) + "." + std::to_string(p.minor)},
          {"multiprocessors", p.multiProcessorCount},
          {"memory_bytes", p.totalGlobalMem},
          {"l2_bytes", p.l2CacheSize},
          {"driver", driver},
          {"runtime", runtime},
          {"host_threads", std::thread::hardware_concurrency()}};
}

}  // namespace seine::device
