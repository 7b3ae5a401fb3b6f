// The kernels of a search: each is one body of search_steps.h, run by thread blocks.
#include "kernels/ops/search/search_launch.h"
#include "kernels/ops/search/search_steps.h"

namespace seine::cuda {
namespace {

template <typename Body, int kLanes>
__global__ void __launch_bounds__(kLanes, 1) SearchKernel(const __grid_constant__ SearchArgs args) {
  __shared__ typename Body::Shared shared;
  DeviceBlock block;
  Body::Run(block, shared, args);
}

}  // namespace

cudaError_t LaunchSearch(const SearchPlan& plan, const SearchArgs& args, cudaStream_t stream,
                         const std::function<void()>& after) {
  cudaError_t error = cudaSuccess;
  RunSteps(plan, [&](auto body, BlockIndex grid, auto lanes) {
    using Body = decltype(body);
    if (error != cudaSuccess || grid.x == 0 || grid.y == 0) return;
    SearchKernel<Body, decltype(lanes)::value><<<dim3(grid.x, grid.y), decltype(lanes)::value, 0, stream>>>(args);
    error = cudaGetLastError();
    if (after) after();
  });
  return error;
}

}  // namespace seine::cuda
