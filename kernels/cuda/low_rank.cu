// Projection and reconstruction as CUDA kernels.
#include "kernels/cuda/low_rank_body.h"
#include "kernels/cuda/low_rank_launch.h"

namespace seine::cuda {
namespace {

template <typename Shared, typename Body, typename Args>
__global__ void __launch_bounds__(kLowRankLanes) LowRankKernel(Args args) {
  __shared__ Shared shared;
  DeviceBlock block;
  Body()(block, shared, args);
}

}  // namespace

cudaError_t LaunchProject(const ProjectArgs& args, cudaStream_t stream) {
  LowRankKernel<ProjectShared, ProjectBody>
      <<<dim3(LowRankBlocks(args.most_rows), args.num_items), kLowRankLanes, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t LaunchRebuild(const RebuildArgs& args, cudaStream_t stream) {
  LowRankKernel<RebuildShared, RebuildBody>
      <<<dim3(LowRankBlocks(args.most_rows), args.num_items), kLowRankLanes, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace seine::cuda
