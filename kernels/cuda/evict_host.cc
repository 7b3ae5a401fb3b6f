#include "kernels/cuda/evict_host.h"

#include "kernels/cuda/retain_body.h"
#include "kernels/cuda/score_body.h"

namespace seine::cuda {

void RunScoreOnHost(const ScoreArgs& args, uint64_t seed) {
  RunGridOnHost<ScoreShared>({ScoreBlocks(args), args.num_items}, kScoreLanes, seed, args, ScoreBody());
}

void RunSelectOnHost(const SelectArgs& args, uint64_t seed) {
  RunGridOnHost<CutShared>({args.num_items, 1}, kCutLanes, seed, args, CutBody());
  RunGridOnHost<PrefixShared>({kSelectParts, args.num_items}, kPlaceLanes, seed + 1, args, PlaceBody());
}

}  // namespace seine::cuda
