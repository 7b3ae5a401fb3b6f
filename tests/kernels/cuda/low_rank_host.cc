#include "tests/kernels/cuda/low_rank_host.h"

#include "kernels/ops/learn/oja_cuda.h"
#include "kernels/ops/low_rank/low_rank_cuda.h"
#include "tests/kernels/cuda/host_block.h"

namespace seine::cuda {

void RunProjectOnHost(const ProjectArgs& args, uint64_t seed) {
  RunGridOnHost<ProjectShared>({LowRankBlocks(args.most_rows), args.num_items}, kLowRankLanes, seed, args,
                               ProjectBody());
}

void RunRebuildOnHost(const RebuildArgs& args, uint64_t seed) {
  RunGridOnHost<RebuildShared>({LowRankBlocks(args.most_rows), args.num_items}, kLowRankLanes, seed, args,
                               RebuildBody());
}

void RunLearnOnHost(const LearnArgs& args, uint64_t seed) {
  RunGridOnHost<LearnShared>({args.num_items, 1}, kOjaLanes, seed, args, LearnBody());
}

}  // namespace seine::cuda
