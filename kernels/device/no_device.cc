// OpenDevice of a build without CUDA.
#include "kernels/device/device.h"

namespace seine::cuda {

bool HasCuda() { return false; }

std::unique_ptr<Device> OpenDevice(std::string* why, int) {
  *why = "this build has no CUDA (SEINE_CUDA)";
  return nullptr;
}

}  // namespace seine::cuda
