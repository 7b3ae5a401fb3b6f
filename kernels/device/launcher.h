// Starts the kernels of a work on a device: one launcher for all operations.
#ifndef SEINE_KERNELS_DEVICE_LAUNCHER_H_
#define SEINE_KERNELS_DEVICE_LAUNCHER_H_

#include <cuda_runtime_api.h>

#include <functional>

#include "kernels/device/work.h"

namespace seine::cuda {

// Enqueues every kernel of `args` on `stream`; returns at once. The error is the first launch's that failed; kernels
// with nothing to do are left out. `after`, if given, is called once each kernel has been enqueued, in the order of
// ForEachKernel. Defined for each alternative of Work, in its operation's NAME_cuda.cu (launch_kernels.h).
template <typename Args>
cudaError_t Launch(const Args& args, cudaStream_t stream, const std::function<void()>& after = {});

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_DEVICE_LAUNCHER_H_
