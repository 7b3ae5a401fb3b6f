// The balanced code's encoder: one matrix product a window of 64 keys, then a quantiser a coordinate.
//
// Keys are the lanes throughout, so every key's sums run over the coordinates in their order, whatever the vector's
// width. The product multiplies 16-bit pairs into int32 (one instruction with VNNI, two with AVX2 and AVX-512): twice
// the lanes of fp32, and exact. Limit: D^2 / 32 multiply-adds a cycle and key with 512-bit vectors, 512 cycles at D =
// 128.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codecs/balanced/encode_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <algorithm>
#include <cstring>

#include "kernels/codecs/balanced/gaussian_quantiser.h"
#include "kernels/codecs/balanced/ops.h"
#include "kernels/codecs/kinds/balanced.h"
#include "kernels/cpu/targets.h"
#include "kernels/math.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL
#pragma GCC target("avx512vnni")  // Highway tests for it at run time but leaves it out of the target's options
#endif
namespace seine::cpu::HWY_NAMESPACE {

using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;
inline constexpr int kVectors = kWindowTokens / static_cast<int>(kN);  // that hold one number of each key

// Four lanes from each of the places p, p + apart, ...: one a block of 128 bits.
template <class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const int32_t* p, size_t apart) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, p);
  } else {
    const hn::Half<D> half;
    constexpr size_t kBlocks = hn::MaxLanes(half) / 4;
    return hn::Combine(d, LoadBlocks(half, p + kBlocks * apart, apart), LoadBlocks(half, p, apart));
  }
}

// store(i, v) for i < 4: within each block of 128 bits, lanes of a, b, c, e in turn: of the i-th quarter of their
// lanes.
template <class D, class V, class Store>
HWY_INLINE void Interleave4(D d, V a, V b, V c, V e, Store store) {
  const hn::RepartitionToWide<D> wide;
  const auto low_ab = hn::BitCast(wide, hn::InterleaveLower(d, a, b));
  const auto low_ce = hn::BitCast(wide, hn::InterleaveLower(d, c, e));
  const auto high_ab = hn::BitCast(wide, hn::InterleaveUpper(d, a, b));
  const auto high_ce = hn::BitCast(wide, hn::InterleaveUpper(d, c, e));
  store(0, hn::BitCast(d, hn::InterleaveLower(wide, low_ab, low_ce)));
  store(1, hn::BitCast(d, hn::InterleaveUpper(wide, low_ab, low_ce)));
  store(2, hn::BitCast(d, hn::InterleaveLower(wide, high_ab, high_ce)));
  store(3, hn::BitCast(d, hn::InterleaveUpper(wide, high_ab, high_ce)));
}

// rows[64][n] -> columns[n][64], n a multiple of 4: four columns of kN rows at a time.
HWY_INLINE void Turn(const int32_t* rows, int n, int32_t* columns) {
  const DI di;
  for (int k = 0; k < kWindowTokens; k += static_cast<int>(kN)) {
    for (int j = 0; j < n; j += 4) {
      const auto load = [&](int row) HWY_ATTR { return LoadBlocks(di, rows + (k + row) * n + j, size_t{4} * n); };
      Interleave4(di, load(0), load(1), load(2), load(3),
                  [&](int column, VI v) HWY_ATTR { hn::StoreU(v, di, columns + (j + column) * kWindowTokens + k); });
    }
  }
}

