// Starts an encoding on a device.
#ifndef SEINE_KERNELS_CODECS_ENCODE_LAUNCH_H_
#define SEINE_KERNELS_CODECS_ENCODE_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "kernels/codecs/encode_items.h"

namespace seine::cuda {

// Enqueues the kernel on `stream`; returns at once. The planes are written when the stream has come to its end.
cudaError_t LaunchEncode(const EncodeArgs& args, cudaStream_t stream);

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CODECS_ENCODE_LAUNCH_H_
