// What a block of attention works on: its share of an item, the tile of it in shared memory, and a logit's cap.
#ifndef SEINE_KERNELS_OPS_ATTEND_ATTEND_PART_CUDA_H_
#define SEINE_KERNELS_OPS_ATTEND_ATTEND_PART_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/math.h"
#include "kernels/ops/attend/attend_items.h"
#include "kernels/types.h"

namespace seine::cuda {

inline constexpr int kAttendLanes = 256;
inline constexpr int kAttendWarps = kAttendLanes / kWarp;
inline constexpr int kLanesOfRow = 16;
inline constexpr int kRowsAtOnce = kAttendLanes / kLanesOfRow;
inline constexpr int kRowsOfLane = kAttendTile / kRowsAtOnce;
inline constexpr int kQueryEntries = kAttendHeads * kNarrowHeadDim;  // of a block's heads
inline constexpr int kSumsOfLane = kQueryEntries / kAttendLanes;     // entries of [heads][head_dim]
inline constexpr int kQuadBytes = 16;
static_assert(kAttendWarps == kAttendHeads && kAttendTile == 2 * kWarp);

struct AttendShared {
  alignas(16) uint8_t values[kAttendBytes];  // rows of values as they are stored, or windows' records
  float queries[kQueryEntries];              // a head's QueryStride behind another's
  uint32_t queries8[kQueryEntries / 4];
  float weights[kAttendHeads][kAttendTile];  // logits, then weights
  int32_t left[kAttendHeads][kAttendTile];   // of a window's rows, those that a head has not chosen
  const uint8_t* keys[kAttendTile];
  const uint8_t* rows[kAttendTile];  // of values
  // Largest logit and sum of each head so far, the factor by which a tile scales its sums, and the unit of its
  // queries8.
  float most[kAttendHeads], total[kAttendHeads], scale[kAttendHeads], unit[kAttendHeads];
};

// From a head's query to the next one's.
SEINE_HD constexpr int QueryStride(int heads_of_block) { return kQueryEntries / heads_of_block; }

enum class AttendKind : uint8_t { kDense = 0, kSet = 1, kWindows = 2 };

// A block's share of an item: rows, or windows, [begin, end) of one of its parts, for heads [first_head, first_head +
// heads).
struct AttendPart {
  AttendKind kind;
  int set;  // kSet
  int first_head, heads;
  int split;  // among a head's
  int32_t begin, end;
};

// Tiles of a part of `count`, cut evenly.
SEINE_BODY inline void CutPart(int32_t count, int tile, int splits, int split, AttendPart* part) {
  const int tiles = (count + tile - 1) / tile;
  part->begin = tiles * split / splits * tile;
  part->end = Least(tiles * (split + 1) / splits * tile, count);
}

// The part of block `block`, which the item has.
SEINE_BODY inline AttendPart PartOf(const AttendItem& item, int block) {
  AttendPart part;
  const int chunks = HeadChunks(item), of_sets = SetBlocks(item);
  const int dense = item.dense_splits * chunks, sets = item.set_splits * of_sets;
  part.set = 0;
  int chunk;
  if (block < dense) {
    part.kind = AttendKind::kDense;
    part.split = block / chunks;
    chunk = block % chunks;
    CutPart(item.dense_rows, kAttendTile, item.dense_splits, part.split, &part);
  } else if (block < dense + sets) {
    part.kind = AttendKind::kSet;
    const int split = (block - dense) / of_sets;
    chunk = (block - dense) % of_sets;
    if (item.num_sets > 1) part.set = chunk;
    CutPart(*item.sets[part.set].count, kAttendTile, item.set_splits, split, &part);
    part.split = item.dense_splits + split;
  } else {
    part.kind = AttendKind::kWindows;
    const int split = (block - dense - sets) / chunks;
    chunk = (block - dense - sets) % chunks;
    CutPart(item.num_windows, WindowsOfTile(item.head_dim), item.window_splits, split, &part);
    part.split = item.dense_splits + item.set_splits + split;
  }
  const bool alone = part.kind == AttendKind::kSet && item.num_sets > 1;
  const int heads = HeadsOfBlock(item.head_dim);
  part.first_head = alone ? chunk : chunk * heads;
  part.heads = alone ? 1 : Least(heads, item.group - part.first_head);
  return part;
}

// Under a cap c, c tanh(x / c), as CapEach has it; NaN stays.
SEINE_BODY inline float CapLogit(float x, float cap) {
  if (!(cap > 0) || x != x) return x;
  const float t = ExpNonPositive(fabsf(x) * (-2.0f / cap));
  return copysignf(((1.0f - t) / (1.0f + t)) * cap, x);
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_ATTEND_ATTEND_PART_CUDA_H_
