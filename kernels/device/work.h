// What a device can be asked to run: the arguments of one operation's kernels, each by its type. An operation defines
//   ForEachKernel(args, run)   calls run(body, grid, lanes) for each of its kernels, in their order (NAME_cuda.h)
// and by it Launch (launcher.h) starts them on a device, and tests run their bodies on the host.
#ifndef SEINE_KERNELS_DEVICE_WORK_H_
#define SEINE_KERNELS_DEVICE_WORK_H_

#include <cassert>
#include <variant>

#include "kernels/codecs/encode/encode_items.h"
#include "kernels/ops/attend/attend_items.h"
#include "kernels/ops/data/data_items.h"
#include "kernels/ops/learn/oja_items.h"
#include "kernels/ops/low_rank/low_rank_items.h"
#include "kernels/ops/score_keys/evict_items.h"
#include "kernels/ops/search/search_plan.h"

namespace seine::cuda {

using Work = std::variant<EncodeArgs, SearchLaunch, CountArgs, CopyArgs, GatherArgs, SumArgs, ScoreArgs, SelectArgs,
                          ProjectArgs, RebuildArgs, LearnArgs, AttendArgs>;

// What each kernel of a work is given, by value.
template <typename Args>
const Args& KernelArgs(const Args& args) {
  return args;
}
inline const SearchArgs& KernelArgs(const SearchLaunch& launch) { return launch.args; }

// Blocks that a multiprocessor should hold of a kernel, as its launch bounds say; 0: nothing is said. A search's,
// attention's and the encoders' kernels take all registers that one block may have, and so spill none.
template <typename Args>
inline constexpr int kLeastBlocks = 0;
template <>
inline constexpr int kLeastBlocks<SearchArgs> = 1;
template <>
inline constexpr int kLeastBlocks<AttendArgs> = 1;
template <>
inline constexpr int kLeastBlocks<EncodeArgs> = 1;

// `x` in a narrower type that holds it: who packs arguments asserts their bounds so.
template <typename To, typename From>
To Fit(From x) {
  const To narrow = static_cast<To>(x);
  assert(static_cast<From>(narrow) == x && (narrow < To{0}) == (x < From{0}));
  return narrow;
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_DEVICE_WORK_H_
