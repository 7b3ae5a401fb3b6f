// Stage I: the scan of the coarse plane, for every Highway target, a stride of keys at a time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/scan/scan_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/ops/scan/window_sums-inl.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/targets.h"
#include "kernels/math.h"
#include "kernels/ops/scan/keys_ahead.h"
#include "kernels/ops/scan/scan.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL
#pragma GCC target("avx512vnni")  // Highway tests for it at run time but leaves it out of the target's options
#endif
namespace seine::cpu::HWY_NAMESPACE {

// bases[q][w] = <q, centre> / coarse_step of windows [begin, end), at most kStride keys.
template <int kQ>
HWY_INLINE void WindowBases(const ScanArgs& a, int begin, int end, float (*bases)[kStrideWindows]) {
  const int windows = (end - begin) / kWindowTokens, tokens = a.layout->centre_window;
  if (a.planes.centre == nullptr) {
    for (int q = 0; q < kQ; ++q) std::fill_n(bases[q], windows, a.queries[q].shared_base);
    return;
  }
  const int first = begin / tokens, rows = (end - 1) / tokens - first + 1;
  const float* scales = a.planes.centre_scale + first;
  const int8_t* queries[kQ];
  int32_t dots[kQ][kStrideWindows];
  for (int q = 0; q < kQ; ++q) queries[q] = a.queries[q].prepared->query8.data();
  const size_t dim = a.layout->head_dim;
  Dots8(a.planes.centre + first * dim, dim, rows, a.layout->head_dim, queries, dots[0], kStrideWindows);
  for (int q = 0; q < kQ; ++q) {
    const PreparedQuery& query = *a.queries[q].prepared;
    const float unit = query.coarse_step > 0 ? query.query8_step / query.coarse_step : 0.0f;
    if (tokens == kWindowTokens) {
      for (int w = 0; w < windows; ++w) bases[q][w] = static_cast<float>(dots[q][w]) * (scales[w] * unit);
      continue;
    }
    for (int w = 0; w < windows; ++w) {
      const int row = (begin + w * kWindowTokens) / tokens - first;
      bases[q][w] = static_cast<float>(dots[q][row]) * (scales[row] * unit);
    }
  }
}

// The factors of a window's keys.
HWY_INLINE F16 FactorsAt(const uint8_t* factor, uint32_t base) {
  const hn::Rebind<int32_t, DF> di;
  const hn::Rebind<uint8_t, DF> d8;
  return Map([&](size_t i) HWY_ATTR { return DecodeFactors(hn::PromoteTo(di, hn::LoadU(d8, factor + i * kN)), base); });
}

// Windows [begin, end) of a.planes one after another, at most kStride keys: their bases, then use(q, key, scores) of
// each query for the 64 keys from begin + key on.
template <int kQ, int kGroups, typename Use>
HWY_INLINE void ForEachWindow(const ScanArgs& a, int begin, int end, float (*bases)[kStrideWindows], Use use) {
  const int coarse_bytes = a.layout->coarse_bytes;
  const size_t window_bytes = static_cast<size_t>(kWindowTokens) * coarse_bytes;
  KeysAhead ahead(a, begin);
  const uint8_t* coarse = a.planes.coarse + begin / kWindowTokens * window_bytes;
  const uint8_t* factor = a.planes.factor + begin;
  const uint32_t* factor_bases = a.planes.factor_base + begin / kWindowTokens;
  const bool collision = a.queries[0].tiers != nullptr;
  const uint8_t* tables[kQ];
  for (int q = 0; q < kQ; ++q) tables[q] = a.queries[q].prepared->tables.data();
  WindowBases<kQ>(a, begin, end, bases);
  const size_t keys = end - begin;
  for (size_t key = 0; key < keys; key += kWindowTokens, coarse += window_bytes) {
    const LaterWindows later = ahead.At(key, coarse);
    WindowSums<kQ> sums;
    if (collision) {
      for (size_t line = 0; line < window_bytes; line += 64) later.Fetch(line);
      for (int q = 0; q < kQ; ++q) {
        SumTiers(coarse, coarse_bytes, a.queries[q].tiers, q, &sums);
        use(q, key, {sums.tile0.At(q), sums.tile1.At(q), sums.tile2.At(q), sums.tile3.At(q)});
      }
      continue;
    }
    SumNibbles<kQ, kGroups>(coarse, coarse_bytes, tables, later, &sums);
    const uint32_t factor_base = factor_bases[key / kWindowTokens];
    const F16 factor0 = FactorsAt(factor + key, factor_base), factor1 = FactorsAt(factor + key + 16, factor_base);
    const F16 factor2 = FactorsAt(factor + key + 32, factor_base), factor3 = FactorsAt(factor + key + 48, factor_base);
    for (int q = 0; q < kQ; ++q) {
      const F16 base = Set16(bases[q][key / kWindowTokens]);
      use(q, key,
          {Add(base, Mul(factor0, sums.tile0.At(q))), Add(base, Mul(factor1, sums.tile1.At(q))),
           Add(base, Mul(factor2, sums.tile2.At(q))), Add(base, Mul(factor3, sums.tile3.At(q)))});
    }
  }
}

// Keys of one window, by whole tiles.
template <int kQ, int kGroups>
void RowOf(const ScanArgs& a, float* const* scores, float* bases) {
  const int window = a.begin / kWindowTokens * kWindowTokens, tiles = (a.end - a.begin) / kTileTokens;
  const int coarse_bytes = a.layout->coarse_bytes;
  const uint8_t* coarse = a.planes.coarse + static_cast<size_t>(window) * coarse_bytes;
  float window_bases[kQ][kStrideWindows];
  WindowBases<kQ>(a, window, window + kWindowTokens, window_bases);
  WindowSums<kQ> sums;
  const uint8_t* tables[kQ];
  for (int q = 0; q < kQ; ++q) {
    bases[q] = window_bases[q][0];
    tables[q] = a.queries[q].prepared->tables.data();
  }
  const bool collision = a.queries[0].tiers != nullptr;
  if (collision) {
    for (int q = 0; q < kQ; ++q) SumTiers(coarse, coarse_bytes, a.queries[q].tiers, q, &sums);
  } else {
    SumTiles<kQ, kGroups>(coarse, coarse_bytes, (a.begin - window) / kTileTokens, tiles, tables, &sums);
  }
  for (int t = 0; t < tiles; ++t) {
    const int key = a.begin + t * kTileTokens;
    const F16 factors = FactorsAt(a.planes.factor + key, a.planes.factor_base[key / kWindowTokens]);
    const TileSums<kQ>& tile = *sums.tile((key - window) / kTileTokens);
    for (int q = 0; q < kQ; ++q) {
      const F16 score = collision ? tile.At(q) : Add(Set16(bases[q]), Mul(factors, tile.At(q)));
      Store16(score, scores[q] + t * kTileTokens);
    }
  }
}

template <int kQ, int kGroups>
void ScoresOf(const ScanArgs& a, float* const* scores, float* const* bases) {
  float stride_bases[kQ][kStrideWindows];
  for (int begin = a.begin, end; begin < a.end; begin = end) {
    end = a.end - begin < kStride ? a.end : begin + kStride;
    const size_t done = begin - a.begin;
    ForEachWindow<kQ, kGroups>(a, begin, end, stride_bases, [&](int q, size_t key, const WindowScores& s) HWY_ATTR {
      StoreScores(s, scores[q] + done + key);
    });
    for (int q = 0; q < kQ; ++q) {
      std::copy_n(stride_bases[q], (end - begin) / kWindowTokens, bases[q] + done / kWindowTokens);
    }
  }
}

inline constexpr size_t kWriteAhead =
    64;  // candidates whose place is fetched before they are written: lists may be cold

// Coarse bytes of a stride's listed keys, from their tiles to rows. kWords: 32-bit words a row if known at compile
// time, else 0.
template <int kWords>
HWY_INLINE void CopyRows(const uint8_t* coarse, int words, const uint16_t* keys, size_t count,
                         uint8_t* HWY_RESTRICT rows) {
  const size_t row_words = kWords > 0 ? kWords : words;
  for (size_t c = 0; c < count; ++c, rows += row_words * 4) {
    const size_t key = keys[c];
    const uint8_t* from = coarse + key / kTileTokens * (kTileTokens * 4 * row_words) + key % kTileTokens * 4;
    PrefetchWrite(rows + kWriteAhead * row_words * 4);
    for (size_t w = 0; w < row_words; ++w) memcpy(rows + w * 4, from + w * 64, 4);
  }
}

// Hits of one query in a stride: the keys, counted from the stride's first, and the scores of their windows' keys.
struct StrideHits {
  alignas(64) float scores[kStride];
  uint16_t keys[kStride + kWindowTokens];
  size_t count;
};

template <int kGroups>
HWY_INLINE void AppendHits(const ScanArgs& a, int begin, uint32_t first_index, const StrideHits& hits,
                           const float* bases, Candidates* out) {
  const int row_bytes = a.layout->coarse_bytes;
  const size_t first = out->size, count = hits.count;
  CopyRows<kGroups>(a.planes.coarse + static_cast<size_t>(begin) * row_bytes, row_bytes / 4, hits.keys, count,
                    out->rows.data() + first * row_bytes);
  uint32_t* index = out->index.data() + first;
  float *coarse = out->coarse.data() + first, *base = out->base.data() + first;
  for (size_t c = 0; c < count; c += 16) {
    PrefetchWrite(index + c + kWriteAhead);
    PrefetchWrite(coarse + c + kWriteAhead);
    PrefetchWrite(base + c + kWriteAhead);
  }
  const uint32_t start = first_index + static_cast<uint32_t>(begin);
  for (size_t c = 0; c < count; ++c) {
    const uint32_t key = hits.keys[c];
    index[c] = start + key;
    coarse[c] = hits.scores[key];
    base[c] = bases[key / kWindowTokens];
  }
  out->size = first + count;
}

// A stride at a time: all scores are kept and the hits listed without a branch, which would be foretold too badly; then
// what belongs to them is copied, while the stride's codes are in the first cache.
template <int kQ, int kGroups>
void AboveOf(const ScanArgs& a, const float* thresholds, uint32_t first_index, Candidates* const* out) {
  float bases[kQ][kStrideWindows];
  StrideHits hits[kQ];
  VF limits[kQ];
  for (int q = 0; q < kQ; ++q) limits[q] = hn::Set(DF(), thresholds[q]);
  for (int begin = a.begin, end; begin < a.end; begin = end) {
    end = a.end - begin < kStride ? a.end : begin + kStride;
    for (int q = 0; q < kQ; ++q) hits[q].count = 0;
    ForEachWindow<kQ, kGroups>(a, begin, end, bases, [&](int q, size_t key, const WindowScores& s) HWY_ATTR {
      StrideHits& h = hits[q];
      StoreScores(s, h.scores + key);
      h.count += AppendAbove(s, limits[q], static_cast<int>(key), h.keys + h.count);
    });
    for (int q = 0; q < kQ; ++q) AppendHits<kGroups>(a, begin, first_index, hits[q], bases[q], out[q]);
  }
}

template <int kValue>
using Int = std::integral_constant<int, kValue>;

// run(queries, groups) with the number of queries, and coarse_bytes / 4 where it is a usual one (else 0), as constants.
template <typename Run>
void WithConstants(const ScanArgs& a, Run run) {
  const auto of = [&](auto queries) {
    if (a.layout->coarse_bytes == 16) return run(queries, Int<4>());
    if (a.layout->coarse_bytes == 8) return run(queries, Int<2>());
    run(queries, Int<0>());
  };
  static_assert(kMostFused == 4);
  if (a.count == 1) return of(Int<1>());
  if (a.count == 2) return of(Int<2>());
  if (a.count == 3) return of(Int<3>());
  of(Int<4>());
}

void ScanRowImpl(const ScanArgs& a, float* const* scores, float* bases) {
  WithConstants(a, [&](auto queries, auto groups) { RowOf<queries.value, groups.value>(a, scores, bases); });
}

void ScanScoresImpl(const ScanArgs& a, float* const* scores, float* const* bases) {
  WithConstants(a, [&](auto queries, auto groups) { ScoresOf<queries.value, groups.value>(a, scores, bases); });
}

void ScanAboveImpl(const ScanArgs& a, const float* thresholds, uint32_t first_index, Candidates* const* out) {
  WithConstants(
      a, [&](auto queries, auto groups) { AboveOf<queries.value, groups.value>(a, thresholds, first_index, out); });
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {
HWY_EXPORT(ScanRowImpl);
HWY_EXPORT(ScanScoresImpl);
HWY_EXPORT(ScanAboveImpl);

void ScanRow(const ScanArgs& a, float* const* scores, float* bases) {
  if (ScalarForced()) return scalar::ScanRow(a, scores, bases);
  HWY_DYNAMIC_DISPATCH(ScanRowImpl)(a, scores, bases);
}

void ScanScores(const ScanArgs& a, float* const* scores, float* const* bases) {
  if (ScalarForced()) return scalar::ScanScores(a, scores, bases);
  HWY_DYNAMIC_DISPATCH(ScanScoresImpl)(a, scores, bases);
}

void ScanAbove(const ScanArgs& a, const float* thresholds, uint32_t first_index, Candidates* const* out) {
  if (ScalarForced()) return scalar::ScanAbove(a, thresholds, first_index, out);
  HWY_DYNAMIC_DISPATCH(ScanAboveImpl)(a, thresholds, first_index, out);
}

void CountCodes(const ConstCodePlanes& planes, const CodeLayout& layout, int begin, int end, int sign,
                uint32_t* counts) {
  uint8_t row[kMaxHeadDim / 8];
  for (int key = begin; key < end; ++key) {
    CopyCoarseRow(CoarseRowAt(planes.coarse, layout.coarse_bytes, key), layout.coarse_bytes, row);
    for (int b = 0; b < layout.head_dim / 8; ++b) counts[b * 256 + row[b]] += static_cast<uint32_t>(sign);
  }
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
