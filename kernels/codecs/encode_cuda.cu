// The encoders as CUDA kernels.
#include "kernels/codecs/registry_cuda.h"
#include "kernels/cuda/launch_kernels.h"

namespace seine::cuda {

template cudaError_t Launch(const EncodeArgs&, cudaStream_t, const std::function<void()>&);

}  // namespace seine::cuda
