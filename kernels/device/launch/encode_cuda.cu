// The encoders as CUDA kernels.
#include "kernels/codec_bodies.h"
#include "kernels/device/launch_kernels.h"

namespace seine::cuda {

template cudaError_t Launch(const EncodeArgs&, cudaStream_t, const std::function<void()>&);

}  // namespace seine::cuda
