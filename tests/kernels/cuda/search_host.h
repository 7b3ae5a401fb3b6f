// The same search by the same kernel bodies, on the calling thread: the proof of the kernels where there is no device.
#ifndef SEINE_TESTS_KERNELS_CUDA_SEARCH_HOST_H_
#define SEINE_TESTS_KERNELS_CUDA_SEARCH_HOST_H_

#include <cstdint>

#include "kernels/ops/search/search_items.h"

namespace seine::cuda {

// Blocks and lanes run in an order drawn from `seed` (block.h). args as LaunchSearch takes them, in host memory.
void RunSearchOnHost(const SearchPlan& plan, const SearchArgs& args, uint64_t seed);

}  // namespace seine::cuda

#endif  // SEINE_TESTS_KERNELS_CUDA_SEARCH_HOST_H_
