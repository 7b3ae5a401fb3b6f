// Projection, reconstruction and Oja's rule as CUDA kernels.
#include "kernels/ops/learn/oja_cuda.h"
#include "kernels/ops/low_rank/low_rank_cuda.h"
#include "kernels/ops/low_rank/low_rank_launch.h"

namespace seine::cuda {
namespace {

template <typename Shared, typename Body, int kLanes, typename Args>
__global__ void __launch_bounds__(kLanes) LowRankKernel(Args args) {
  __shared__ Shared shared;
  DeviceBlock block;
  Body()(block, shared, args);
}

}  // namespace

cudaError_t LaunchProject(const ProjectArgs& args, cudaStream_t stream) {
  LowRankKernel<ProjectShared, ProjectBody, kLowRankLanes>
      <<<dim3(LowRankBlocks(args.most_rows), args.num_items), kLowRankLanes, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t LaunchRebuild(const RebuildArgs& args, cudaStream_t stream) {
  LowRankKernel<RebuildShared, RebuildBody, kLowRankLanes>
      <<<dim3(LowRankBlocks(args.most_rows), args.num_items), kLowRankLanes, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t LaunchLearn(const LearnArgs& args, cudaStream_t stream) {
  LowRankKernel<LearnShared, LearnBody, kOjaLanes><<<args.num_items, kOjaLanes, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace seine::cuda
