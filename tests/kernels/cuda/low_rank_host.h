// The kernels of low_rank_items.h on the calling thread: their proof where there is no device.
#ifndef SEINE_TESTS_KERNELS_CUDA_LOW_RANK_HOST_H_
#define SEINE_TESTS_KERNELS_CUDA_LOW_RANK_HOST_H_

#include <cstdint>

#include "kernels/ops/low_rank/low_rank_items.h"

namespace seine::cuda {

// Blocks and lanes run in an order drawn from `seed` (block.h). args as the launches take them, in host memory.
void RunProjectOnHost(const ProjectArgs& args, uint64_t seed);
void RunRebuildOnHost(const RebuildArgs& args, uint64_t seed);
void RunLearnOnHost(const LearnArgs& args, uint64_t seed);

}  // namespace seine::cuda

#endif  // SEINE_TESTS_KERNELS_CUDA_LOW_RANK_HOST_H_
