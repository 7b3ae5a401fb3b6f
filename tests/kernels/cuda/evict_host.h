// The kernels of evict_items.h on the calling thread: their proof where there is no device.
#ifndef SEINE_TESTS_KERNELS_CUDA_EVICT_HOST_H_
#define SEINE_TESTS_KERNELS_CUDA_EVICT_HOST_H_

#include <cstdint>

#include "kernels/ops/score_keys/evict_items.h"

namespace seine::cuda {

// Blocks and lanes run in an order drawn from `seed` (block.h). args as the launches take them, in host memory.
void RunSumOnHost(const SumArgs& args, uint64_t seed);
void RunScoreOnHost(const ScoreArgs& args, uint64_t seed);
void RunSelectOnHost(const SelectArgs& args, uint64_t seed);

}  // namespace seine::cuda

#endif  // SEINE_TESTS_KERNELS_CUDA_EVICT_HOST_H_
