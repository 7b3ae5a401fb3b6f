// Every scalar formula of the kernels, once, for host and device. SIMD and CUDA twins must give the same bits.
//
// Symbols: k key, q query, c centre, x = k - c, x~ = rotated x, q~ = rotated q, D head_dim, m = 8 coordinates a
// subvector, B = D / 8 subvectors, a[t] magnitude levels, tau[t] thresholds, r_b = |x~_b|, w_b the RSQ weight, f the
// 1-bit factor.
#ifndef SEINE_KERNELS_MATH_H_
#define SEINE_KERNELS_MATH_H_

#include <math.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/types.h"

namespace seine {

SEINE_HD inline uint32_t FloatBits(float v) {
  uint32_t u;
  memcpy(&u, &v, 4);
  return u;
}
SEINE_HD inline float BitsFloat(uint32_t u) {
  float v;
  memcpy(&v, &u, 4);
  return v;
}

// bfloat16, round to nearest even. Finite input; overflow becomes infinity as IEEE says.
SEINE_HD inline uint16_t FloatToBf16(float v) {
  const uint32_t u = FloatBits(v);
  return static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}
SEINE_HD inline float Bf16ToFloat(uint16_t h) { return BitsFloat(static_cast<uint32_t>(h) << 16); }

// IEEE half to float, exact, subnormals included.
SEINE_HD inline float HalfToFloat(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u, mantissa = h & 1023u;
  if (exponent == 31) return BitsFloat(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return BitsFloat(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float v = static_cast<float>(mantissa) * BitsFloat(0x33800000u);  // mantissa * 2^-24
  return sign ? -v : v;
}
// Float to IEEE half, round to nearest even, subnormals included; overflow becomes infinity.
SEINE_HD inline uint16_t FloatToHalf(float v) {
  const uint32_t bits = FloatBits(v), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | (magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u));
  // Below 2^-14 halves are subnormal: multiples of 2^-24, which is the unit in the last place of 2^-1.
  if (magnitude < 0x38800000u)
    return static_cast<uint16_t>(sign | (FloatBits(BitsFloat(magnitude) + 0.5f) - 0x3F000000u));
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13));
}

