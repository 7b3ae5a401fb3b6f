// Bodies of the kernels of attend_items.h: attention in splits, each with a softmax of its own, then their merge.
//   of a split   p_i = w_i e^(s_i - m), m = max s_i;  its sums are sum p_i v_i, its total sum p_i
//   merged       M = max m;  output = sum e^(m - M) sums / sum e^(m - M) total,  log_sum_exp = M + log of the latter
// with w_i = 1, or for a window its rows that the head has not chosen. A split that sees nothing has m = -infinity and
// no sums; over nothing at all the output is 0 and the log-sum-exp -infinity. A NaN among a head's logits, as a query's
// gives, makes its total NaN, and with it all that is answered of the head.
//
// A block takes 64 rows at a time. Rows in the host's memory are read over the link once for up to eight heads, wide
// ones once for up to four.
#ifndef SEINE_KERNELS_OPS_ATTEND_ATTEND_CUDA_H_
#define SEINE_KERNELS_OPS_ATTEND_ATTEND_CUDA_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/ops/attend/attend_items.h"
#include "kernels/ops/attend/attend_part_cuda.h"
#include "kernels/ops/attend/attend_rows_cuda.h"
#include "kernels/ops/attend/attend_softmax_cuda.h"
#include "kernels/ops/attend/attend_windows_cuda.h"
#include "kernels/ops/attend/merge_cuda.h"

namespace seine::cuda {

// Grid: (blocks of an item, items).
struct AttendBody {
  using Shared = AttendShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const AttendArgs& args) {
    const AttendItem& item = args.items[block.index().y];
    if (block.index().x >= BlocksOf(item)) return;
    const AttendPart part = PartOf(item, block.index().x);
    BeginPart(block, s, item, part);
    typename Block::template Local<AttendSums> sums(block);
    block.Lanes([&](int lane) {
      SEINE_UNROLL
      for (int a = 0; a < kSumsOfLane; ++a) sums[lane].of[a] = 0;
    });
    const int tile = part.kind == AttendKind::kWindows ? WindowsOfTile(item.head_dim) : kAttendTile;
    for (int first = part.begin; first < part.end; first += tile) {
      const int count = Least(tile, part.end - first);
      if (part.kind == AttendKind::kWindows) {
        ReadWindows(block, s, item, part, first, count);
      } else {
        ReadRows(block, s, item, part, first, count);
      }
      WeighTile(block, s, item, part, count);
      AddTile(block, s, item, part, count, sums);
    }
    const int dim = item.head_dim, splits = item.splits();
    block.Lanes([&](int lane) {
      if (lane < part.heads) {
        item.stats[(part.first_head + lane) * splits + part.split] = {s.most[lane], s.total[lane]};
      }
      if (part.begin >= part.end) return;
      SEINE_UNROLL
      for (int a = 0; a < kSumsOfLane; ++a) {
        const int index = lane + a * kAttendLanes;
        if (index >= part.heads * dim) continue;
        const int g = index / dim, slot = (part.first_head + g) * splits + part.split;
        item.sums[static_cast<int64_t>(slot) * dim + index - g * dim] = sums[lane].of[a];
      }
    });
  }
};

template <typename Run>
void ForEachKernel(const AttendArgs& args, Run run) {
  run(AttendBody(), BlockIndex{args.most_blocks, args.num_items}, Lanes<kAttendLanes>());
  run(MergeBody(), BlockIndex{args.most_group, args.num_items}, Lanes<kAttendLanes>());
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_ATTEND_ATTEND_CUDA_H_
