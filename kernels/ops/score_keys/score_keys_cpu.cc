// Scores and sums of keys, for every Highway target. Sixteen keys at a time: each leaves its sixteen lanes of partial
// sums, which one transposing tree then reduces together, for a tree a key would cost as much as the key's own
// products.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/score_keys/score_keys_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <algorithm>
#include <cassert>
#include <type_traits>

#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/targets.h"
#include "kernels/ops/score_keys/score_keys_cpu.h"
#include "kernels/stop.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {

constexpr int64_t kRows = 16;

struct Plus {
  HWY_INLINE VF operator()(VF a, VF b) const { return hn::Add(a, b); }
};
struct Largest {
  HWY_INLINE VF operator()(VF a, VF b) const { return hn::Max(a, b); }
};

// Lanes i with i + 8 of each row, then + 4: a vector whose block b (of four lanes) belongs to row first + 4 b.
template <typename Op>
HWY_INLINE VF FoldToBlocks(const F16* rows, int first, Op op) {
#if HWY_MAX_BYTES >= 64
  const DF d;
  const auto halves = [&](int a, int b) HWY_ATTR {
    return op(hn::ConcatLowerLower(d, rows[b].v[0], rows[a].v[0]), hn::ConcatUpperUpper(d, rows[b].v[0], rows[a].v[0]));
  };
  const VF x = halves(first, first + 8), y = halves(first + 4, first + 12);
  return op(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(y), x), hn::OddEvenBlocks(y, hn::SwapAdjacentBlocks(x)));
#elif HWY_MAX_BYTES >= 32
  const VF x = op(rows[first].v[0], rows[first].v[1]), y = op(rows[first + 4].v[0], rows[first + 4].v[1]);
  return op(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(y), x), hn::OddEvenBlocks(y, hn::SwapAdjacentBlocks(x)));
#else
  const F16& r = rows[first];
  return op(op(r.v[0], r.v[2]), op(r.v[1], r.v[3]));
#endif
}

// out lane r = the tree (simd-inl.h, Sum16) over the lanes of rows[r], r < 16.
template <typename Op>
HWY_INLINE F16 ReduceRows(const F16* rows, Op op) {
  const DF d;
  const hn::Repartition<uint64_t, DF> d64;
  const auto pairs = [&](auto lower, VF a, VF b) HWY_ATTR {
    const auto x = hn::BitCast(d64, a), y = hn::BitCast(d64, b);
    if constexpr (decltype(lower)::value) return hn::BitCast(d, hn::InterleaveLower(d64, x, y));
    return hn::BitCast(d, hn::InterleaveUpper(d64, x, y));
  };
  return Map([&](size_t part) HWY_ATTR {
    const int base = static_cast<int>(part * kN);
    const VF x0 = FoldToBlocks(rows, base, op), x1 = FoldToBlocks(rows, base + 1, op);
    const VF x2 = FoldToBlocks(rows, base + 2, op), x3 = FoldToBlocks(rows, base + 3, op);
    const VF y0 = op(hn::InterleaveLower(d, x0, x1), hn::InterleaveUpper(d, x0, x1));
    const VF y1 = op(hn::InterleaveLower(d, x2, x3), hn::InterleaveUpper(d, x2, x3));
    return op(pairs(std::true_type(), y0, y1), pairs(std::false_type(), y0, y1));
  });
}

template <typename Op>
HWY_INLINE F16 Zip(const F16& a, const F16& b, Op op) {
  return Map([&](size_t i) HWY_ATTR { return op(a.v[i], b.v[i]); });
}

// sums + x^2. A half's square is exact in fp32 (22 bits of mantissa, exponents from -48 to 31), so that a fused
// multiply-add gives the bits of a product and a sum in one instruction; a bfloat16's may underflow.
template <DType kType>
HWY_INLINE F16 AddSquares(const F16& sums, const F16& x) {
  if constexpr (kType != DType::kFloat16) return Add(sums, Mul(x, x));
  return Map([&](size_t i) HWY_ATTR { return hn::MulAdd(x.v[i], x.v[i], sums.v[i]); });
}

// What a key leaves in its lanes, and what becomes of the reduced sums.
template <KeyScore kKind, DType kType>
struct Scorer {
  static constexpr bool kSquares = TakesSquares(kKind), kAnchored = TakesAnchor(kKind), kDistance = IsDistance(kKind);