// Rows scaled to 16 bits and turned: pairs[j][key] holds coordinates 2j and 2j + 1 of a key. back[64]: their unit.
HWY_INLINE void MakePairs(const float* x, int dim, int32_t* pairs, float* back) {
  const DI di;
  const hn::Rebind<int16_t, DI> d16;
  const VF zero = hn::Zero(DF()), half = hn::Set(DF(), 0.5f);
  alignas(64) int32_t rows[kWindowTokens * kMaxHeadDim / 2];
  float squares[kWindowTokens], forth[kWindowTokens];
  for (int k = 0; k < kWindowTokens; ++k) {
    F16 sum = Set16(0);
    for (int j = 0; j < dim; j += 16) {
      const F16 v = Load16(x + static_cast<size_t>(k) * dim + j);
      sum = Add(sum, Mul(v, v));
    }
    squares[k] = Sum16(sum);
  }
  for (int k = 0; k < kWindowTokens; ++k) {  // apart from the sums: roots and divisions of several keys overlap
    const BalancedScale scale = ScaleOf(squares[k]);
    forth[k] = scale.forth;
    back[k] = scale.back;
  }
  for (int k = 0; k < kWindowTokens; ++k, x += dim) {
    const VF by = hn::Set(DF(), forth[k]);
    int16_t* row = reinterpret_cast<int16_t*>(rows + k * (dim / 2));
    for (size_t j = 0; j < static_cast<size_t>(dim); j += kN) {
      const VF v = hn::Mul(hn::LoadU(DF(), x + j), by);
      const VF away = hn::IfThenElse(hn::Lt(v, zero), hn::Neg(half), half);
      hn::StoreU(hn::DemoteTo(d16, hn::ConvertTo(di, hn::Add(v, away))), d16, row + j);
    }
  }
  Turn(rows, dim / 2, pairs);
}

#if HWY_TARGET != HWY_AVX3_DL
// sum + the products of both halves of each lane.
HWY_INLINE VI MulAddPair(VI sum, VI x, VI weight) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
  const hn::Repartition<int16_t, DI> d16;
  VI unused = hn::Zero(DI());
  return hn::ReorderWidenMulAccumulate(DI(), hn::BitCast(d16, x), hn::BitCast(d16, weight), sum, unused);
#else
  const auto low = [](VI v) HWY_ATTR { return hn::ShiftRight<16>(hn::ShiftLeft<16>(v)); };
  sum = hn::Add(sum, hn::Mul(low(x), low(weight)));
  return hn::Add(sum, hn::Mul(hn::ShiftRight<16>(x), hn::ShiftRight<16>(weight)));
#endif
}
#endif

// sums[c][k] = the products of kKeys vectors of keys with kColumns columns [half] apart; pairs [half][64].
template <int kColumns, int kKeys>
HWY_INLINE void SumPairs(const int32_t* pairs, const int32_t* columns, int half, VI (&sums)[kColumns][kKeys]) {
  const DI di;
#if HWY_TARGET == \
    HWY_AVX3_DL  // by hand: GCC 12 copies or spills accumulators in each turn, of loops and intrinsics alike
  static_assert(kColumns == 4 && kKeys == 4);
  const __m512i zero = _mm512_setzero_si512();
  __m512i a0 = zero, a1 = zero, a2 = zero, a3 = zero, b0 = zero, b1 = zero, b2 = zero, b3 = zero;
  __m512i c0 = zero, c1 = zero, c2 = zero, c3 = zero, d0 = zero, d1 = zero, d2 = zero, d3 = zero;
  for (int j = 0; j < half; ++j, pairs += kWindowTokens) {
    const __m512i x0 = _mm512_load_si512(pairs), x1 = _mm512_load_si512(pairs + 16);
    const __m512i x2 = _mm512_load_si512(pairs + 32), x3 = _mm512_load_si512(pairs + 48);
    const auto add = [&](int column, __m512i& s0, __m512i& s1, __m512i& s2, __m512i& s3) HWY_ATTR {
      const __m512i w = _mm512_set1_epi32(columns[column * half + j]);
      asm("vpdpwssd %5, %4, %0\n\tvpdpwssd %6, %4, %1\n\tvpdpwssd %7, %4, %2\n\tvpdpwssd %8, %4, %3"
          : "+&v"(s0), "+&v"(s1), "+&v"(s2), "+&v"(s3)
          : "v"(w), "v"(x0), "v"(x1), "v"(x2), "v"(x3));
    };
    add(0, a0, a1, a2, a3);
    add(1, b0, b1, b2, b3);
    add(2, c0, c1, c2, c3);
    add(3, d0, d1, d2, d3);
  }
  const __m512i all[4][4] = {{a0, a1, a2, a3}, {b0, b1, b2, b3}, {c0, c1, c2, c3}, {d0, d1, d2, d3}};
  for (int c = 0; c < 4; ++c) {
    for (int k = 0; k < 4; ++k) sums[c][k] = VI{all[c][k]};
  }
#else
  for (auto& column : sums) {
    for (VI& sum : column) sum = hn::Zero(di);
  }
  for (int j = 0; j < half; ++j, pairs += kWindowTokens) {
    VI x[kKeys];
    for (int k = 0; k < kKeys; ++k) x[k] = hn::LoadU(di, pairs + k * kN);
    for (int c = 0; c < kColumns; ++c) {
      const VI weight = hn::Set(di, columns[c * half + j]);
      for (int k = 0; k < kKeys; ++k) sums[c][k] = MulAddPair(sums[c][k], x[k], weight);
    }
  }
#endif
}

