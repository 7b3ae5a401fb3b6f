// Attention as CUDA kernels.
#include "kernels/device/launch_kernels.h"
#include "kernels/ops/attend/attend_cuda.h"

namespace seine::cuda {

template cudaError_t Launch(const AttendArgs&, cudaStream_t, const std::function<void()>&);

}  // namespace seine::cuda
