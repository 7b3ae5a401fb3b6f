// Seventh step: exact dot products of the set's keys, and of the dense runs, with its queries. Rows lie in page-locked
// host memory or on the device; both are read in place, 16 bytes a lane. A row is read once for all queries. Keys that
// are kept low-rank are rebuilt in shared memory by the same block: only their codes come over the link.
#ifndef SEINE_KERNELS_CUDA_DOTS_H_
#define SEINE_KERNELS_CUDA_DOTS_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/code_reader.h"
#include "kernels/cuda/low_rank_body.h"
#include "kernels/cuda/search_items.h"
#include "kernels/math.h"

namespace seine::cuda {

inline constexpr int kDotLanes = 256;
inline constexpr int kDotRows = kDotLanes / 16;  // a half-warp a row
inline constexpr int kDotQueries = 4;            // at a time

struct DotShared {
  bool wanted[kDotRows];
  const uint8_t* rows[kDotRows];  // nullptr: not wanted, or rebuilt
  DType types[kDotRows];
  float values[kDotRows][kMaxHeadDim];
  float lanes[kDotQueries][kDotRows][17];  // a column more, so that the tree's readers meet no bank twice
};

struct LowRankDotShared : DotShared {
  RebuildShared rebuild;
};
static_assert(kDotRows == kLowRankTile && kDotLanes == kLowRankLanes);

// 16 bytes of a row, as floats to `out`. Rows are multiples of 32 bytes, but may begin at any multiple of 4.
SEINE_BODY inline void LoadPiece(const uint8_t* row, DType dtype, int piece, float* out) {
  uint32_t words[4];
#ifdef __CUDA_ARCH__
  const uint8_t* at = row + piece * 16;
  if (reinterpret_cast<uintptr_t>(at) % 16 == 0) {
    const uint4 four = Load<uint4>(at);
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
  } else {
    for (int i = 0; i < 4; ++i) words[i] = LoadWord(at + i * 4);
  }
#else
  memcpy(words, row + piece * 16, 16);
#endif
  if (dtype == DType::kFloat32) {
    for (int i = 0; i < 4; ++i) out[piece * 4 + i] = BitsFloat(words[i]);
    return;
  }
  for (int i = 0; i < 8; ++i) {
    const uint16_t bits = static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16));
    out[piece * 8 + i] = dtype == DType::kFloat16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
  }
}

// Row r of a set: its keys, then the dense runs' rows.
SEINE_BODY inline const uint8_t* RowOf(const SearchItem& item, const SetPlan& set, uint32_t num_keys, uint32_t r,
                                       DType* dtype) {
  if (r < num_keys) {
    const int64_t position = item.zone_begin + (set.keys != nullptr ? set.keys[r] : r);
    *dtype = item.key_dtype;
    return item.chunks[position / item.chunk_tokens] +
           (position % item.chunk_tokens) * item.layout.head_dim * SizeOf(item.key_dtype);
  }
  r -= num_keys;
  for (int i = 0; i < item.num_dense; ++i) {
    const DenseRows& run = item.dense[i];
    if (r < static_cast<uint32_t>(run.count)) {
      *dtype = run.dtype;
      return run.data + r * run.stride_bytes;
    }
    r -= run.count;
  }
  return nullptr;
}

SEINE_BODY inline int32_t PositionOf(const SearchItem& item, int64_t place) {
  if (item.position_chunks == nullptr) return static_cast<int32_t>(place);
  const uint8_t* chunk = item.position_chunks[place / item.position_chunk_tokens];
  return reinterpret_cast<const int32_t*>(chunk)[place % item.position_chunk_tokens];
}

// Grid: (blocks of 16 rows, sets). kLowRank: for batches of which some item keeps keys low-rank.
template <bool kLowRank>
struct DotBody {
  using Shared = std::conditional_t<kLowRank, LowRankDotShared, DotShared>;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    const SetPlan& set = args.sets[block.index().y];
    const SearchItem& item = args.items[set.item];
    if (item.num_keys == 0) return;
    const int dim = item.layout.head_dim;
    const uint32_t keys = set.keys != nullptr ? *set.num_keys : static_cast<uint32_t>(item.num_keys);
    const uint32_t total = keys + (set.with_dense ? item.dense_tokens : 0), first = block.index().x * kDotRows;
    if (first >= total) return;
    block.Lanes([&](int lane) {
      if (lane >= kDotRows) return;
      const uint32_t r = first + lane;
      const bool wanted = r < total && (r >= keys || item.stored());
      const bool rebuilt = kLowRank && wanted && r < keys && item.low_rank.num_runs > 0;
      s.wanted[lane] = wanted;
      s.rows[lane] = wanted && !rebuilt ? RowOf(item, set, keys, r, &s.types[lane]) : nullptr;
      if constexpr (kLowRank) {
        const int64_t place = rebuilt ? item.zone_begin + (set.keys != nullptr ? set.keys[r] : r) : 0;
        AimAt(item.low_rank, rebuilt, place, rebuilt ? PositionOf(item, place) : 0, lane, &s.rebuild);
      }
    });
    block.Lanes([&](int lane) {
      const int row = lane / 16;
      if (s.rows[row] == nullptr) return;
      const int pieces = static_cast<int>(dim * SizeOf(s.types[row]) / 16);
      for (int piece = lane % 16; piece < pieces; piece += 16)
        LoadPiece(s.rows[row], s.types[row], piece, s.values[row]);
    });
    if constexpr (kLowRank) RebuildTile(block, s.rebuild, item.low_rank, [&](int r) { return s.values[r]; });
    for (int g = 0; g < set.count; g += kDotQueries) {
      const int count = Least(kDotQueries, set.count - g);
      block.Lanes([&](int lane) {
        const int row = lane / 16, l = lane % 16;
        if (!s.wanted[row]) return;
        for (int i = 0; i < count; ++i) {
          const float* query = item.queries + static_cast<size_t>(set.first + g + i) * dim;
          float sum = 0;
          for (int j = l; j < dim; j += 16) sum = sum + s.values[row][j] * query[j];
          s.lanes[i][row][l] = sum;
        }
      });
      block.Lanes([&](int lane) {
        const int row = lane % kDotRows, i = lane / kDotRows;
        if (i >= count || !s.wanted[row]) return;
        float* lanes = s.lanes[i][row];
        for (int h = 8; h >= 1; h /= 2) {
          for (int l = 0; l < h; ++l) lanes[l] = lanes[l] + lanes[l + h];
        }
        const uint32_t r = first + row;
        if (r < keys) {
          set.logits[static_cast<size_t>(g + i) * set.capacity + r] = lanes[0] * set.scale;
        } else {
          set.dense[static_cast<size_t>(g + i) * item.dense_tokens + r - keys] = lanes[0];
        }
      });
    }
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CUDA_DOTS_H_
