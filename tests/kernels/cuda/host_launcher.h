// The launcher's twin on the calling thread: a proof of kernels' bodies where there is no device.
#ifndef SEINE_TESTS_KERNELS_CUDA_HOST_LAUNCHER_H_
#define SEINE_TESTS_KERNELS_CUDA_HOST_LAUNCHER_H_

#include <cstdint>

#include "kernels/device/work.h"

namespace seine::cuda {

// Runs every kernel of a work, in host memory. Blocks and lanes run in an order drawn from `seed` (host_block.h).
// Aborts where a grid does not fit a device.
void RunOnHost(const Work& work, uint64_t seed);

}  // namespace seine::cuda

#endif  // SEINE_TESTS_KERNELS_CUDA_HOST_LAUNCHER_H_
