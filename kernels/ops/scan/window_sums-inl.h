// What the scan adds up of one window's 64 keys: table look-ups of their coarse codes, and of centres. Per-target
// header.
//
// sign_ip and every nibble code: each code byte indexes two tables of 16 entries of 7 bits. AVX-512 with VBMI and VNNI
// looks up four byte positions at once (vpermb over 64 entries, which is why a 32-bit lane holds four bytes of one key)
// and adds them in the lane (vpdpbusd): 8 instructions for 64 code bytes. Other targets turn tiles of 16 keys so that a
// vector holds one byte position, look up with in-lane shuffles, and add in 16 bits (2 * 127 * 64 < 2^16). collision:
// tier weights from 256-entry tables, by VBMI where it is and by plain look-ups elsewhere.
#if defined(SEINE_KERNELS_OPS_SCAN_WINDOW_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SEINE_KERNELS_OPS_SCAN_WINDOW_SUMS_INL_H_
#undef SEINE_KERNELS_OPS_SCAN_WINDOW_SUMS_INL_H_
#else
#define SEINE_KERNELS_OPS_SCAN_WINDOW_SUMS_INL_H_
#endif

#include <bit>

#include "hwy/highway.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/math.h"
#include "kernels/ops/rows/dot8-inl.h"
#include "kernels/ops/scan/scan.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL
#pragma GCC target("avx512vnni")  // Highway tests for it at run time but leaves it out of the target's options
#endif
namespace seine::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D8 = hn::CappedTag<uint8_t, 64>;
using V8 = hn::Vec<D8>;
inline constexpr size_t kLanes128 = HWY_MAX_BYTES >= 64 ? 4 : HWY_MAX_BYTES / 16;  // 128-bit lanes, one tile each

// Coarse codes of two later windows, asked for line by line while a window is summed. In a burst the requests would
// take every buffer that the window's own lines come through.
struct LaterWindows {
  const uint8_t* near;  // into the first cache
  const uint8_t* far;   // into the second
  HWY_INLINE void Fetch(size_t offset) const {
    Prefetch(near + offset);
    PrefetchFar(far + offset);
  }
};

// One 128-bit lane from each of kLanes128 tiles.
HWY_INLINE V8 LoadLanes(const uint8_t* p, size_t tile_bytes) {
  const D8 d;
#if HWY_MAX_BYTES >= 64
  const hn::Half<D8> d2;
  const hn::Half<decltype(d2)> d1;
  const auto low = hn::Combine(d2, hn::LoadU(d1, p + tile_bytes), hn::LoadU(d1, p));
  const auto high = hn::Combine(d2, hn::LoadU(d1, p + 3 * tile_bytes), hn::LoadU(d1, p + 2 * tile_bytes));
  return hn::Combine(d, high, low);
#elif HWY_MAX_BYTES >= 32
  const hn::Half<D8> d1;
  return hn::Combine(d, hn::LoadU(d1, p + tile_bytes), hn::LoadU(d1, p));
#else
  return hn::LoadU(d, p);
#endif
}

