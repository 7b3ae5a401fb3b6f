// The scoring kernel: a half-warp a key, whose lane l sums the coordinates j with j % 16 = l, in order; then a lane a
// key reduces these sixteen sums by the tree of cpu/simd-inl.h. So scores have the bits of every other target. A row is
// read in place, two or four bytes a lane, which a half-warp's sixteen lanes make whole sectors of.
#ifndef SEINE_KERNELS_OPS_SCORE_KEYS_SCORE_KEYS_CUDA_H_
#define SEINE_KERNELS_OPS_SCORE_KEYS_SCORE_KEYS_CUDA_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/load.h"
#include "kernels/math.h"
#include "kernels/ops/score_keys/evict_items.h"

namespace seine::cuda {

struct ScoreShared {
  // A column more, so that lanes that each read a row meet no bank twice.
  float main[kScoreKeys][17];
  float squares[kScoreKeys][17];
};

inline int ScoreBlocks(const ScoreArgs& args) { return (args.most_keys + kScoreKeys - 1) / kScoreKeys; }

template <DType kType>
SEINE_BODY float Widen(uint16_t bits) {
  if constexpr (kType == DType::kBFloat16) return Bf16ToFloat(bits);
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));  // exact, as HalfToFloat is
  return value;
#else
  return HalfToFloat(bits);
#endif
}
template <DType kType>
SEINE_BODY float Coordinate(const uint8_t* row, int j) {
  if constexpr (kType == DType::kFloat32) return Load<float>(row + j * 4);
  return Widen<kType>(Load<uint16_t>(row + j * 2));
}

// One lane's sums over its share of a key.
struct LaneSums {
  float main = 0, squares = 0;
};
template <KeyScore kKind, DType kType>
SEINE_BODY LaneSums SumLane(const uint8_t* row, const float* anchor, int lane, int dim) {
  LaneSums sums;
  for (int j = lane; j < dim; j += 16) {
    const float x = Coordinate<kType>(row, j);
    if constexpr (TakesSquares(kKind)) sums.squares = sums.squares + x * x;
    if constexpr (!TakesAnchor(kKind)) continue;
    const float a = Load<float>(anchor + j);
    if constexpr (!IsDistance(kKind)) sums.main = sums.main + x * a;
    if constexpr (IsDistance(kKind)) {
      const float away = x - a;
      const float size = kKind == KeyScore::kL2 ? away * away : fabsf(away);
      sums.main = kKind == KeyScore::kLinf ? Most(sums.main, size) : sums.main + size;
    }
  }
  return sums;
}

// Sixteen lanes to one.
template <bool kLargest>
SEINE_BODY float ReduceRow(const float* row) {
  float v[16];
  for (int i = 0; i < 16; ++i) v[i] = row[i];
  for (int h = 8; h >= 1; h /= 2) {
    for (int i = 0; i < h; ++i) v[i] = kLargest ? Most(v[i], v[i + h]) : v[i] + v[i + h];
  }
  return v[0];
}

// Grid: (blocks of kScoreKeys keys, items).
struct ScoreBody {
  using Shared = ScoreShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const ScoreArgs& args) {
    const ScoreItem& item = args.items[block.index().y];
    if (block.index().x * kScoreKeys >= item.count) return;
    switch (item.dtype) {
      case DType::kFloat32:
        return RunTyped<DType::kFloat32>(block, s, item);
      case DType::kFloat16:
        return RunTyped<DType::kFloat16>(block, s, item);
      case DType::kBFloat16:
        return RunTyped<DType::kBFloat16>(block, s, item);
      case DType::kQ8:
      case DType::kQ4:
        break;
    }
  }

 private:
  template <DType kType, typename Block>
  SEINE_BODY static void RunTyped(Block& block, ScoreShared& s, const ScoreItem& item) {
    switch (item.kind) {
      case KeyScore::kNegNorm:
        return Run<KeyScore::kNegNorm, kType>(block, s, item);
      case KeyScore::kDot:
        return Run<KeyScore::kDot, kType>(block, s, item);
      case KeyScore::kNegCosine:
        return Run<KeyScore::kNegCosine, kType>(block, s, item);
      case KeyScore::kL2:
        return Run<KeyScore::kL2, kType>(block, s, item);
      case KeyScore::kL1:
        return Run<KeyScore::kL1, kType>(block, s, item);
      case KeyScore::kLinf:
        return Run<KeyScore::kLinf, kType>(block, s, item);
      case KeyScore::kUnitL2:
        return Run<KeyScore::kUnitL2, kType>(block, s, item);
    }
  }

  template <KeyScore kKind, DType kType, typename Block>
  SEINE_BODY static void Run(Block& block, ScoreShared& s, const ScoreItem& item) {
    const int first = block.index().x * kScoreKeys, row_bytes = static_cast<int>(item.head_dim * SizeOf(kType));
    const int count = Least(kScoreKeys, item.count - first);
    block.Lanes([&](int lane) {
      for (int i = lane / 16; i < count; i += kScoreLanes / 16) {  // half-warps side by side read adjacent rows
        const int key = first + i, chunk = key / item.chunk_tokens;
        const uint8_t* row = item.chunks[chunk] + static_cast<int64_t>(key - chunk * item.chunk_tokens) * row_bytes;
        const float* anchor = item.anchors + static_cast<int64_t>(item.WindowOf(key)) * item.head_dim;
        const LaneSums sums = SumLane<kKind, kType>(row, anchor, lane % 16, item.head_dim);
        s.main[i][lane % 16] = sums.main;
        s.squares[i][lane % 16] = sums.squares;
      }
    });
    block.Lanes([&](int lane) {
      if (lane >= count) return;
      float main = 0, squares = 0, anchor_squares = 0;
      if constexpr (TakesAnchor(kKind)) main = ReduceRow<kKind == KeyScore::kLinf>(s.main[lane]);
      if constexpr (TakesSquares(kKind)) squares = ReduceRow<false>(s.squares[lane]);
      if constexpr (kKind == KeyScore::kUnitL2) anchor_squares = item.anchor_squares[item.WindowOf(first + lane)];
      item.out[first + lane] = FinishScore(kKind, main, squares, anchor_squares);
    });
  }
};

template <typename Run>
void ForEachKernel(const ScoreArgs& args, Run run) {
  run(ScoreBody(), BlockIndex{ScoreBlocks(args), args.num_items}, Lanes<kScoreLanes>());
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SCORE_KEYS_SCORE_KEYS_CUDA_H_
