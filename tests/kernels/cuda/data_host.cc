#include "tests/kernels/cuda/data_host.h"

#include "kernels/ops/data/data_cuda.h"
#include "tests/kernels/cuda/host_block.h"

namespace seine::cuda {

void RunCountOnHost(const CountArgs& args, uint64_t seed) {
  RunGridOnHost<NothingShared>({args.num_items, 1}, kDataLanes, seed, args, CountBody());
}

void RunGatherOnHost(const GatherArgs& args, uint64_t seed) {
  RunGridOnHost<NothingShared>({kGatherParts, args.num_items}, kDataLanes, seed, args, GatherBody());
}

}  // namespace seine::cuda
