// Counting and gathering as CUDA kernels.
#include "kernels/ops/data/data_cuda.h"
#include "kernels/ops/data/data_launch.h"

namespace seine::cuda {
namespace {

template <typename Body, typename Args>
__global__ void __launch_bounds__(kDataLanes) DataKernel(Args args) {
  __shared__ NothingShared shared;
  DeviceBlock block;
  Body()(block, shared, args);
}

}  // namespace

cudaError_t LaunchCount(const CountArgs& args, cudaStream_t stream) {
  DataKernel<CountBody><<<args.num_items, kDataLanes, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t LaunchGather(const GatherArgs& args, cudaStream_t stream) {
  DataKernel<GatherBody><<<dim3(kGatherParts, args.num_items), kDataLanes, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace seine::cuda
