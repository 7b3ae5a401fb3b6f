// RSQ codes of one window of rotated, centred keys (ParisKV, section 4.1; docs/codecs.md#rsq).
//
// Nothing is normalised: signs and magnitude bins do not change with ||x||, |u| > tau is x~^2 > tau^2 r_b^2, and the
// weight w_b = ||x|| r_b / alpha_b is r_b^2 / sum_j a[t_j] |x~_j| in the units of x itself.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codecs/rsq/encode_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <cstring>

#include "kernels/codecs/kinds/rsq.h"
#include "kernels/codecs/rsq/ops.h"
#include "kernels/cpu/targets.h"
#include "kernels/math.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {

// Bits of 16 coordinates: the sign and the three bits of the magnitude bin.
struct Bits {
  uint32_t sign, plane[3];
};

// Codes 16 coordinates (two subvectors) and adds to the key's sums. r2[0], r2[8] and alpha[0], alpha[8]: the two
// subvectors' squared norms and sums a[t] |x|.
HWY_INLINE Bits Encode16(const float* x, const RsqTables& t, F16& squares, F16& absolutes, float* r2_out,
                         float* alpha_out) {
  const DF d;
  const F16 v = Load16(x);
  const F16 v2 = Mul(v, v);
  const F16 u = Map([&](size_t i) HWY_ATTR { return hn::Abs(v.v[i]); });
  squares = Add(squares, v2);
  absolutes = Add(absolutes, u);
  const F16 r2 = SumOf8(v2);
  MF sign[kParts], m0[kParts], m1[kParts], m2[kParts];
  F16 alpha;
  const auto tau = [&](int i) HWY_ATTR { return hn::Set(d, t.thresholds2[i]); };
  const auto level = [&](int i) HWY_ATTR { return hn::Set(d, t.levels[i]); };
  for (size_t i = 0; i < kParts; ++i) {
    sign[i] = hn::Ge(v.v[i], hn::Zero(d));
    // Binary search: each comparison chooses the next threshold.
    m2[i] = hn::Gt(v2.v[i], hn::Mul(tau(3), r2.v[i]));
    m1[i] = hn::Gt(v2.v[i], hn::Mul(hn::IfThenElse(m2[i], tau(5), tau(1)), r2.v[i]));
    const VF upper = hn::IfThenElse(m1[i], tau(6), tau(4)), lower = hn::IfThenElse(m1[i], tau(2), tau(0));
    m0[i] = hn::Gt(v2.v[i], hn::Mul(hn::IfThenElse(m2[i], upper, lower), r2.v[i]));
    const VF a76 = hn::IfThenElse(m0[i], level(7), level(6)), a54 = hn::IfThenElse(m0[i], level(5), level(4));
    const VF a32 = hn::IfThenElse(m0[i], level(3), level(2)), a10 = hn::IfThenElse(m0[i], level(1), level(0));
    const VF a = hn::IfThenElse(m2[i], hn::IfThenElse(m1[i], a76, a54), hn::IfThenElse(m1[i], a32, a10));
    alpha.v[i] = hn::Mul(a, u.v[i]);
  }
  Store16(r2, r2_out);
  Store16(SumOf8(alpha), alpha_out);
  return {Bits16(sign), {Bits16(m0), Bits16(m1), Bits16(m2)}};
}