// a[dim][64]: coordinates of the 64 keys in units of their scale. squares[64]: their sums of squares.
HWY_INLINE void Product(const int32_t* pairs, const BalancedTables& t, float* a, float* squares) {
  constexpr int kKeys = kN == 16 ? 4 : 2, kColumns = 4;  // vectors of keys, coordinates held in registers
  const DF d;
  memset(squares, 0, kWindowTokens * sizeof(float));
  for (int i = 0; i < t.dim; i += kColumns) {
    const int32_t* columns = reinterpret_cast<const int32_t*>(t.map.data()) + static_cast<size_t>(i) * (t.dim / 2);
    for (int v = 0; v < kVectors; v += kKeys) {
      VI sums[kColumns][kKeys];
      SumPairs(pairs + v * kN, columns, t.dim / 2, sums);
      for (int c = 0; c < kColumns; ++c) {
        const VF scale = hn::Set(d, t.scale[i + c]);
        for (int k = 0; k < kKeys; ++k) {
          const size_t key = (v + k) * kN;
          const VF value = hn::Mul(hn::ConvertTo(d, sums[c][k]), scale);
          hn::StoreU(value, d, a + static_cast<size_t>(i + c) * kWindowTokens + key);
          hn::StoreU(hn::Add(hn::LoadU(d, squares + key), hn::Mul(value, value)), d, squares + key);
        }
      }
    }
  }
}

// Keys that the quantiser holds in registers at once: with 16 lanes a whole window, so that each coordinate's
// thresholds are read once.
inline constexpr int kHeld = kN == 16 ? kVectors : 1;

// op(v) of each vector v of keys held.
template <typename Op>
HWY_INLINE void ForHeld(Op op) {
  for (int v = 0; v < kHeld; ++v) op(v);
}

