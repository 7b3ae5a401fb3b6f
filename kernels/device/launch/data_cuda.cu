// Counting and gathering as CUDA kernels.
#include "kernels/device/launch_kernels.h"
#include "kernels/ops/data/data_cuda.h"

namespace seine::cuda {

template cudaError_t Launch(const CopyArgs&, cudaStream_t, const std::function<void()>&);
template cudaError_t Launch(const CountArgs&, cudaStream_t, const std::function<void()>&);
template cudaError_t Launch(const GatherArgs&, cudaStream_t, const std::function<void()>&);

}  // namespace seine::cuda