  static HWY_INLINE void Take(const F16& x, const float* anchor, F16* main, F16* squares) {
    if constexpr (kSquares) *squares = AddSquares<kType>(*squares, x);
    if constexpr (!kAnchored) return;
    const F16 a = Load16(anchor);
    if constexpr (!kDistance) *main = Add(*main, Mul(x, a));
    if constexpr (kDistance) {
      const F16 away = Sub(x, a);
      const F16 size =
          kKind == KeyScore::kL2 ? Mul(away, away) : Map([&](size_t i) HWY_ATTR { return hn::Abs(away.v[i]); });
      *main = kKind == KeyScore::kLinf ? Zip(*main, size, Largest()) : Add(*main, size);
    }
  }

  static HWY_INLINE VF Finish(VF main, VF squares, VF anchor_squares) {
    const DF d;
    const VF zero = hn::Zero(d);
    if constexpr (kKind == KeyScore::kNegNorm) return hn::Sub(zero, hn::Sqrt(squares));
    if constexpr (kKind == KeyScore::kL2) return hn::Sqrt(hn::Min(main, hn::Set(d, kLargestFloat)));
    if constexpr (kKind == KeyScore::kNegCosine || kKind == KeyScore::kUnitL2) {
      const MF some = hn::Gt(squares, zero);
      const VF cosine = hn::Div(main, hn::Sqrt(squares));
      if constexpr (kKind == KeyScore::kNegCosine) return hn::IfThenElseZero(some, hn::Sub(zero, cosine));
      const VF square = hn::Sub(hn::Add(hn::Set(d, 1.0f), anchor_squares), hn::Mul(hn::Set(d, 2.0f), cosine));
      return hn::Sqrt(hn::IfThenElse(some, hn::Max(square, zero), anchor_squares));
    }
    return main;
  }
};

// 16 KiB ahead into the second cache, as scans do: measured to come nearest to a plain read's speed, but where nothing
// is done with a row but to sum its squares. That keeps up with the hardware's own prefetching, which asking only
// disturbs (11.3 against 8.4 ns a key of 128 halves; a plain read takes 8.6).
HWY_INLINE void FetchAhead(const void* row, size_t bytes) {
  constexpr size_t kAhead = 16384;
  const uint8_t* p = static_cast<const uint8_t*>(row) + kAhead;
  for (size_t b = 0; b < bytes; b += 64) PrefetchFar(p + b);
}

// Sixteen rows from `first` on; rows past `last` are row `last` again, so that a short tail needs no code of its own.
template <KeyScore kKind, DType kType, bool kFetch>
HWY_INLINE F16 ScoreRows16(const ConstRows& rows, int64_t first, int64_t last, int dim, const float* anchor,
                           float anchor_squares) {
  using S = Scorer<kKind, kType>;
  F16 main[kRows], squares[kRows];
  for (int64_t r = 0; r < kRows; ++r) {
    const void* row = rows.row(first + r < last ? first + r : last);
    if constexpr (kFetch) FetchAhead(row, dim * SizeOf(kType));
    F16 m = Set16(0), s = Set16(0);
    for (int j = 0; j < dim; j += 16) S::Take(Load16Typed(row, kType, j), anchor + j, &m, &s);
    main[r] = m;
    squares[r] = s;
  }
  F16 m = Set16(0), s = Set16(0);
  if constexpr (kKind == KeyScore::kLinf) m = ReduceRows(main, Largest());
  if constexpr (S::kAnchored && kKind != KeyScore::kLinf) m = ReduceRows(main, Plus());
  if constexpr (S::kSquares) s = ReduceRows(squares, Plus());
  const VF a = hn::Set(DF(), anchor_squares);
  return Map([&](size_t i) HWY_ATTR { return S::Finish(m.v[i], s.v[i], a); });
}

template <KeyScore kKind, DType kType, bool kFetch = TakesAnchor(kKind)>
void ScoreTyped(const ConstRows& rows, int64_t count, int dim, const float* anchor, float* out) {
  const float anchor_squares = kKind == KeyScore::kUnitL2 ? AnchorSquares(anchor, dim) : 0.0f;
  int64_t i = 0;
  for (; i + kRows <= count; i += kRows) {
    Store16(ScoreRows16<kKind, kType, kFetch>(rows, i, count - 1, dim, anchor, anchor_squares), out + i);
  }
  if (i == count) return;
  float tail[kRows];
  Store16(ScoreRows16<kKind, kType, kFetch>(rows, i, count - 1, dim, anchor, anchor_squares), tail);
  for (int64_t r = 0; i + r < count; ++r) out[i + r] = tail[r];
}

