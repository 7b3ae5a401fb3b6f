// Products of 7-bit levels with int8 weights, summed by fours in int32, and sums of their lanes. Per-target header.
#if defined(SEINE_KERNELS_CPU_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SEINE_KERNELS_CPU_PRODUCTS_INL_H_
#undef SEINE_KERNELS_CPU_PRODUCTS_INL_H_
#else
#define SEINE_KERNELS_CPU_PRODUCTS_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL
#pragma GCC target("avx512vnni")  // Highway tests for it at run time but leaves it out of the target's options
#endif
namespace seine::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Each 32-bit lane of the result: the sum over its four bytes of level * weight. levels in [0, 127], weights in
// [-127, 127].
template <class D8, class V8, class VI8>
HWY_INLINE auto LevelProducts(D8, V8 levels, VI8 weights) {
  const hn::Repartition<int32_t, D8> d32;
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (sizeof(levels) ==
                64) {  // the 512-bit form only: GCC codes shorter ones as AVX-VNNI, which may be missing
    hn::Vec<decltype(d32)> sums;
    sums.raw = _mm512_dpbusd_epi32(_mm512_setzero_si512(), levels.raw, weights.raw);
    return sums;
  }
#endif
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_SSE4
  // Unsigned times signed bytes, two products a 16-bit lane: 2 * 127 * 127 fits.
  hn::Vec<decltype(d32)> sums;
  if constexpr (sizeof(levels) == 16) {
    sums.raw = _mm_madd_epi16(_mm_maddubs_epi16(levels.raw, weights.raw), _mm_set1_epi16(1));
  }
#if HWY_MAX_BYTES >= 32
  if constexpr (sizeof(levels) == 32) {
    sums.raw = _mm256_madd_epi16(_mm256_maddubs_epi16(levels.raw, weights.raw), _mm256_set1_epi16(1));
  }
#endif
#if HWY_MAX_BYTES >= 64
  if constexpr (sizeof(levels) == 64) {
    sums.raw = _mm512_madd_epi16(_mm512_maddubs_epi16(levels.raw, weights.raw), _mm512_set1_epi16(1));
  }
#endif
  return sums;
#else
  // Bytes of each 16-bit lane apart, multiplied in 16 bits: |127 * 127| twice fits, four times only in 32.
  const hn::Repartition<int16_t, D8> d16;
  const hn::Repartition<int8_t, D8> di8;
  const auto l16 = hn::BitCast(d16, levels), w16 = hn::BitCast(d16, hn::BitCast(di8, weights));
  const auto level_even = hn::And(l16, hn::Set(d16, int16_t{255})), level_odd = hn::ShiftRight<8>(l16);
  const auto weight_even = hn::ShiftRight<8>(hn::ShiftLeft<8>(w16)), weight_odd = hn::ShiftRight<8>(w16);
  const auto pairs = hn::Add(hn::Mul(level_even, weight_even), hn::Mul(level_odd, weight_odd));
  const auto pairs32 = hn::BitCast(d32, pairs);
  return hn::Add(hn::ShiftRight<16>(hn::ShiftLeft<16>(pairs32)), hn::ShiftRight<16>(pairs32));
#endif
}

#if HWY_TARGET == HWY_AVX3_DL
// Lane i: the sum of the lanes of s[i].
HWY_INLINE __m128i SumsOf4(const __m512i (&s)[4]) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
  const __m512i abcd = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(abcd), _mm512_extracti64x4_epi64(abcd, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}
#endif

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
