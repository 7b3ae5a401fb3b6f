// Sums, scoring and selection as CUDA kernels.
#include "kernels/ops/score_keys/evict_launch.h"
#include "kernels/ops/score_keys/score_keys_cuda.h"
#include "kernels/ops/score_keys/sum_keys_cuda.h"
#include "kernels/ops/select/retain_cuda.h"

namespace seine::cuda {
namespace {

template <typename Shared, typename Body, int kLanes, typename Args>
__global__ void __launch_bounds__(kLanes) EvictKernel(Args args) {
  __shared__ Shared shared;
  DeviceBlock block;
  Body()(block, shared, args);
}

}  // namespace

cudaError_t LaunchSum(const SumArgs& args, cudaStream_t stream) {
  if (args.most_blocks > 0) {
    EvictKernel<SumShared, SumBody, kSumLanes><<<dim3(args.most_blocks, args.num_items), kSumLanes, 0, stream>>>(args);
  }
  EvictKernel<FoldShared, FoldBody, kSumLanes><<<dim3(args.most_windows, args.num_items), kSumLanes, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t LaunchScore(const ScoreArgs& args, cudaStream_t stream) {
  EvictKernel<ScoreShared, ScoreBody, kScoreLanes>
      <<<dim3(ScoreBlocks(args), args.num_items), kScoreLanes, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t LaunchSelect(const SelectArgs& args, cudaStream_t stream) {
  EvictKernel<CutShared, CutBody, kCutLanes><<<args.num_items, kCutLanes, 0, stream>>>(args);
  EvictKernel<PrefixShared, PlaceBody, kPlaceLanes>
      <<<dim3(kSelectParts, args.num_items), kPlaceLanes, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace seine::cuda
