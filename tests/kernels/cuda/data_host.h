// The kernels of data_items.h on the calling thread: their proof where there is no device.
#ifndef SEINE_TESTS_KERNELS_CUDA_DATA_HOST_H_
#define SEINE_TESTS_KERNELS_CUDA_DATA_HOST_H_

#include <cstdint>

#include "kernels/ops/data/data_items.h"

namespace seine::cuda {

// Blocks and lanes run in an order drawn from `seed` (block.h). args as the launches take them, in host memory.
void RunCountOnHost(const CountArgs& args, uint64_t seed);
void RunGatherOnHost(const GatherArgs& args, uint64_t seed);

}  // namespace seine::cuda

#endif  // SEINE_TESTS_KERNELS_CUDA_DATA_HOST_H_
