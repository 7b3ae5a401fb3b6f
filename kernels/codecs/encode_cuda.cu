// The encoders as CUDA kernels: one block a unit.
#include "kernels/codecs/encode_launch.h"
#include "kernels/codecs/registry.h"
#include "kernels/codecs/registry_cuda.h"

namespace seine::cuda {
namespace {

template <typename Shared, typename Body>
__global__ void __launch_bounds__(kEncodeLanes) EncodeKernel(EncodeArgs args) {
  extern __shared__ __align__(16) uint8_t memory[];
  DeviceBlock block;
  Body()(block, *reinterpret_cast<Shared*>(memory), args);
}

template <typename Shared, typename Body>
cudaError_t Launch(const EncodeArgs& args, cudaStream_t stream) {
  const auto kernel = EncodeKernel<Shared, Body>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(Shared)));
  if (error != cudaSuccess) return error;
  kernel<<<args.num_units, kEncodeLanes, sizeof(Shared), stream>>>(args);
  return cudaGetLastError();
}

template <int kDim>
cudaError_t LaunchDim(const EncodeArgs& args, cudaStream_t stream) {
  return WithEncoder<kDim>(args.kind, [&](auto encoder) {
    using Encoder = decltype(encoder);
    return Launch<typename Encoder::Shared, typename Encoder::Body>(args, stream);
  });
}

}  // namespace

cudaError_t LaunchEncode(const EncodeArgs& args, cudaStream_t stream) {
  if (args.head_dim <= 64) return LaunchDim<64>(args, stream);
  if (args.head_dim <= 128) return LaunchDim<128>(args, stream);
  return LaunchDim<256>(args, stream);
}

}  // namespace seine::cuda