template <KeyScore kKind>
void ScoreKind(const ConstRows& rows, int64_t count, int dim, const float* anchor, float* out) {
  switch (rows.dtype) {
    case DType::kFloat32:
      return ScoreTyped<kKind, DType::kFloat32>(rows, count, dim, anchor, out);
    case DType::kFloat16:
      return ScoreTyped<kKind, DType::kFloat16>(rows, count, dim, anchor, out);
    case DType::kBFloat16:
      return ScoreTyped<kKind, DType::kBFloat16>(rows, count, dim, anchor, out);
    case DType::kQ8:
    case DType::kQ4:
      assert(false && "rows of an engine's cache, which nobody scores");
  }
}

void ScoreKeysImpl(const ConstRows& rows, int64_t count, int dim, KeyScore kind, const float* anchor, float* out) {
  switch (kind) {
    case KeyScore::kNegNorm:
      return ScoreKind<KeyScore::kNegNorm>(rows, count, dim, anchor, out);
    case KeyScore::kDot:
      return ScoreKind<KeyScore::kDot>(rows, count, dim, anchor, out);
    case KeyScore::kNegCosine:
      return ScoreKind<KeyScore::kNegCosine>(rows, count, dim, anchor, out);
    case KeyScore::kL2:
      return ScoreKind<KeyScore::kL2>(rows, count, dim, anchor, out);
    case KeyScore::kL1:
      return ScoreKind<KeyScore::kL1>(rows, count, dim, anchor, out);
    case KeyScore::kLinf:
      return ScoreKind<KeyScore::kLinf>(rows, count, dim, anchor, out);
    case KeyScore::kUnitL2:
      return ScoreKind<KeyScore::kUnitL2>(rows, count, dim, anchor, out);
  }
}

// Adds 16 floats, in fp64, to the kDoubles sums of as many coordinates.
using DD = hn::Repartition<double, DF>;
constexpr size_t kHalf = kN / 2;
struct Sums16 {
  hn::Vec<DD> v[2 * kParts];
};
HWY_INLINE void AddWide(const F16& x, Sums16* sums) {
  const DD dd;
  const hn::Half<DF> half;
  for (size_t i = 0; i < kParts; ++i) {
    sums->v[2 * i] = hn::Add(sums->v[2 * i], hn::PromoteTo(dd, hn::LowerHalf(half, x.v[i])));
    sums->v[2 * i + 1] = hn::Add(sums->v[2 * i + 1], hn::PromoteTo(dd, hn::UpperHalf(half, x.v[i])));
  }
}

// Sums of 16 kGroups coordinates from `j` on: they stay in registers while the rows go by, so that as many additions
// are under way, and each coordinate still sees the rows in order. What it reads is asked for as it goes.
template <DType kType, size_t kGroups>
HWY_INLINE void AddColumns(const ConstRows& rows, int64_t first, int64_t count, int j, const float* scales,
                           double* sums) {
  const DD dd;
  Sums16 acc[kGroups];
  for (size_t g = 0; g < kGroups; ++g) {
    for (size_t i = 0; i < 2 * kParts; ++i) acc[g].v[i] = hn::LoadU(dd, sums + j + g * 16 + i * kHalf);
  }
  for (int64_t r = 0; r < count; ++r) {
    const void* row = rows.row(first + r);
    if (scales == nullptr)
      FetchAhead(static_cast<const uint8_t*>(row) + j * SizeOf(kType), kGroups * 16 * SizeOf(kType));
    const F16 scale = Set16(scales == nullptr ? 1.0f : scales[r]);
    for (size_t g = 0; g < kGroups; ++g) {
      const F16 x = Load16Typed(row, kType, j + static_cast<int>(g) * 16);
      AddWide(scales == nullptr ? x : Mul(x, scale), &acc[g]);
    }
  }
  for (size_t g = 0; g < kGroups; ++g) {
    for (size_t i = 0; i < 2 * kParts; ++i) hn::StoreU(acc[g].v[i], dd, sums + j + g * 16 + i * kHalf);
  }
}

template <DType kType>
HWY_INLINE void AddBlock(const ConstRows& rows, int64_t first, int64_t count, int dim, const float* scales,
                         double* sums) {
  constexpr size_t kMost = kParts == 1 ? 8 : kParts == 2 ? 2 : 1;  // sixteen registers of sums, or half of sixteen
  int j = 0;
  for (; j + static_cast<int>(kMost) * 16 <= dim; j += kMost * 16)
    AddColumns<kType, kMost>(rows, first, count, j, scales, sums);
  for (; j < dim; j += 16) AddColumns<kType, 1>(rows, first, count, j, scales, sums);
}

