#include "tests/kernels/cuda/evict_host.h"

#include "kernels/ops/score_keys/score_keys_cuda.h"
#include "kernels/ops/score_keys/sum_keys_cuda.h"
#include "kernels/ops/select/retain_cuda.h"
#include "tests/kernels/cuda/host_block.h"

namespace seine::cuda {

void RunSumOnHost(const SumArgs& args, uint64_t seed) {
  RunGridOnHost<SumShared>({args.most_blocks, args.num_items}, kSumLanes, seed, args, SumBody());
  RunGridOnHost<FoldShared>({args.most_windows, args.num_items}, kSumLanes, seed + 1, args, FoldBody());
}

void RunScoreOnHost(const ScoreArgs& args, uint64_t seed) {
  RunGridOnHost<ScoreShared>({ScoreBlocks(args), args.num_items}, kScoreLanes, seed, args, ScoreBody());
}

void RunSelectOnHost(const SelectArgs& args, uint64_t seed) {
  RunGridOnHost<CutShared>({args.num_items, 1}, kCutLanes, seed, args, CutBody());
  RunGridOnHost<PrefixShared>({kSelectParts, args.num_items}, kPlaceLanes, seed + 1, args, PlaceBody());
}

}  // namespace seine::cuda
