// One KV head's attention as a device's kernels are given it (attend_cuda.h), the twin of cpu::Attend (attention.h):
// what every head of the group sees, the sets that a search has chosen, and the means of windows. All pointers are
// readable by the kernels: device memory, or page-locked memory of the host, each row where it lies.
#ifndef SEINE_KERNELS_OPS_ATTEND_ATTEND_ITEMS_H_
#define SEINE_KERNELS_OPS_ATTEND_ATTEND_ITEMS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

namespace seine::cuda {

// An item's work is cut into splits, each a block's (flash decoding, https://pytorch.org/blog/flash-decoding/): of the
// dense rows, of each set's, and of the windows. A block takes its split in tiles.
inline constexpr int kAttendHeads = 8;  // of a group, at most, that a block attends for; half as many wide ones
inline constexpr int kAttendTile = 64;  // rows, or at most so many windows
inline constexpr int kMostDenseSplits = 64, kMostSetSplits = 16, kMostWindowSplits = 64;
inline constexpr int kMostSplitsOfHead = kMostDenseSplits + kMostSetSplits + kMostWindowSplits;
inline constexpr int kLeastWindowTiles = 4;  // of a split: means are read faster than rows

// Rows by place: chunk c holds places [c * chunk_tokens, (c + 1) * chunk_tokens), one behind another.
struct AttendRows {
  const uint8_t* const* chunks = nullptr;
  int32_t chunk_tokens = 1;
  DType dtype = DType::kFloat32;  // none that is quantised
};

// Rows [begin, end) by place.
struct AttendRun {
  int32_t begin = 0, end = 0;
};

// A set: *count places, ascending. It may be one that an earlier kernel of the stream writes.
struct AttendSet {
  const int32_t* count = nullptr;
  const int32_t* places = nullptr;
  const float* logits = nullptr;  // scale <q, k> beside the places, where known; then keys are not read
};

// A split's result of one head: the largest logit, and the sum of e^(logit - most) that its sums are weighted by.
struct AttendStats {
  float most, total;
};

struct AttendItem {
  int32_t head_dim = 0;  // a multiple of 16
  int32_t group = 1;
  float scale = 1;
  float softcap = 0;               // of logits; 0: none
  const float* queries = nullptr;  // [group, head_dim]
  AttendRows keys, values;
  const AttendRun* dense = nullptr;  // [num_dense]
  int32_t num_dense = 0;
  int32_t dense_rows = 0;           // of all runs
  const AttendSet* sets = nullptr;  // [num_sets]
  int32_t num_sets = 0;             // 0, 1 for all heads, or group
  // The tail: windows from place zone_begin on, which hold every row of the sets; 0: none.
  int32_t num_windows = 0;
  int32_t zone_begin = 0;
  const uint8_t* const* windows = nullptr;  // records (window_means.h), by chunks of chunk_windows
  int32_t chunk_windows = 1;

  int32_t dense_splits = 0, set_splits = 0, window_splits = 0;  // set_splits of each set
  AttendStats* stats = nullptr;                                 // [group][splits()]
  float* sums = nullptr;                                        // [group][splits()][head_dim]; of empty splits unset
  float* output = nullptr;                                      // [group, head_dim]
  float* log_sum_exp = nullptr;                                 // [group]

  SEINE_HD int splits() const { return dense_splits + set_splits + window_splits; }
};

struct AttendArgs {
  const AttendItem* items = nullptr;
  int32_t num_items = 0;
  int32_t most_blocks = 0;  // BlocksOf, the largest of the items
  int32_t most_group = 0;
};

SEINE_HD constexpr int HeadsOfBlock(int head_dim) {
  return head_dim <= kNarrowHeadDim ? kAttendHeads : kAttendHeads * kNarrowHeadDim / kMaxHeadDim;
}
// Chunks of so many heads.
SEINE_HD constexpr int HeadChunks(const AttendItem& item) {
  const int heads = HeadsOfBlock(item.head_dim);
  return (item.group + heads - 1) / heads;
}
// Blocks that serve a split of the sets: one a chunk of heads, or one a head with a set of its own.
SEINE_HD constexpr int SetBlocks(const AttendItem& item) {
  return item.num_sets == 0 ? 0 : item.num_sets == 1 ? HeadChunks(item) : item.num_sets;
}
SEINE_HD constexpr int BlocksOf(const AttendItem& item) {
  return (item.dense_splits + item.window_splits) * HeadChunks(item) + item.set_splits * SetBlocks(item);
}

// Bytes of a block's shared memory for a tile's rows of values, or records.
inline constexpr int kAttendBytes = 32 << 10;
SEINE_HD constexpr int WindowStride(int head_dim) { return 2 * head_dim + 8; }  // WindowMeansBytes
// Words from one record to the next in shared memory: odd, so that lanes that read a word each of neighbours meet no
// bank twice.
SEINE_HD constexpr int RecordWords(int head_dim) { return WindowStride(head_dim) / 4 | 1; }
SEINE_HD constexpr int WindowsOfTile(int head_dim) {
  const int fit = kAttendBytes / (RecordWords(head_dim) * 4);
  return fit < kAttendTile ? fit : kAttendTile;
}

// Cuts an item's work into splits; `most_of_set`: rows of its largest set, at most.
inline void SplitAttention(AttendItem* item, int64_t most_of_set) {
  const auto splits = [](int64_t tiles, int least, int most) {
    const int64_t wanted = (tiles + least - 1) / least;
    return static_cast<int32_t>(wanted < most ? wanted : most);
  };
  const int of_tile = WindowsOfTile(item->head_dim);
  item->dense_splits = splits((item->dense_rows + kAttendTile - 1) / kAttendTile, 1, kMostDenseSplits);
  item->set_splits = item->num_sets == 0 ? 0 : splits((most_of_set + kAttendTile - 1) / kAttendTile, 1, kMostSetSplits);
  item->window_splits = splits((item->num_windows + of_tile - 1) / of_tile, kLeastWindowTiles, kMostWindowSplits);
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_ATTEND_ATTEND_ITEMS_H_