// SplitMix64 (Steele, Lea, Flood 2014): bit i of the SRHT's sign stream is the top bit of the i-th output.
SEINE_HD inline uint64_t SplitMix64(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
SEINE_HD inline float RotationSign(uint64_t seed, uint64_t i) { return (SplitMix64(seed, i) >> 63) ? -1.0f : 1.0f; }

// Per-key factor in one byte: a logarithmic minifloat of 8 octaves below the window's largest factor, 32 steps an
// octave (relative error at most 1/64). The float's own bit pattern serves as the logarithm, so decoding is a shift and
// an add. Where a factor of the window lies further down, the base's sign bit is set: 16 octaves of 16 steps (1/32),
// and code 0 is 0. Factors are not negative.
inline constexpr int kFactorShift = 18, kWideFactorShift = 19;
inline constexpr uint32_t kWideFactors = 1u << 31;
SEINE_HD inline uint32_t FactorBase(float largest, float smallest) {
  const uint32_t top = FloatBits(largest), span = 255u << kFactorShift, wide_span = 255u << kWideFactorShift;
  const uint32_t base = top > span ? top - span : 0u;
  if (FloatBits(smallest) >= base) return base;
  return (top > wide_span ? top - wide_span : 0u) | kWideFactors;
}
SEINE_HD inline uint8_t EncodeFactor(float f, uint32_t base) {
  const int shift = (base & kWideFactors) != 0 ? kWideFactorShift : kFactorShift;
  const uint32_t bits = FloatBits(f), least = base & ~kWideFactors;
  if (bits <= least) return 0;
  const uint32_t code = (bits - least + (1u << (shift - 1))) >> shift;
  return static_cast<uint8_t>(code < 255u ? code : 255u);
}
SEINE_HD inline float DecodeFactor(uint8_t code, uint32_t base) {
  if ((base & kWideFactors) == 0) return BitsFloat(base + (static_cast<uint32_t>(code) << kFactorShift));
  return code == 0 ? 0.0f : BitsFloat((base & ~kWideFactors) + (static_cast<uint32_t>(code) << kWideFactorShift));
}

// int8 with one scale a vector: x is stored as round(x * inverse), half away from zero; step is a unit's true value.
// Both 0 for a zero vector, and for one so small that its scale is beyond fp32.
struct Scale8 {
  float inverse, step;
};
SEINE_HD inline Scale8 Scale8Of(float largest) {  // largest |x|
  const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
  if (!(inverse - inverse == 0.0f)) return {0.0f, 0.0f};
  return {inverse, largest / 127.0f};
}
SEINE_HD inline int8_t ToInt8(float x, float inverse) {
  const float v = x * inverse;
  return static_cast<int8_t>(static_cast<int>(v + (v < 0 ? -0.5f : 0.5f)));
}

// Round half away from zero, |v| < 2^31.
SEINE_HD inline int32_t RoundAway(float v) { return static_cast<int32_t>(v + (v < 0 ? -0.5f : 0.5f)); }

// The balanced encoder's fixed point: a row of squared norm `squares` times `forth` has norm 32,000; `back` is the true
// value of its unit. Both 0 for a row that is zero, or whose square is beyond fp32.
inline constexpr float kBalancedRowNorm = 32000.0f, kBalancedColumnNorm = 65000.0f;
struct BalancedScale {
  float forth, back;
};
SEINE_HD inline BalancedScale ScaleOf(float squares) {
  const float norm = std::sqrt(squares);
  if (!(norm > 0) || !(norm - norm == 0.0f)) return {0.0f, 0.0f};
  return {kBalancedRowNorm / norm, norm / kBalancedRowNorm};
}

// Nibble table entries: 7 bits with bias 64, so that two entries of a byte add up within 8 bits.
inline constexpr int kTableBias = 64;
inline constexpr int kTableMax = 63;
// Scale of a query's tables, from the largest |sum|: both 0 where it is 0, or too small for fp32.
struct TableScale {
  float inverse, step;
};
SEINE_HD inline TableScale TableScaleOf(float largest) {
  const float most = static_cast<float>(kTableMax), inverse = largest > 0 ? most / largest : 0.0f;
  if (!(inverse > 0) || !(inverse - inverse == 0.0f)) return {0.0f, 0.0f};
  return {inverse, largest / most};
}
SEINE_HD inline uint8_t TableEntry(float sum, float inverse) {
  return static_cast<uint8_t>(static_cast<int>(sum * inverse + (static_cast<float>(kTableBias) + 0.5f)));
}

// A float's place among all floats as an unsigned integer, -0 and 0 the same; and back.
SEINE_HD inline uint32_t OrderedBits(float v) {
  const uint32_t u = FloatBits(v + 0.0f);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}
SEINE_HD inline float OrderedFloat(uint32_t u) { return BitsFloat(u & 0x80000000u ? u & 0x7FFFFFFFu : ~u); }

// e^x for x <= 0 by 2^n * p(r), relative error below 3e-7, 0 under -87. One fixed order of operations, no fused
// multiply-add: the softmax sums that choose tokens are then the same everywhere.
SEINE_HD inline float ExpNonPositive(float x) {
  if (!(x > -87.0f)) return 0.0f;
  const float t = x * 1.44269504f - 0.5f;
  const int n = static_cast<int>(t);  // truncation towards zero of a non-positive number
  const float r = (x - static_cast<float>(n) * 0.693359375f) + static_cast<float>(n) * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  return p * BitsFloat(static_cast<uint32_t>(n + 127) << 23);
}

// Eviction scores from a key's sums. KeyDiff (equation 8): -cos(k, a) = -<k, a> / |k| for an anchor of norm 1. A zero
// key has cosine 0.
inline constexpr float kLargestFloat = 3.402823466e38f;
SEINE_HD inline float NegCosine(float dot, float squares) { return squares > 0 ? 0.0f - dot / sqrtf(squares) : 0.0f; }
// ManifoldKV (equation 3): |k - a| from its square, which may overflow where |k|^2 does not.
SEINE_HD inline float RootOfSquare(float square) { return sqrtf(square < kLargestFloat ? square : kLargestFloat); }
// |k / |k| - a|^2 = 1 - 2 <k, a> / |k| + |a|^2, which rounding may take below 0.
SEINE_HD inline float UnitDistance(float dot, float squares, float anchor_squares) {
  if (!(squares > 0)) return sqrtf(anchor_squares);
  const float square = (1.0f + anchor_squares) - 2.0f * (dot / sqrtf(squares));
  return sqrtf(square > 0 ? square : 0.0f);
}
// 1 / |k|, 0 for a zero key.
SEINE_HD inline float InverseNorm(float squares) { return squares > 0 ? 1.0f / sqrtf(squares) : 0.0f; }
// Natural logarithm of a positive normal number, absolute error below 2e-7 plus half an ulp: with x = 2^e m, m around
// 1, ln m = 2 artanh s, s = (m - 1) / (m + 1), as a series to s^9. One fixed order of operations, like ExpNonPositive.
SEINE_HD inline float LogPositive(float x) {
  const uint32_t bits = FloatBits(x);
  int e = static_cast<int>(bits >> 23) - 127;
  float m = BitsFloat((bits & 0x7FFFFFu) | 0x3F800000u);
  if (m > 1.41421356f) {
    m = m * 0.5f;
    e = e + 1;
  }
  const float s = (m - 1.0f) / (m + 1.0f), z = s * s;
  float p = 0.111111111f;
  p = p * z + 0.142857143f;
  p = p * z + 0.2f;
  p = p * z + 0.333333333f;
  p = (p * z) * s + s;
  const float n = static_cast<float>(e);
  return (2.0f * p + n * -2.12194440e-4f) + n * 0.693359375f;
}

}  // namespace seine

#endif  // SEINE_KERNELS_MATH_H_
