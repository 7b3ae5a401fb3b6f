// How kernels read codes: a window's planes, one key's coarse score, and one candidate's fine estimate.
#ifndef SEINE_KERNELS_OPS_QUERY_CODE_READER_H_
#define SEINE_KERNELS_OPS_QUERY_CODE_READER_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/load.h"
#include "kernels/math.h"
#include "kernels/ops/query/search_items.h"

namespace seine::cuda {

// 64 keys that share factors' base and centre.
struct Window {
  const uint8_t* coarse = nullptr;  // [4][coarse_bytes / 4][16][4]
  const uint8_t* factor = nullptr;  // [64]
  uint32_t factor_base = 0;
  const int8_t* centre = nullptr;  // nullptr where none is stored a window
  float centre_scale = 0;
};
SEINE_BODY inline Window WindowOf(const SearchItem& item, uint32_t index) {
  const uint32_t first = index * kWindowTokens, segment = first / item.segment_keys,
                 key = first - segment * item.segment_keys;
  const ConstCodePlanes& planes = item.segments[segment];
  Window w;
  w.coarse = planes.coarse + static_cast<size_t>(key) * item.layout.coarse_bytes;
  w.factor = planes.factor + key;
  w.factor_base = planes.factor_base[key / kWindowTokens];
  if (planes.centre != nullptr) {
    const uint32_t row = key / item.layout.centre_window;
    w.centre = planes.centre + static_cast<size_t>(row) * item.layout.head_dim;
    w.centre_scale = planes.centre_scale[row];
  }
  return w;
}

// True value of a product of query8 and a centre, in units of coarse_step.
SEINE_BODY inline float CentreUnit(const QueryState& state) {
  return state.coarse_step > 0 ? state.query8_step / state.coarse_step : 0.0f;
}

// <q, centre> of a window in units of coarse_step.
SEINE_BODY inline float WindowBase(const SearchItem& item, const Window& w, const int8_t* query8,
                                   const QueryState& state) {
  if (w.centre == nullptr) return state.shared_base;
  int32_t dot = 0;
  for (int i = 0; i < item.layout.head_dim; i += 4) dot = Dot4(LoadWord(w.centre + i), LoadWord(query8 + i), dot);
  return static_cast<float>(dot) * (w.centre_scale * CentreUnit(state));
}

// The g-th word of a key's coarse row; key in [0, 64) of the window.
SEINE_BODY inline uint32_t CoarseWord(const Window& w, int coarse_bytes, int key, int g) {
  return LoadWord(w.coarse + key / kTileTokens * kTileTokens * coarse_bytes + g * 64 + key % kTileTokens * 4);
}

// Whether keys that do not collide are no candidates (collision.h).
SEINE_HD inline bool LeavesOut(const SearchParams& params, const SearchItem& item) {
  return params.coarse == Coarse::kCollision && !(params.recall_target > 0) && item.wanted < item.num_keys;
}

// Score of one key from its sum over tables: tier weights are scores themselves.
SEINE_BODY inline float CoarseScore(bool collision, int32_t sum, float base, const Window& w, int key) {
  const float value = static_cast<float>(sum);
  if (collision) return value;
  return base + DecodeFactor(w.factor[key], w.factor_base) * value;
}

// Sum over the tables of query `place` of the group, from the item's tables.
SEINE_BODY inline int32_t CoarseSum(const SearchItem& item, bool collision, int place, const Window& w, int key) {
  const int bytes = item.layout.coarse_bytes, shift = place % 4 * 8;
  int32_t sum = collision ? 0 : -2 * kTableBias * bytes;
  for (int g = 0; g < bytes / 4; ++g) {
    const uint32_t word = CoarseWord(w, bytes, key, g);
    for (int b = 0; b < 4; ++b) {
      const uint32_t code = word >> (b * 8) & 255;
      if (collision) {
        sum += item.tier_tables[((place / 4) * bytes + g * 4 + b) * 256 + code] >> shift & 255;
      } else {
        const uint32_t* tables = item.nibble_tables + ((place / 4) * bytes + g * 4 + b) * 32;
        sum += (tables[code & 15] >> shift & 255) + (tables[16 + (code >> 4)] >> shift & 255);
      }
    }
  }
  return sum;
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_QUERY_CODE_READER_H_