template <DType kType>
void AddTyped(const ConstRows& rows, int64_t count, int dim, bool unit, double* sums) {
  constexpr int64_t kBlock = 4 * kRows;  // rows that stay in the first cache while their coordinates are gone through
  float scales[kBlock];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t n = count - first < kBlock ? count - first : kBlock;
    if (unit) {
      const ConstRows block = {rows.row(first), rows.stride_bytes, kType};
      ScoreTyped<KeyScore::kNegNorm, kType, true>(block, n, dim, nullptr, scales);
      for (int64_t r = 0; r < n; ++r) scales[r] = scales[r] < 0 ? 1.0f / -scales[r] : 0.0f;
    }
    AddBlock<kType>(rows, first, n, dim, unit ? scales : nullptr, sums);
  }
}

void AddKeysImpl(const ConstRows& rows, int64_t count, int dim, bool unit, double* sums) {
  switch (rows.dtype) {
    case DType::kFloat32:
      return AddTyped<DType::kFloat32>(rows, count, dim, unit, sums);
    case DType::kFloat16:
      return AddTyped<DType::kFloat16>(rows, count, dim, unit, sums);
    case DType::kBFloat16:
      return AddTyped<DType::kBFloat16>(rows, count, dim, unit, sums);
    case DType::kQ8:
    case DType::kQ4:
      assert(false && "rows of an engine's cache, which nobody scores");
  }
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(ScoreKeysImpl);
HWY_EXPORT(AddKeysImpl);

void ScoreKeys(const ConstRows& rows, int64_t count, int dim, KeyScore kind, const float* anchor, float* out) {
  if (ScalarForced()) return scalar::ScoreKeys(rows, count, dim, kind, anchor, out);
  HWY_DYNAMIC_DISPATCH(ScoreKeysImpl)(rows, count, dim, kind, anchor, out);
}
namespace {
constexpr int64_t kKeysBetweenLooks = 4096;  // at the caller's token; a window may be of one key
// visit(window, first, rows, count) for each run of a task's keys that lie in one chunk and one window, in order.
template <typename Task, typename Visit>
void ForEachRun(const Task& task, Visit visit) {
  const ChunkedRows& keys = task.keys;
  int64_t look = kKeysBetweenLooks;
  for (int64_t w = 0; w < task.windows.count; ++w) {
    const int64_t end = task.windows.end(w, task.count);
    for (int64_t i = task.windows.begin(w); i < end;) {
      if (i >= look) {
        if (StopRequested()) return;
        look = i + kKeysBetweenLooks;
      }
      const int64_t run = std::min<int64_t>(end - i, keys.chunk_tokens - i % keys.chunk_tokens);
      visit(w, i, ConstRows{keys.row(i), keys.stride(), keys.dtype}, run);
      i += run;
    }
  }
}
}  // namespace
void ScoreKeys(const ScoreTask& task) {
  const int dim = task.keys.head_dim;
  ForEachRun(task, [&](int64_t w, int64_t first, const ConstRows& rows, int64_t count) {
    ScoreKeys(rows, count, dim, task.kind, task.anchors + w * dim, task.out + first);
  });
}
void AddKeys(const ConstRows& rows, int64_t count, int dim, bool unit, double* sums) {
  if (ScalarForced()) return scalar::AddKeys(rows, count, dim, unit, sums);
  HWY_DYNAMIC_DISPATCH(AddKeysImpl)(rows, count, dim, unit, sums);
}
void CloseGroup(int dim, double* open, double* sums) {
  for (int j = 0; j < dim; ++j) {
    sums[j] += open[j];
    open[j] = 0;
  }
}
void AddToSums(const ConstRows& rows, int64_t count, int dim, bool unit, int64_t before, double* sums, double* open) {
  for (int64_t i = 0; i < count;) {  // runs of one group
    const int64_t run = std::min(count - i, kSumGroup - (before + i) % kSumGroup);
    AddKeys({rows.row(i), rows.stride_bytes, rows.dtype}, run, dim, unit, open);
    i += run;
    if ((before + i) % kSumGroup == 0) CloseGroup(dim, open, sums);
  }
}
void SumKeys(const SumTask& task) {
  const int dim = task.keys.head_dim;
  double open[kMaxHeadDim] = {0};
  std::fill_n(task.sums, task.windows.count * dim, 0.0);
  ForEachRun(task, [&](int64_t w, int64_t first, const ConstRows& rows, int64_t count) {
    double* sums = task.sums + w * dim;
    AddToSums(rows, count, dim, task.unit, first - task.windows.begin(w), sums, open);
    if (first + count == task.windows.end(w, task.count)) CloseGroup(dim, open, sums);
  });
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
