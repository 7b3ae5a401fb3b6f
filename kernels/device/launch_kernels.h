// The launcher's definition, for an operation's NAME_cuda.cu: it includes its bodies and this, and instantiates Launch
// for its arguments. Compiled by nvcc alone.
#ifndef SEINE_KERNELS_DEVICE_LAUNCH_KERNELS_H_
#define SEINE_KERNELS_DEVICE_LAUNCH_KERNELS_H_

#include <cassert>
#include <cstdint>
#include <functional>

#include "kernels/cuda/block.h"
#include "kernels/device/launcher.h"

namespace seine::cuda {

// Shared memory that a kernel may have without asking for it.
inline constexpr size_t kStaticSharedBytes = size_t{48} << 10;

template <typename Body, int kLanes, typename Args>
__global__ void __launch_bounds__(kLanes, kLeastBlocks<Args>) Kernel(const __grid_constant__ Args args) {
  using Shared = typename Body::Shared;
  DeviceBlock block;
  if constexpr (sizeof(Shared) <= kStaticSharedBytes) {
    __shared__ Shared shared;
    Body::Run(block, shared, args);
  } else {
    extern __shared__ __align__(16) uint8_t memory[];
    Body::Run(block, *reinterpret_cast<Shared*>(memory), args);
  }
}

template <typename Body, int kLanes, typename Args>
cudaError_t LaunchOne(const Args& args, BlockIndex grid, cudaStream_t stream) {
  static_assert(sizeof(typename Body::Shared) <= kMostSharedBytes);
  constexpr size_t kShared = sizeof(typename Body::Shared), kDynamic = kShared > kStaticSharedBytes ? kShared : 0;
  assert(FitsGrid(grid));
  const auto kernel = Kernel<Body, kLanes, Args>;
  if (kDynamic > 0) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kDynamic));
    if (error != cudaSuccess) return error;
  }
  kernel<<<dim3(grid.x, grid.y), kLanes, kDynamic, stream>>>(args);
  return cudaGetLastError();
}

template <typename Args>
cudaError_t Launch(const Args& args, cudaStream_t stream, const std::function<void()>& after) {
  cudaError_t error = cudaSuccess;
  ForEachKernel(args, [&](auto body, BlockIndex grid, auto lanes) {
    if (error != cudaSuccess || grid.x == 0 || grid.y == 0) return;
    error = LaunchOne<decltype(body), decltype(lanes)::value>(KernelArgs(args), grid, stream);
    if (after) after();
  });
  return error;
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_DEVICE_LAUNCH_KERNELS_H_
