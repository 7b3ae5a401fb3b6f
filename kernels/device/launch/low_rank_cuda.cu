// Projection, reconstruction and Oja's rule as CUDA kernels.
#include "kernels/device/launch_kernels.h"
#include "kernels/ops/learn/oja_cuda.h"
#include "kernels/ops/learn/oja_items.h"
#include "kernels/ops/low_rank/low_rank_cuda.h"

namespace seine::cuda {

template cudaError_t Launch(const ProjectArgs&, cudaStream_t, const std::function<void()>&);
template cudaError_t Launch(const RebuildArgs&, cudaStream_t, const std::function<void()>&);
template cudaError_t Launch(const LearnArgs&, cudaStream_t, const std::function<void()>&);

}  // namespace seine::cuda
