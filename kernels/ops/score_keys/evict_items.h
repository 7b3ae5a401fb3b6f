// Kernels of eviction: sums of a head's keys, a score for every key, and the places of the largest scores.
#ifndef SEINE_KERNELS_OPS_SCORE_KEYS_EVICT_ITEMS_H_
#define SEINE_KERNELS_OPS_SCORE_KEYS_EVICT_ITEMS_H_

#include <cstdint>

#include "kernels/ops/score_keys/score_keys.h"

namespace seine::cuda {

inline constexpr int kSumLanes = 256;
inline constexpr int kSumSlots = 4;
inline constexpr int kSumShare = kMaxHeadDim / kSumLanes;  // coordinates of a lane, at most
// Groups that a block adds side by side, a lane a coordinate; one, whose coordinates are more than the lanes.
SEINE_HD constexpr int SumSlots(int head_dim) {
  const int fit = kSumLanes / head_dim;
  return fit < 1 ? 1 : fit < kSumSlots ? fit : kSumSlots;
}

// score_keys.h, SumTask, with every pointer readable by the device. Keys may lie in page-locked host memory.
struct SumItem {
  const uint8_t* const* chunks = nullptr;  // types.h, ChunkedRows
  int32_t chunk_tokens = 1;
  int32_t head_dim = 0;
  DType dtype = DType::kFloat32;
  bool unit = false;
  int32_t windows = 1, groups = 0;        // a window's groups (score_keys.h) follow one another, as windows do
  int32_t longest = 0;                    // keys of a group, at most
  const int32_t* key_begins = nullptr;    // [groups + 1] first keys of groups
  const int32_t* group_begins = nullptr;  // [windows + 1] first groups of windows
  double* partial = nullptr;              // [groups][head_dim], of the first kernel
  double* sums = nullptr;                 // [windows][head_dim]
};
struct SumArgs {  // blocks of SumSlots groups, items; then windows, items
  const SumItem* items = nullptr;
  int32_t num_items = 0;
  int32_t most_blocks = 0, most_windows = 0;  // of an item
};

inline constexpr int kScoreLanes = 256;
inline constexpr int kScoreKeys = 128;  // a block

// score_keys.h, ScoreTask, with every pointer readable by the device. Keys may lie in page-locked host memory.
struct ScoreItem {
  const uint8_t* const* chunks = nullptr;  // types.h, ChunkedRows
  int32_t chunk_tokens = 1;
  int32_t head_dim = 0;
  DType dtype = DType::kFloat32;
  KeyScore kind = KeyScore::kNegNorm;
  int32_t count = 0;
  int32_t windows = 1;
  const int32_t* begins = nullptr;        // [windows] first keys of windows; not read where there is one
  const float* anchors = nullptr;         // [windows][head_dim]
  const float* anchor_squares = nullptr;  // [windows], of kUnitL2
  float* out = nullptr;                   // [count]
  // The window of a key, by bisection.
  SEINE_HD int32_t WindowOf(int32_t key) const {
    int32_t window = 0, beyond = windows;
    while (beyond - window > 1) {
      const int32_t middle = window + (beyond - window) / 2;
      if (begins[middle] <= key) {
        window = middle;
      } else {
        beyond = middle;
      }
    }
    return window;
  }
};
struct ScoreArgs {  // blocks of kScoreKeys, items
  const ScoreItem* items = nullptr;
  int32_t num_items = 0;
  int32_t most_keys = 0;  // of an item
};

inline constexpr int kCutLanes = 512;
inline constexpr int kPlaceLanes = 256;
inline constexpr int kSelectParts = 64;  // of an item's scores; kPlaceLanes each

// What the first kernel finds: the scores to keep are those above a value, and those equal to it up to a place.
struct SelectState {
  uint32_t value, last_tie;           // value: math.h, OrderedBits
  uint32_t part_begin[kSelectParts];  // how many are kept before each part
};
// score_keys.h, SelectTask, with every pointer the device's; 0 < kept < count.
struct SelectItem {
  const float* scores = nullptr;
  uint32_t count = 0, kept = 0;
  SelectState* state = nullptr;
  uint32_t* places = nullptr;  // [kept]
  SEINE_HD uint32_t part() const { return (count + kSelectParts - 1) / kSelectParts; }
};
struct SelectArgs {  // one block an item, then kSelectParts
  const SelectItem* items = nullptr;
  int32_t num_items = 0;
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SCORE_KEYS_EVICT_ITEMS_H_
