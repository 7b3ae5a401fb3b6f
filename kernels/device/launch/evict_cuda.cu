// Sums, scoring and selection as CUDA kernels.
#include "kernels/device/launch_kernels.h"
#include "kernels/ops/score_keys/retain_cuda.h"
#include "kernels/ops/score_keys/score_keys_cuda.h"
#include "kernels/ops/score_keys/sum_keys_cuda.h"

namespace seine::cuda {

template cudaError_t Launch(const SumArgs&, cudaStream_t, const std::function<void()>&);
template cudaError_t Launch(const ScoreArgs&, cudaStream_t, const std::function<void()>&);
template cudaError_t Launch(const SelectArgs&, cudaStream_t, const std::function<void()>&);

}  // namespace seine::cuda