// Turns four vectors whose lanes hold 16 keys x 4 bytes (one tile a lane) into four with one byte position each.
HWY_INLINE void TurnTiles(const uint8_t* tiles, size_t tile_bytes, V8* out) {
  const D8 d;
  const hn::Repartition<uint32_t, D8> d32;
  const hn::Repartition<uint64_t, D8> d64;
  alignas(16) static constexpr uint8_t kGroup[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  const V8 group = hn::LoadDup128(d, kGroup);
  V8 v[4];
  for (size_t i = 0; i < 4; ++i) v[i] = hn::TableLookupBytes(LoadLanes(tiles + i * 16, tile_bytes), group);
  const auto lo01 = hn::InterleaveLower(d32, hn::BitCast(d32, v[0]), hn::BitCast(d32, v[1]));
  const auto lo23 = hn::InterleaveLower(d32, hn::BitCast(d32, v[2]), hn::BitCast(d32, v[3]));
  const auto hi01 = hn::InterleaveUpper(d32, hn::BitCast(d32, v[0]), hn::BitCast(d32, v[1]));
  const auto hi23 = hn::InterleaveUpper(d32, hn::BitCast(d32, v[2]), hn::BitCast(d32, v[3]));
  out[0] = hn::BitCast(d, hn::InterleaveLower(d64, hn::BitCast(d64, lo01), hn::BitCast(d64, lo23)));
  out[1] = hn::BitCast(d, hn::InterleaveUpper(d64, hn::BitCast(d64, lo01), hn::BitCast(d64, lo23)));
  out[2] = hn::BitCast(d, hn::InterleaveLower(d64, hn::BitCast(d64, hi01), hn::BitCast(d64, hi23)));
  out[3] = hn::BitCast(d, hn::InterleaveUpper(d64, hn::BitCast(d64, hi01), hn::BitCast(d64, hi23)));
}

#if HWY_TARGET == HWY_AVX3_DL

// kGroups: coarse_bytes / 4 if known at compile time, so that the tables stay in registers; else 0.
template <int kGroups>
HWY_INLINE void SumNibblesOf(const uint8_t* coarse, int coarse_bytes, const uint8_t* tables, LaterWindows later,
                             int32_t* sums) {
  const int groups = kGroups > 0 ? kGroups : coarse_bytes / 4;
  const __m512i low = _mm512_set1_epi8(15), position = _mm512_set1_epi32(0x30201000), ones = _mm512_set1_epi8(1);
  const __m512i start = _mm512_set1_epi32(-2 * kTableBias * 4 * groups);
  __m512i kept[2 * kGroups + 1];
  for (int i = 0; i < 2 * kGroups; ++i) kept[i] = _mm512_loadu_si512(tables + i * 64);
  const auto table = [&](int i) HWY_ATTR { return kGroups > 0 ? kept[i] : _mm512_loadu_si512(tables + i * 64); };
  for (size_t t = 0, line = 0; t < 4; ++t) {
    __m512i sum = start;
    for (int g = 0; g < groups; ++g, line += 64) {
      later.Fetch(line);
      __m512i v = _mm512_loadu_si512(coarse + line);
      asm("" : "+v"(v));  // GCC loads it a second time for the shift otherwise, and loads are what is scarce
      const __m512i lo = _mm512_ternarylogic_epi32(v, low, position, 0xEA);  // (v & low) | position
      const __m512i hi = _mm512_ternarylogic_epi32(_mm512_srli_epi16(v, 4), low, position, 0xEA);
      const __m512i both =
          _mm512_add_epi8(_mm512_permutexvar_epi8(lo, table(2 * g)), _mm512_permutexvar_epi8(hi, table(2 * g + 1)));
      sum = _mm512_dpbusd_epi32(sum, both, ones);
    }
    _mm512_store_si512(sums + t * 16, sum);
  }
}

HWY_INLINE void SumNibbles(const uint8_t* coarse, int coarse_bytes, const uint8_t* tables, LaterWindows later,
                           int32_t* sums) {
  if (coarse_bytes == 16) return SumNibblesOf<4>(coarse, coarse_bytes, tables, later, sums);
  if (coarse_bytes == 8) return SumNibblesOf<2>(coarse, coarse_bytes, tables, later, sums);
  SumNibblesOf<0>(coarse, coarse_bytes, tables, later, sums);
}

// Appends the keys of a window's mask, counted from the stride's first key, to `keys`; room for 64.
HWY_INLINE size_t AppendKeys(uint64_t mask, int first, uint16_t* keys) {
  alignas(64) static constexpr uint8_t kIota[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                                    32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                                    48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
  const __m512i found = _mm512_maskz_compress_epi8(mask, _mm512_load_si512(kIota)), start = _mm512_set1_epi16(first);
  const size_t count = static_cast<size_t>(_mm_popcnt_u64(mask));
  _mm512_storeu_si512(keys, _mm512_add_epi16(_mm512_cvtepu8_epi16(_mm512_castsi512_si256(found)), start));
  if (count > 32) {
    _mm512_storeu_si512(keys + 32, _mm512_add_epi16(_mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(found, 1)), start));
  }
  return count;
}

// <centre, query> of `rows` centres, four at a time so that their lanes are summed together: unsigned times signed, so
// a centre is shifted by 128 and the shift taken back.
HWY_INLINE void CentreDots(const int8_t* centres, const int8_t* query, int dim, int rows, int32_t* dots) {
  int row = 0;
  if (dim % 64 == 0) {
    const __m512i shift = _mm512_set1_epi8(-128);
    __m512i shifted = _mm512_setzero_si512();
    for (int i = 0; i < dim; i += 64) shifted = _mm512_dpbusd_epi32(shifted, shift, _mm512_loadu_si512(query + i));
    const __m128i taken = _mm_set1_epi32(_mm512_reduce_add_epi32(shifted));  // 128 * sum of q
    for (; row + 4 <= rows; row += 4, centres += 4 * static_cast<size_t>(dim)) {
      __m512i sum[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
      for (int i = 0; i < dim; i += 64) {
        const __m512i q = _mm512_loadu_si512(query + i);
        for (int r = 0; r < 4; ++r) {
          const __m512i c = _mm512_loadu_si512(centres + static_cast<size_t>(r) * dim + i);
          sum[r] = _mm512_dpbusd_epi32(sum[r], _mm512_xor_si512(c, shift), q);
        }
      }
      const __m512i low =
          _mm512_add_epi32(_mm512_unpacklo_epi32(sum[0], sum[1]), _mm512_unpackhi_epi32(sum[0], sum[1]));
      const __m512i high =
          _mm512_add_epi32(_mm512_unpacklo_epi32(sum[2], sum[3]), _mm512_unpackhi_epi32(sum[2], sum[3]));
      const __m512i four =
          _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));  // rows 0 to 3 a lane
      const __m256i two = _mm256_add_epi32(_mm512_castsi512_si256(four), _mm512_extracti64x4_epi64(four, 1));
      const __m128i one = _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(dots + row), _mm_sub_epi32(one, taken));
    }
  }
  for (; row < rows; ++row, centres += dim) dots[row] = Dot8Inline(centres, query, dim);
}

