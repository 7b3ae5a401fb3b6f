// Rows of one head as codes in orthonormal bases: what subspaces ask of a backend (OjaKV, sections 3.2 and A.9).
// A row x [D] is kept as its code y = x U [r] and read back as y U^T.
//
// Sums run over k in order, one multiplication and one addition each, as kernels/ops/matrix/matrix.h has them: the same
// bits on every backend.
#ifndef SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_H_
#define SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_H_

#include <cstdint>
#include <vector>

#include "kernels/math.h"
#include "kernels/ops/low_rank/rope.h"
#include "kernels/types.h"

namespace seine {

// fp32 to a stored type of 16 bits, and back. Halves saturate.
inline constexpr float kLargestHalf = 65504.0f;
SEINE_HD inline uint16_t Narrow16(float x, DType dtype) {
  if (dtype == DType::kBFloat16) return FloatToBf16(x);
  return FloatToHalf(x > kLargestHalf ? kLargestHalf : x < -kLargestHalf ? -kLargestHalf : x);
}
SEINE_HD inline float Widen16(uint16_t bits, DType dtype) {
  return dtype == DType::kBFloat16 ? Bf16ToFloat(bits) : HalfToFloat(bits);
}

// Tokens that follow each other, kept in one basis, some of them full-rank beside it; or, without a basis, all of them
// full-rank.
struct LowRankRun {
  int64_t begin = 0;                // place of the first
  const uint8_t* codes = nullptr;   // [tokens][rank], of the rows' dtype
  const uint16_t* basis = nullptr;  // fp16 U^T [rank][head_dim] in MemorySpace::kCodes
  const uint8_t* full = nullptr;    // [num_full][head_dim], of the rows' dtype; without a basis [tokens][head_dim]
  const uint16_t* full_places = nullptr;  // [num_full] ascending, counted from `begin`; not read without a basis
  int32_t num_full = 0;
};

// Keys or values of one head, by place. All but the bases lies in MemorySpace::kStore.
struct LowRankRows {
  const LowRankRun* runs = nullptr;  // by begin; each ends where the next begins
  int32_t num_runs = 0;
  int32_t head_dim = 0, rank = 0;  // head_dim a multiple of 16
  DType dtype = DType::kFloat32;   // of codes, and of what is kept full-rank
  RopeTurns rope;                  // not of what is kept full-rank
};

// The run that holds `place`, which is in one.
SEINE_HD inline const LowRankRun& RunOf(const LowRankRows& rows, int64_t place) {
  int32_t low = 0, high = rows.num_runs - 1;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (rows.runs[middle].begin <= place) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return rows.runs[low];
}

// The row of a place among those that its run keeps full-rank; -1: it is none of them.
SEINE_HD inline int64_t FullRowOf(const LowRankRun& run, int64_t place) {
  const int64_t wanted = place - run.begin;
  if (run.basis == nullptr) return wanted;
  int32_t low = 0, high = run.num_full;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (run.full_places[middle] < wanted) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < run.num_full && run.full_places[low] == wanted ? low : -1;
}

// A head's keys, or values, by place, and the positions of these places.
struct LowRankTokens {
  std::vector<LowRankRun> runs;
  LowRankRows rows;                                 // of these runs
  const uint8_t* const* position_chunks = nullptr;  // int32 [position_chunk_tokens] each; nullptr: places are positions
  int position_chunk_tokens = 1;
  int32_t position(int64_t place) const {
    if (position_chunks == nullptr) return static_cast<int32_t>(place);
    const auto* chunk = reinterpret_cast<const int32_t*>(position_chunks[place / position_chunk_tokens]);
    return chunk[place % position_chunk_tokens];
  }
};

// Codes of rows in a basis, and what the basis leaves out of them. Any memory.
struct ProjectTask {
  const float* basis = nullptr;  // U [head_dim][rank rounded up to 16], zeros past the rank
  int head_dim = 0, rank = 0;    // head_dim a multiple of 16
  const float* rows = nullptr;   // [count][head_dim]
  int64_t count = 0;
  DType dtype = DType::kFloat32;  // of the codes; halves saturate
  uint8_t* codes = nullptr;       // [count][rank]
  float* residuals = nullptr;     // [count][head_dim] x - y U^T, y before it is rounded; nullptr: not asked for
};

// Rows of the tokens at `places` as they read: rebuilt and turned to their positions, or as they were.
struct RebuildTask {
  LowRankRows rows;
  const int32_t* places = nullptr;     // [count], in any order
  const int32_t* positions = nullptr;  // [count]; not read where nothing turns
  int64_t count = 0;
  float* out = nullptr;  // [count][head_dim] in MemorySpace::kStore
};

}  // namespace seine

#endif  // SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_H_
