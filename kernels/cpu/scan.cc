// Stage I: the scan of the coarse plane, for every Highway target.
//
// sign_ip and every nibble code: each code byte indexes two tables of 16 entries of 7 bits. AVX-512 with VBMI and VNNI
// looks up four byte positions at once (vpermb over 64 entries, which is why a 32-bit lane holds four bytes of one key)
// and adds them in the lane (vpdpbusd): 8 instructions for 64 code bytes. Other targets turn tiles of 16 keys so that a
// vector holds one byte position, look up with in-lane shuffles, and add in 16 bits (2 * 127 * 64 < 2^16). collision:
// tier weights from 256-entry tables, by VBMI where it is and by plain look-ups elsewhere.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/scan.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/dot8-inl.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/scalar.h"
#include "kernels/math.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL
#pragma GCC target("avx512vnni")  // Highway tests for it at run time but leaves it out of the target's options
#endif
namespace seine::cpu::HWY_NAMESPACE {

using D8 = hn::CappedTag<uint8_t, 64>;
using V8 = hn::Vec<D8>;
inline constexpr size_t kLanes128 = HWY_MAX_BYTES >= 64 ? 4 : HWY_MAX_BYTES / 16;  // 128-bit lanes, one tile each

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

HWY_INLINE void SumNibbles(const uint8_t* coarse, int coarse_bytes, const uint8_t* tables, int32_t* sums) {
  const __m512i low = _mm512_set1_epi8(15), position = _mm512_set1_epi32(0x30201000), ones = _mm512_set1_epi8(1);
  const int groups = coarse_bytes / 4;
  const __m512i start = _mm512_set1_epi32(-2 * kTableBias * coarse_bytes);
  __m512i sum[4] = {start, start, start, start};
  for (int g = 0; g < groups; ++g) {
    const __m512i table_lo = _mm512_loadu_si512(tables + g * 128), table_hi = _mm512_loadu_si512(tables + g * 128 + 64);
    for (int t = 0; t < 4; ++t) {
      __m512i v = _mm512_loadu_si512(coarse + t * kTileTokens * coarse_bytes + g * 64);
      asm("" : "+v"(v));  // GCC loads it a second time for the shift otherwise, and loads are what is scarce
      const __m512i lo = _mm512_ternarylogic_epi32(v, low, position, 0xEA);  // (v & low) | position
      const __m512i hi = _mm512_ternarylogic_epi32(_mm512_srli_epi16(v, 4), low, position, 0xEA);
      const __m512i both =
          _mm512_add_epi8(_mm512_permutexvar_epi8(lo, table_lo), _mm512_permutexvar_epi8(hi, table_hi));
      sum[t] = _mm512_dpbusd_epi32(sum[t], both, ones);
    }
  }
  for (int t = 0; t < 4; ++t) _mm512_store_si512(sums + t * 16, sum[t]);
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

HWY_INLINE void SumTiers(const uint8_t* coarse, int coarse_bytes, const uint8_t* tiers, int32_t* sums) {
  __m512i sum = _mm512_setzero_si512();
  for (int g = 0; g < coarse_bytes / 4; ++g) {
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

HWY_INLINE void SumNibbles(const uint8_t* coarse, int coarse_bytes, const uint8_t* tables, int32_t* sums) {
  const D8 d;
  const hn::Repartition<uint16_t, D8> d16;
  const V8 low = hn::Set(d, uint8_t{15});
  const auto even_mask = hn::Set(d16, uint16_t{255});
  const size_t tile_bytes = static_cast<size_t>(kTileTokens) * coarse_bytes;
  for (size_t t = 0; t < 4; t += kLanes128) {
    auto even = hn::Zero(d16), odd = hn::Zero(d16);
    for (int g = 0; g < coarse_bytes / 4; ++g) {
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

HWY_INLINE void SumTiers(const uint8_t* coarse, int coarse_bytes, const uint8_t* tiers, int32_t* sums) {
  scalar::SumTiers(coarse, coarse_bytes, tiers, sums);
}

#endif

// Keys scanned in one go: their scores stay in the first cache, and their windows' bases are found together.
inline constexpr int kStride = 1024;
inline constexpr int kStrideWindows = kStride / kWindowTokens;

// Asks for what the scan of one window reads beside its centre.
HWY_INLINE void FetchWindow(const CodeLayout& layout, const ConstCodePlanes& planes, size_t key) {
  const size_t bytes = static_cast<size_t>(kWindowTokens) * layout.coarse_bytes;
  const uint8_t* coarse = planes.coarse + key / kWindowTokens * bytes;
  for (size_t b = 0; b < bytes; b += 64) PrefetchFar(coarse + b);
  PrefetchFar(planes.factor + key);
  PrefetchFar(planes.factor_base + key / kWindowTokens);
}

// Asks for the centres of the stride at `key`.
HWY_INLINE void FetchCentres(const CodeLayout& layout, const ConstCodePlanes& planes, int key, int end) {
  if (planes.centre == nullptr) return;
  const int first = key / layout.centre_tokens, last = (std::min(end, key + kStride) - 1) / layout.centre_tokens;
  const size_t dim = layout.head_dim;
  for (size_t b = first * dim; b < (last + 1) * dim; b += 64) PrefetchFar(planes.centre + b);
  PrefetchFar(planes.centre_scale + first);
}

// <q, centre> / coarse_step of windows [begin, end), at most kStride keys.
HWY_INLINE void WindowBases(const ScanArgs& a, int begin, int end, float* bases) {
  const int windows = (end - begin) / kWindowTokens, tokens = a.layout->centre_tokens;
  if (a.planes.centre == nullptr) {
    for (int w = 0; w < windows; ++w) bases[w] = a.shared_base;
    return;
  }
  const float unit = a.query->coarse_step > 0 ? a.query->query8_step / a.query->coarse_step : 0.0f;
  const int first = begin / tokens, rows = (end - 1) / tokens - first + 1;
  const float* scales = a.planes.centre_scale + first;
  int32_t dots[kStrideWindows];
  CentreDots(a.planes.centre + static_cast<size_t>(first) * a.layout->head_dim, a.query->query8.data(),
             a.layout->head_dim, rows, dots);
  if (tokens == kWindowTokens) {
    for (int w = 0; w < windows; ++w) bases[w] = static_cast<float>(dots[w]) * (scales[w] * unit);
    return;
  }
  for (int w = 0; w < windows; ++w) {
    const int row = (begin + w * kWindowTokens) / tokens - first;
    bases[w] = static_cast<float>(dots[row]) * (scales[row] * unit);
  }
}

// Windows [begin, end) of a.planes one after another, at most kStride keys: their bases, then use(key, t, scores of
// keys begin + key + t and the 15 after it) for each tile of the window at begin + key.
template <typename Use>
HWY_INLINE void ForEachTile(const ScanArgs& a, int begin, int end, float* bases, Use use) {
  const CodeLayout& layout = *a.layout;
  const int coarse_bytes = layout.coarse_bytes;
  const size_t window_bytes = static_cast<size_t>(kWindowTokens) * coarse_bytes;
  // How far ahead memory is asked decides how many lines are under way: at 1M keys and one bit a coordinate a key costs
  // .95 ns with 5 KB ahead, .77 with 10, .63 with 20 (the speed of plain reads), .71 with 40. Never beyond what is
  // known to be scanned next. Centres are read for a whole stride at its start.
  constexpr size_t kAhead = 20 << 10;
  const size_t read_bytes = window_bytes + kWindowTokens + (a.planes.centre != nullptr ? layout.head_dim : 0);
  const size_t ahead = std::min<size_t>(kAhead / read_bytes, 32) * kWindowTokens;
  const size_t left = a.end - begin, next = a.next_keys;  // keys here and, after them, in what is scanned next
  const uint8_t* coarse = a.planes.coarse + begin / kWindowTokens * window_bytes;
  const uint8_t *factor = a.planes.factor + begin, *tables = a.query->tables.data();
  const uint32_t* factor_bases = a.planes.factor_base + begin / kWindowTokens;
  WindowBases(a, begin, end, bases);
  if (end < a.end) {
    FetchCentres(layout, a.planes, end, a.end);
  } else if (next > 0) {
    FetchCentres(layout, *a.next, 0, a.next_keys);
  }
  const DF d;
  const hn::Rebind<int32_t, DF> di;
  const hn::Rebind<uint8_t, DF> d8;
  const size_t keys = end - begin;
  for (size_t key = 0; key < keys; key += kWindowTokens, coarse += window_bytes) {
    if (key + ahead < left) {
      FetchWindow(layout, a.planes, begin + key + ahead);
    } else if (key + ahead < left + next) {
      FetchWindow(layout, *a.next, key + ahead - left);
    }
    alignas(64) int32_t sums[kWindowTokens];
    if (a.tiers) {
      SumTiers(coarse, coarse_bytes, a.tiers, sums);
      for (size_t t = 0; t < kWindowTokens; t += 16) {
        use(key, t, Map([&](size_t i) HWY_ATTR { return hn::ConvertTo(d, hn::Load(di, sums + t + i * kN)); }));
      }
      continue;
    }
    SumNibbles(coarse, coarse_bytes, tables, sums);
    const auto factor_base = hn::Set(di, static_cast<int32_t>(factor_bases[key / kWindowTokens]));
    const VF window_base = hn::Set(d, bases[key / kWindowTokens]);
    for (size_t t = 0; t < kWindowTokens; t += 16) {
      use(key, t, Map([&](size_t i) HWY_ATTR {
            const VF sum = hn::ConvertTo(d, hn::Load(di, sums + t + i * kN));
            const auto code = hn::PromoteTo(di, hn::LoadU(d8, factor + key + t + i * kN));
            const VF f = hn::BitCast(d, hn::Add(hn::ShiftLeft<kFactorShift>(code), factor_base));
            return hn::Add(window_base, hn::Mul(f, sum));
          }));
    }
  }
}

void ScanScoresImpl(const ScanArgs& a, float* scores, float* bases) {
  for (int begin = a.begin, end; begin < a.end; begin = end) {
    end = a.end - begin < kStride ? a.end : begin + kStride;
    ForEachTile(a, begin, end, bases + (begin - a.begin) / kWindowTokens,
                [&](size_t key, size_t t, const F16& s) HWY_ATTR { Store16(s, scores + (begin - a.begin) + key + t); });
  }
}

inline constexpr size_t kWriteAhead =
    64;  // candidates whose place is fetched before they are written: lists may be cold

// Coarse bytes of the listed keys, from their tiles to rows. kWords: 32-bit words a row if known at compile time,
// else 1.
template <int kWords>
HWY_INLINE void CopyRows(const uint8_t* coarse, int words, const uint16_t* keys, size_t count,
                         uint8_t* HWY_RESTRICT rows) {
  const size_t row_words = kWords > 1 ? kWords : words;
  for (size_t c = 0; c < count; ++c, rows += row_words * 4) {
    const uint32_t key = keys[c];
    const uint8_t* from = coarse + key / kTileTokens * (kTileTokens * 4 * row_words) + key % kTileTokens * 4;
    PrefetchWrite(rows + kWriteAhead * row_words * 4);
    for (size_t w = 0; w < row_words; ++w) memcpy(rows + w * 4, from + w * 64, 4);
  }
}

// A stride at a time: all scores are written, and the keys of those above listed without a branch; then the listed
// keys' scores, bases and coarse bytes are copied.
void ScanAboveImpl(const ScanArgs& a, float threshold, uint32_t first_index, Candidates* out) {
  const int row_bytes = a.layout->coarse_bytes;
  const VF limit = hn::Set(DF(), threshold);
  alignas(64) float scores[kStride], bases[kStrideWindows];
  alignas(64) uint16_t keys[kStride + kWindowTokens];
  for (int begin = a.begin, end; begin < a.end; begin = end) {
    end = a.end - begin < kStride ? a.end : begin + kStride;
    uint64_t above = 0;
    size_t count = 0;
    ForEachTile(a, begin, end, bases, [&](size_t key, size_t t, const F16& s) HWY_ATTR {
      Store16(s, scores + key + t);
      MF masks[kParts];
      for (size_t i = 0; i < kParts; ++i) masks[i] = hn::Ge(s.v[i], limit);
      above |= static_cast<uint64_t>(Bits16(masks)) << t;
      if (t != kWindowTokens - kTileTokens) return;
      count += AppendKeys(above, static_cast<int>(key), keys + count);
      above = 0;
    });
    const size_t first = out->size;
    const uint8_t* coarse = a.planes.coarse + static_cast<size_t>(begin) * row_bytes;
    uint8_t* rows = out->rows.data() + first * row_bytes;
    if (row_bytes == 16) {
      CopyRows<4>(coarse, 4, keys, count, rows);
    } else if (row_bytes == 8) {
      CopyRows<2>(coarse, 2, keys, count, rows);
    } else {
      CopyRows<1>(coarse, row_bytes / 4, keys, count, rows);
    }
    uint32_t* index = out->index.data() + first;
    float *coarse_score = out->coarse.data() + first, *base = out->base.data() + first;
    for (size_t c = 0; c < count; c += 16) {
      PrefetchWrite(index + c + kWriteAhead);
      PrefetchWrite(coarse_score + c + kWriteAhead);
      PrefetchWrite(base + c + kWriteAhead);
    }
    const uint32_t start = first_index + static_cast<uint32_t>(begin);
    for (size_t c = 0; c < count; ++c) {
      const uint32_t key = keys[c];
      index[c] = start + key;
      coarse_score[c] = scores[key];
      base[c] = bases[key / kWindowTokens];
    }
    out->size = first + count;
  }
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {
namespace {

// The plain twin of both scans: the same windows, one key at a time.
template <typename Use>
void ScalarScan(const ScanArgs& a, Use use) {
  const CodeLayout& layout = *a.layout;
  const float unit = a.query->coarse_step > 0 ? a.query->query8_step / a.query->coarse_step : 0.0f;
  for (int key = a.begin; key < a.end; key += kWindowTokens) {
    const uint8_t* coarse = a.planes.coarse + static_cast<size_t>(key) * layout.coarse_bytes;
    float base = a.shared_base;
    if (a.planes.centre != nullptr) {
      const int row = key / layout.centre_tokens;
      const int32_t dot = scalar::Dot8(a.planes.centre + static_cast<size_t>(row) * layout.head_dim,
                                       a.query->query8.data(), layout.head_dim);
      base = static_cast<float>(dot) * (a.planes.centre_scale[row] * unit);
    }
    int32_t sums[kWindowTokens];
    if (a.tiers) {
      scalar::SumTiers(coarse, layout.coarse_bytes, a.tiers, sums);
    } else {
      scalar::SumNibbles(coarse, layout.coarse_bytes, a.query->tables.data(), sums);
    }
    for (int i = 0; i < kWindowTokens; ++i) {
      const float sum = static_cast<float>(sums[i]);
      const float f = DecodeFactor(a.planes.factor[key + i], a.planes.factor_base[key / kWindowTokens]);
      use(key + i, base, a.tiers ? sum : base + f * sum);
    }
  }
}

}  // namespace

HWY_EXPORT(ScanScoresImpl);
HWY_EXPORT(ScanAboveImpl);

void ScanScores(const ScanArgs& a, float* scores, float* bases) {
  if (!ScalarForced()) return HWY_DYNAMIC_DISPATCH(ScanScoresImpl)(a, scores, bases);
  ScalarScan(a, [&](int key, float base, float score) {
    scores[key - a.begin] = score;
    bases[(key - a.begin) / kWindowTokens] = base;
  });
}

void ScanAbove(const ScanArgs& a, float threshold, uint32_t first_index, Candidates* out) {
  if (!ScalarForced()) return HWY_DYNAMIC_DISPATCH(ScanAboveImpl)(a, threshold, first_index, out);
  ScalarScan(a, [&](int key, float base, float score) {
    if (!(score >= threshold)) return;
    out->index[out->size] = first_index + static_cast<uint32_t>(key);
    out->coarse[out->size] = score;
    out->base[out->size] = base;
    CopyCoarseRow(a.planes.coarse, a.layout->coarse_bytes, key, out->rows.data() + out->size * a.layout->coarse_bytes);
    ++out->size;
  });
}

void CountCodes(const ConstCodePlanes& planes, const CodeLayout& layout, int begin, int end, int sign,
                uint32_t* counts) {
  uint8_t row[kMaxHeadDim / 8];
  for (int key = begin; key < end; ++key) {
    CopyCoarseRow(planes.coarse, layout.coarse_bytes, key, row);
    for (int b = 0; b < layout.head_dim / 8; ++b) counts[b * 256 + row[b]] += static_cast<uint32_t>(sign);
  }
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