HWY_INLINE void SumTiers(const uint8_t* coarse, int coarse_bytes, const uint8_t* tiers, LaterWindows later,
                         int32_t* sums) {
  __m512i sum = _mm512_setzero_si512();
  for (int g = 0; g < coarse_bytes / 4; ++g) {
    for (int t = 0; t < 4; ++t) later.Fetch(g * 256 + t * 64);
    V8 v[4];
    TurnTiles(coarse + g * 64, static_cast<size_t>(kTileTokens) * coarse_bytes, v);
    for (int p = 0; p < 4; ++p) {
      const uint8_t* table = tiers + (g * 4 + p) * 256;
      const __m512i x = v[p].raw;
      const __m512i below = _mm512_permutex2var_epi8(_mm512_loadu_si512(table), x, _mm512_loadu_si512(table + 64));
      const __m512i above =
          _mm512_permutex2var_epi8(_mm512_loadu_si512(table + 128), x, _mm512_loadu_si512(table + 192));
      sum = _mm512_add_epi8(sum, _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), below, above));  // at most 6 * 32
    }
  }
  alignas(64) uint8_t bytes[64];
  _mm512_store_si512(bytes, sum);
  for (int i = 0; i < 64; ++i) sums[i] = bytes[i];
}

#else

HWY_INLINE void SumNibbles(const uint8_t* coarse, int coarse_bytes, const uint8_t* tables, LaterWindows later,
                           int32_t* sums) {
  const D8 d;
  const hn::Repartition<uint16_t, D8> d16;
  const V8 low = hn::Set(d, uint8_t{15});
  const auto even_mask = hn::Set(d16, uint16_t{255});
  const size_t tile_bytes = static_cast<size_t>(kTileTokens) * coarse_bytes;
  for (size_t t = 0; t < 4; t += kLanes128) {
    auto even = hn::Zero(d16), odd = hn::Zero(d16);
    for (int g = 0; g < coarse_bytes / 4; ++g) {
      for (size_t l = 0; l < kLanes128; ++l) later.Fetch((t + l) * tile_bytes + g * 64);
      V8 v[4];
      TurnTiles(coarse + t * tile_bytes + g * 64, tile_bytes, v);
      for (int p = 0; p < 4; ++p) {
        const V8 table_lo = hn::LoadDup128(d, tables + g * 128 + p * 16);
        const V8 table_hi = hn::LoadDup128(d, tables + g * 128 + 64 + p * 16);
        const V8 hi = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, v[p]))), low);
        const V8 both = hn::Add(hn::TableLookupBytes(table_lo, hn::And(v[p], low)), hn::TableLookupBytes(table_hi, hi));
        even = hn::Add(even, hn::And(hn::BitCast(d16, both), even_mask));
        odd = hn::Add(odd, hn::ShiftRight<8>(hn::BitCast(d16, both)));
      }
    }
    // A lane holds one tile: its first 8 keys interleave in the lower half, the others in the upper.
    alignas(64) uint16_t halves[2][32];
    hn::Store(hn::InterleaveLower(d16, even, odd), d16, halves[0]);
    hn::Store(hn::InterleaveUpper(d16, even, odd), d16, halves[1]);
    const hn::CappedTag<int32_t, 8> d32;
    const hn::Rebind<uint16_t, decltype(d32)> d32_16;
    const auto bias = hn::Set(d32, 2 * kTableBias * coarse_bytes);
    for (size_t l = 0; l < kLanes128; ++l) {
      for (size_t i = 0; i < 16; i += hn::Lanes(d32)) {
        const auto sum = hn::PromoteTo(d32, hn::LoadU(d32_16, halves[i / 8] + l * 8 + i % 8));
        hn::StoreU(hn::Sub(sum, bias), d32, sums + (t + l) * 16 + i);
      }
    }
  }
}

HWY_INLINE size_t AppendKeys(uint64_t mask, int first, uint16_t* keys) {
  size_t count = 0;
  for (; mask != 0; mask &= mask - 1) keys[count++] = static_cast<uint16_t>(first + std::countr_zero(mask));
  return count;
}

HWY_INLINE void CentreDots(const int8_t* centres, const int8_t* query, int dim, int rows, int32_t* dots) {
  for (int row = 0; row < rows; ++row, centres += dim) dots[row] = Dot8Inline(centres, query, dim);
}

HWY_INLINE void SumTiers(const uint8_t* coarse, int coarse_bytes, const uint8_t* tiers, LaterWindows later,
                         int32_t* sums) {
  for (int b = 0; b < kWindowTokens * coarse_bytes; b += 64) later.Fetch(b);
  scalar::SumTiers(coarse, coarse_bytes, tiers, sums);
}

#endif

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