// Coordinates a[dim][64] of the held keys into cells; factors in units of their scale.
HWY_INLINE void QuantiseHeld(const float* a, const float* squares, const float* back, const BalancedTables& t,
                             uint8_t* cells, float* coarse_factors, float* fine_factors) {
  const DF d;
  const DI di;
  const hn::Rebind<uint8_t, DI> d8;
  const VF zero = hn::Zero(d), one = hn::Set(d, 1.0f), share = hn::Set(d, 1.0f / static_cast<float>(t.dim));
  VF inverse[kHeld], coarse_top[kHeld], coarse_sum[kHeld], fine_top[kHeld], fine_sum[kHeld];
  ForHeld([&](int v) HWY_ATTR {
    const VF size = hn::Sqrt(hn::Mul(hn::LoadU(d, squares + v * kN), share));
    inverse[v] = hn::IfThenElseZero(hn::Gt(size, zero), hn::Div(one, size));
    coarse_top[v] = coarse_sum[v] = fine_top[v] = fine_sum[v] = zero;
  });
  for (int i = 0; i < t.dim; ++i, a += kWindowTokens, cells += kWindowTokens) {
    const int total = t.total[i], kept = t.coarse[i];
    if (total == 0) {
      memset(cells, 0, kHeld * kN);
      continue;
    }
    const GaussianQuantiser& q = GaussianQuantiserOf(total);
    const int half = 1 << (total - 1), rest = total - kept;
    VF u[kHeld], level[kHeld], merged[kHeld];
    VI index[kHeld];
    ForHeld([&](int v) HWY_ATTR {
      u[v] = hn::Abs(hn::Mul(hn::LoadU(d, a + v * kN), inverse[v]));
      level[v] = hn::Set(d, q.levels[0]);
      merged[v] = hn::Set(d, q.merged[kept][0]);
      index[v] = hn::Zero(di);
    });
    // Whole cells of the coarse code one after another, so that their level is chosen once.
    for (int first = 0, m = 1; m < half; ++first) {
      for (const int end = std::min(half, (first + 1) << rest); m < end; ++m) {
        const VF threshold = hn::Set(d, q.thresholds[m - 1]), next = hn::Set(d, q.levels[m]);
        const VI at = hn::Set(di, m);
        ForHeld([&](int v) HWY_ATTR {
          const auto above = hn::Gt(u[v], threshold);
          level[v] = hn::IfThenElse(above, next, level[v]);
          index[v] = hn::IfThenElse(hn::RebindMask(di, above), at, index[v]);
        });
      }
      if (m == half) break;
      const VF threshold = hn::Set(d, q.thresholds[m - 1]), next = hn::Set(d, q.merged[kept][first + 1]);
      ForHeld([&](int v) HWY_ATTR { merged[v] = hn::IfThenElse(hn::Gt(u[v], threshold), next, merged[v]); });
    }
    const VI up = hn::Set(di, half), down = hn::Set(di, half - 1);
    const VF lambda = hn::Set(d, t.lambda[i]);
    ForHeld([&](int v) HWY_ATTR {
      const auto positive = hn::RebindMask(di, hn::Ge(hn::Mul(hn::LoadU(d, a + v * kN), inverse[v]), zero));
      const VI signed_index = hn::IfThenElse(positive, hn::Add(up, index[v]), hn::Sub(down, index[v]));
      hn::StoreU(hn::DemoteTo(d8, signed_index), d8, cells + v * kN);
      const VF weighted = hn::Mul(u[v], lambda);
      fine_top[v] = hn::Add(fine_top[v], hn::Mul(weighted, u[v]));
      fine_sum[v] = hn::Add(fine_sum[v], hn::Mul(weighted, level[v]));
    });
    if (kept == 0) continue;
    ForHeld([&](int v) HWY_ATTR {
      const VF weighted = hn::Mul(u[v], lambda);
      coarse_top[v] = hn::Add(coarse_top[v], hn::Mul(weighted, u[v]));
      coarse_sum[v] = hn::Add(coarse_sum[v], hn::Mul(weighted, merged[v]));
    });
  }
  ForHeld([&](int v) HWY_ATTR {
    const VF size = hn::Sqrt(hn::Mul(hn::LoadU(d, squares + v * kN), share));
    const VF s = hn::Mul(size, hn::LoadU(d, back + v * kN));
    const auto factor = [&](VF top, VF sum)
                            HWY_ATTR { return hn::IfThenElseZero(hn::Gt(sum, zero), hn::Mul(s, hn::Div(top, sum))); };
    hn::StoreU(factor(coarse_top[v], coarse_sum[v]), d, coarse_factors + v * kN);
    hn::StoreU(factor(fine_top[v], fine_sum[v]), d, fine_factors + v * kN);
  });
}

void EncodeBalancedWindowImpl(const float* x, const BalancedTables& t, uint8_t* cells, float* coarse_factors,
                              float* fine_factors) {
  alignas(64) int32_t pairs[kMaxHeadDim / 2 * kWindowTokens];
  alignas(64) float a[kMaxHeadDim * kWindowTokens], squares[kWindowTokens], back[kWindowTokens];
  MakePairs(x, t.dim, pairs, back);
  Product(pairs, t, a, squares);
  for (size_t k = 0; k < kWindowTokens; k += kHeld * kN) {
    QuantiseHeld(a + k, squares + k, back + k, t, cells + k, coarse_factors + k, fine_factors + k);
  }
}