// weights[i] = r2[i] / alpha[i], 0 where alpha is; in place of r2. Returns the largest. All subvectors of a window in
// one go: division is the dearest operation here.
HWY_INLINE float MakeWeights(float* r2, const float* alpha, size_t n) {
  F16 most = Set16(0);
  const DF d;
  for (size_t i = 0; i < n; i += 16) {
    const F16 a = Load16(alpha + i), s = Load16(r2 + i);
    const F16 w = Map(
        [&](size_t p) HWY_ATTR { return hn::IfThenElseZero(hn::Gt(a.v[p], hn::Zero(d)), hn::Div(s.v[p], a.v[p])); });
    most = Map([&](size_t p) HWY_ATTR { return hn::Max(most.v[p], w.v[p]); });
    Store16(w, r2 + i);
  }
  alignas(64) float lanes[16];
  Store16(most, lanes);
  float largest = 0;
  for (const float lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
}

// Weights [64, stride] of a window as minifloats above the base of the largest, at the end of each record.
HWY_INLINE uint32_t StoreWeights(const float* weights, float largest, size_t stride, int subvectors, int fine_bytes,
                                 uint8_t* fine) {
  const hn::Rebind<int32_t, DF> di;  // positive floats: their bits compare as signed integers too
  const hn::Rebind<uint8_t, DF> d8;
  uint32_t smallest = FloatBits(largest);
  for (int i = 0; i < kWindowTokens; ++i) {
    for (int b = 0; b < subvectors; ++b) smallest = std::min(smallest, FloatBits(weights[i * stride + b]));
  }
  const uint32_t base = FactorBase(largest, BitsFloat(smallest));
  const int shift = (base & kWideFactors) != 0 ? kWideFactorShift : kFactorShift;
  const auto vbase = hn::Set(di, static_cast<int32_t>(base & ~kWideFactors)), half = hn::Set(di, 1 << (shift - 1));
  for (int i = 0; i < kWindowTokens; ++i) {
    alignas(64) uint8_t codes[kMaxHeadDim / 8];
    for (size_t b = 0; b < stride; b += kN) {
      const auto bits = hn::BitCast(di, hn::LoadU(DF(), weights + i * stride + b));
      const auto above = hn::Max(hn::Sub(bits, vbase), hn::Zero(di));
      hn::StoreU(hn::DemoteTo(d8, hn::ShiftRightSame(hn::Add(above, half), shift)), d8,
                 codes + b);  // saturates at 255
    }
    memcpy(fine + static_cast<size_t>(i) * fine_bytes + 3 * subvectors, codes, subvectors);
  }
  return base;
}

void EncodeRsqWindowImpl(const float* x, int dim, const RsqTables& tables, int coarse_bytes, uint8_t* coarse,
                         float* factor, uint8_t* fine, uint32_t* fine_base) {
  const int subvectors = dim / 8, fine_bytes = dim / 2;
  if (subvectors != coarse_bytes) memset(coarse, 0, static_cast<size_t>(kWindowTokens) * coarse_bytes);
  const size_t stride = static_cast<size_t>(subvectors + 15) / 16 * 16;
  alignas(64) float r2[16], alpha[16], weights[kWindowTokens * kMaxHeadDim / 8],
      alphas[kWindowTokens * kMaxHeadDim / 8];
  if (stride != static_cast<size_t>(subvectors)) memset(alphas, 0, sizeof(alphas)), memset(weights, 0, sizeof(weights));
  for (int i = 0; i < kWindowTokens; ++i, x += dim) {
    uint8_t* record = fine + static_cast<size_t>(i) * fine_bytes;
    uint8_t* row = coarse + (i / kTileTokens) * kTileTokens * coarse_bytes + (i % kTileTokens) * 4;
    F16 squares = Set16(0), absolutes = Set16(0);
    for (int b = 0; b < subvectors; b += 2) {
      const Bits bits = Encode16(x + b * 8, tables, squares, absolutes, r2, alpha);
      weights[i * stride + b] = r2[0];
      weights[i * stride + b + 1] = r2[8];
      alphas[i * stride + b] = alpha[0];
      alphas[i * stride + b + 1] = alpha[8];
      const auto put = [](uint8_t* at, uint32_t two) {
        const uint16_t v = static_cast<uint16_t>(two);
        memcpy(at, &v, 2);
      };
      put(row + (b / 4) * 64 + b % 4, bits.sign);
      for (int p = 0; p < 3; ++p) put(record + p * subvectors + b, bits.plane[p]);
    }
    const float l1 = Sum16(absolutes);
    factor[i] = l1 > 0 ? Sum16(squares) / l1 : 0.0f;
  }
  const float largest = MakeWeights(weights, alphas, kWindowTokens * stride);
  *fine_base = StoreWeights(weights, largest, stride, subvectors, fine_bytes, fine);
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(EncodeRsqWindowImpl);

void EncodeRsqWindow(const float* x, int dim, const RsqTables& tables, int coarse_bytes, uint8_t* coarse, float* factor,
                     uint8_t* fine, uint32_t* fine_base) {
  if (ScalarForced()) return scalar::EncodeRsqWindow(x, dim, tables, coarse_bytes, coarse, factor, fine, fine_base);
  HWY_DYNAMIC_DISPATCH(EncodeRsqWindowImpl)(x, dim, tables, coarse_bytes, coarse, factor, fine, fine_base);
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