// Bytes are made one after another, each in a register until its last field is in.
HWY_INLINE void PackPlanes(const uint8_t* cells, const std::vector<BitPlace>& places, int num_bytes, uint8_t* planes) {
  const hn::CappedTag<uint8_t, kWindowTokens> d;
  const hn::Repartition<uint16_t, decltype(d)> d16;  // shifts are of 16 bits, and masks drop what they bring along
  constexpr size_t kBytes = hn::MaxLanes(hn::CappedTag<uint8_t, kWindowTokens>());
  for (size_t k = 0; k < kWindowTokens; k += kBytes) {
    uint8_t* to = planes + k;
    auto byte = hn::Zero(d16);
    int at = 0;  // of `byte`
    const auto reach = [&](int wanted) HWY_ATTR {
      for (; at < wanted; ++at, to += kWindowTokens, byte = hn::Zero(d16)) {
        hn::StoreU(hn::BitCast(d, byte), d, to);
      }
    };
    for (const BitPlace& p : places) {
      reach(p.at / 8);
      const auto cell = hn::LoadU(d, cells + static_cast<size_t>(p.coordinate) * kWindowTokens + k);
      const auto field = hn::And(hn::ShiftRightSame(hn::BitCast(d16, cell), p.from),
                                 hn::BitCast(d16, hn::Set(d, static_cast<uint8_t>((1 << p.bits) - 1))));
      const int shift = p.at % 8, spill = shift + p.bits - 8;  // bits that reach into the next byte
      const auto here = hn::Set(d, static_cast<uint8_t>((1 << (p.bits - HWY_MAX(spill, 0))) - 1));
      byte = hn::Or(byte, hn::ShiftLeftSame(hn::And(field, hn::BitCast(d16, here)), shift));
      if (spill <= 0) continue;
      reach(p.at / 8 + 1);
      const auto there = hn::Set(d, static_cast<uint8_t>((1 << spill) - 1));
      byte = hn::And(hn::ShiftRightSame(field, 8 - shift), hn::BitCast(d16, there));
    }
    reach((num_bytes + 3) / 4 * 4);
  }
}

void PackBalancedWindowImpl(const uint8_t* cells, const std::vector<BitPlace>& places, int num_bytes, uint32_t* words) {
  alignas(64) uint8_t planes[(kMaxBalancedBytes + 3) / 4 * 4 * kWindowTokens];
  PackPlanes(cells, places, num_bytes, planes);
  const hn::FixedTag<uint8_t, 16> d;
  for (int b = 0; b < num_bytes; b += 4, words += kWindowTokens) {
    for (int k = 0; k < kWindowTokens; k += 16) {
      const auto plane = [&](int i) HWY_ATTR { return hn::Load(d, planes + (b + i) * kWindowTokens + k); };
      Interleave4(d, plane(0), plane(1), plane(2), plane(3), [&](int quarter, auto v) HWY_ATTR {
        hn::StoreU(v, d, reinterpret_cast<uint8_t*>(words + k + 4 * quarter));
      });
    }
  }
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(EncodeBalancedWindowImpl);
HWY_EXPORT(PackBalancedWindowImpl);

void EncodeBalancedWindow(const float* x, const BalancedTables& tables, uint8_t* cells, float* coarse_factors,
                          float* fine_factors) {
  if (ScalarForced()) return scalar::EncodeBalancedWindow(x, tables, cells, coarse_factors, fine_factors);
  HWY_DYNAMIC_DISPATCH(EncodeBalancedWindowImpl)(x, tables, cells, coarse_factors, fine_factors);
}
void PackBalancedWindow(const uint8_t* cells, const std::vector<BitPlace>& places, int num_bytes, uint32_t* words) {
  if (ScalarForced()) return scalar::PackBalancedWindow(cells, places, num_bytes, words);
  HWY_DYNAMIC_DISPATCH(PackBalancedWindowImpl)(cells, places, num_bytes, words);
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
