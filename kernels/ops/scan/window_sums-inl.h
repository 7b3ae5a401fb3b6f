// What the scan adds up of one window's 64 keys: table look-ups of their coarse codes, and of centres. Per-target
// header.
//
// sign_ip and every nibble code: each code byte indexes two tables of 16 entries of 7 bits. AVX-512 with VBMI and VNNI
// looks up four byte positions at once (vpermb over 64 entries, which is why a 32-bit lane holds four bytes of one key)
// and adds them in the lane (vpdpbusd): 8 instructions for 64 code bytes. Other targets turn tiles of 16 keys so that a
// vector holds one byte position, look up with in-lane shuffles, and add in 16 bits (2 * 127 * 64 < 2^15). collision:
// tier weights from 256-entry tables, by VBMI where it is and by plain look-ups elsewhere.
#if defined(SEINE_KERNELS_OPS_SCAN_WINDOW_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SEINE_KERNELS_OPS_SCAN_WINDOW_SUMS_INL_H_
#undef SEINE_KERNELS_OPS_SCAN_WINDOW_SUMS_INL_H_
#else
#define SEINE_KERNELS_OPS_SCAN_WINDOW_SUMS_INL_H_
#endif

#include <bit>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/bytes-inl.h"
#include "kernels/cpu/products-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/math.h"
#include "kernels/ops/rows/dot8-inl.h"
#include "kernels/ops/scan/keys_ahead.h"
#include "kernels/ops/scan/scan.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL
#pragma GCC target("avx512vnni")  // Highway tests for it at run time but leaves it out of the target's options
#endif
namespace seine::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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

struct WindowScores {
  F16 tile0, tile1, tile2, tile3;
};

HWY_INLINE void StoreScores(const WindowScores& s, float* to) {
  Store16(s.tile0, to);
  Store16(s.tile1, to + 16);
  Store16(s.tile2, to + 32);
  Store16(s.tile3, to + 48);
}

#if HWY_TARGET == HWY_AVX3_DL

// What a tile's 16 keys add up to for each of kQ queries.
template <int kQ>
struct TileSums {
  __m512i of[kQ];
  HWY_INLINE F16 At(int q) const {
    F16 sums;
    sums.v[0].raw = _mm512_cvtepi32_ps(of[q]);
    return sums;
  }
};
template <int kQ>
struct WindowSums {
  TileSums<kQ> tile0, tile1, tile2, tile3;  // members, so that each is a register
  HWY_INLINE TileSums<kQ>* tile(size_t t) { return &tile0 + t; }
};

template <int kQ>
struct ByteTables {
  __m512i lo[kQ], hi[kQ];  // of the low and of the high nibbles of four bytes
};

// Adds four bytes of a tile. Nibbles are extracted once for all queries. Sixteen sums of four queries and their tables
// fill the registers; GCC puts additions off and spills, unless each is pinned.
template <int kQ>
HWY_INLINE void AddBytes(const uint8_t* line, const ByteTables<kQ>& tables, TileSums<kQ>* sums) {
  const __m512i low = _mm512_set1_epi8(15), position = _mm512_set1_epi32(0x30201000), ones = _mm512_set1_epi8(1);
  __m512i v = _mm512_loadu_si512(line);
  asm("" : "+v"(v));  // GCC loads it a second time for the shift otherwise, and loads are what is scarce
  const __m512i lo = _mm512_ternarylogic_epi32(v, low, position, 0xEA);  // (v & low) | position
  const __m512i hi = _mm512_ternarylogic_epi32(_mm512_srli_epi16(v, 4), low, position, 0xEA);
  for (int q = 0; q < kQ; ++q) {
    const __m512i both =
        _mm512_add_epi8(_mm512_permutexvar_epi8(lo, tables.lo[q]), _mm512_permutexvar_epi8(hi, tables.hi[q]));
    sums->of[q] = _mm512_dpbusd_epi32(sums->of[q], both, ones);
    asm("" : "+v"(sums->of[q]));
  }
}

// kGroups: coarse_bytes / 4 if known at compile time, else 0.
template <int kQ, int kGroups>
HWY_INLINE void SumNibbles(const uint8_t* coarse, int coarse_bytes, const uint8_t* const (&tables)[kQ],
                           LaterWindows later, WindowSums<kQ>* out) {
  const size_t groups = kGroups > 0 ? kGroups : coarse_bytes / 4, tile = groups * 64;
  const __m512i start = _mm512_set1_epi32(-2 * kTableBias * 4 * static_cast<int>(groups));
  WindowSums<kQ> sums;
  for (int q = 0; q < kQ; ++q) sums.tile0.of[q] = sums.tile1.of[q] = sums.tile2.of[q] = sums.tile3.of[q] = start;
  for (size_t g = 0; g < groups; ++g, coarse += 64) {
    ByteTables<kQ> t;
    for (int q = 0; q < kQ; ++q) {
      t.lo[q] = _mm512_loadu_si512(tables[q] + g * 128);
      t.hi[q] = _mm512_loadu_si512(tables[q] + g * 128 + 64);
      asm("" : "+v"(t.lo[q]), "+v"(t.hi[q]));  // read once for four tiles, not at each look-up
    }
    later.Fetch(g * 64);
    AddBytes(coarse, t, &sums.tile0);
    later.Fetch(g * 64 + tile);
    AddBytes(coarse + tile, t, &sums.tile1);
    later.Fetch(g * 64 + 2 * tile);
    AddBytes(coarse + 2 * tile, t, &sums.tile2);
    later.Fetch(g * 64 + 3 * tile);
    AddBytes(coarse + 3 * tile, t, &sums.tile3);
  }
  *out = sums;
}

// The tiles [first, first + count) of a window alone.
template <int kQ, int kGroups>
HWY_INLINE void SumTiles(const uint8_t* coarse, int coarse_bytes, int first, int count,
                         const uint8_t* const (&tables)[kQ], WindowSums<kQ>* sums) {
  const int groups = kGroups > 0 ? kGroups : coarse_bytes / 4;
  for (int t = first; t < first + count; ++t) {
    TileSums<kQ> tile;
    for (int q = 0; q < kQ; ++q) tile.of[q] = _mm512_set1_epi32(-2 * kTableBias * 4 * groups);
    for (int g = 0; g < groups; ++g) {
      ByteTables<kQ> of;
      for (int q = 0; q < kQ; ++q) {
        of.lo[q] = _mm512_loadu_si512(tables[q] + g * 128);
        of.hi[q] = _mm512_loadu_si512(tables[q] + g * 128 + 64);
      }
      AddBytes(coarse + (t * groups + g) * 64, of, &tile);
    }
    *sums->tile(t) = tile;
  }
}

// Appends a window's keys of scores at or above the limit, counted from the stride's first key, to `keys`; room for 64.
HWY_INLINE size_t AppendAbove(const WindowScores& s, VF limit, int first, uint16_t* keys) {
  alignas(64) static constexpr uint8_t kIota[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                                    32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                                    48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
  const auto above = [&](const F16& tile) HWY_ATTR { return hn::Ge(tile.v[0], limit).raw; };
  const __mmask32 low = _mm512_kunpackw(above(s.tile1), above(s.tile0));
  const __mmask32 high = _mm512_kunpackw(above(s.tile3), above(s.tile2));
  const __mmask64 mask = _mm512_kunpackd(high, low);  // all in mask registers: the way to the others and back is long
  const __m512i found = _mm512_maskz_compress_epi8(mask, _mm512_load_si512(kIota)), start = _mm512_set1_epi16(first);
  const size_t count = static_cast<size_t>(_mm_popcnt_u64(mask));
  _mm512_storeu_si512(keys, _mm512_add_epi16(_mm512_cvtepu8_epi16(_mm512_castsi512_si256(found)), start));
  if (HWY_UNLIKELY(count > 32)) {
    _mm512_storeu_si512(keys + 32, _mm512_add_epi16(_mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(found, 1)), start));
  }
  return count;
}

template <int kQ>
HWY_INLINE void SumTiers(const uint8_t* coarse, int coarse_bytes, const uint8_t* tiers, int q, WindowSums<kQ>* sums) {
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
  sums->tile0.of[q] = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(sum));
  sums->tile1.of[q] = _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(sum, 1));
  sums->tile2.of[q] = _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(sum, 2));
  sums->tile3.of[q] = _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(sum, 3));
}

#else

// What a tile's 16 keys add up to for each of kQ queries, `bias` too much.
template <int kQ>
struct TileSums {
  alignas(32) uint16_t of[kQ][kTileTokens];
  int32_t bias;
  HWY_INLINE F16 At(int q) const {
    const hn::Rebind<int32_t, DF> d32;
    const hn::Rebind<uint16_t, DF> d16;
    return Map([&](size_t i) HWY_ATTR {
      const auto sum = hn::PromoteTo(d32, hn::LoadU(d16, of[q] + i * kN));
      return hn::ConvertTo(DF(), hn::Sub(sum, hn::Set(d32, bias)));
    });
  }
};
template <int kQ>
struct WindowSums {
  TileSums<kQ> tile0, tile1, tile2, tile3;
  TileSums<kQ>* tile(size_t t) { return &tile0 + t; }
};

// What the sums of a key's nibbles are too much.
HWY_INLINE int32_t BiasOf(int coarse_bytes) { return 2 * kTableBias * coarse_bytes; }

// Two sums a 16-bit lane: `all` adds whole lanes up, `odd` their upper bytes, which are taken from `all` at last; what
// overflows a lane is upper bytes.
template <int kQ>
struct LaneSums {
  V16 all[kQ], odd[kQ];
  HWY_INLINE LaneSums() {
    for (int q = 0; q < kQ; ++q) all[q] = odd[q] = hn::Zero(D16());
  }
  // Adds four bytes of the 16 keys in each lane; table(q, at) is what query q looks up at a place of its group's
  // tables.
  template <typename Table>
  HWY_INLINE void Add(const uint8_t* codes, size_t lane_bytes, Table table) {
    const D8 d;
    const V8 low = hn::Set(d, uint8_t{15});
    V8 v[4];
    TurnTiles(codes, lane_bytes, v);
    for (size_t p = 0; p < 4; ++p) {
      const V8 lo = hn::And(v[p], low);
      const V8 hi = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(D16(), v[p]))), low);
      for (int q = 0; q < kQ; ++q) {
        const V8 both =
            hn::Add(hn::TableLookupBytes(table(q, p * 16), lo), hn::TableLookupBytes(table(q, p * 16 + 64), hi));
        all[q] = hn::Add(all[q], hn::BitCast(D16(), both));
        odd[q] = hn::Add(odd[q], hn::ShiftRight<8>(hn::BitCast(D16(), both)));
        Pin(all[q]);
        Pin(odd[q]);
      }
    }
  }
  HWY_INLINE V16 Even(int q) const { return hn::Sub(all[q], hn::ShiftLeft<8>(odd[q])); }
};

template <int kQ, int kGroups>
HWY_INLINE void SumNibbles(const uint8_t* coarse, int coarse_bytes, const uint8_t* const (&tables)[kQ],
                           LaterWindows later, WindowSums<kQ>* sums) {
  const size_t groups = kGroups > 0 ? kGroups : coarse_bytes / 4, tile_bytes = groups * 64;
  for (size_t t = 0; t < 4; t += kLanes128) {
    LaneSums<kQ> lanes;
    for (size_t g = 0; g < groups; ++g) {
      for (size_t l = 0; l < kLanes128; ++l) later.Fetch((t + l) * tile_bytes + g * 64);
      lanes.Add(coarse + t * tile_bytes + g * 64, tile_bytes,
                [&](int q, size_t at) HWY_ATTR { return hn::LoadDup128(D8(), tables[q] + g * 128 + at); });
    }
    for (int q = 0; q < kQ; ++q) {  // a lane's first 8 keys interleave in the lower half, the others in the upper
      uint8_t* to = reinterpret_cast<uint8_t*>(sums->tile(t)->of[q]);
      const V16 even = lanes.Even(q);
      StoreLanes(hn::InterleaveLower(D16(), even, lanes.odd[q]), to, sizeof(TileSums<kQ>));
      StoreLanes(hn::InterleaveUpper(D16(), even, lanes.odd[q]), to + 16, sizeof(TileSums<kQ>));
    }
  }
  for (size_t t = 0; t < 4; ++t) sums->tile(t)->bias = BiasOf(coarse_bytes);
}

// The tiles [first, first + count) of a window alone: of one tile a vector takes several groups, whose sums are added.
template <int kQ, int kGroups>
HWY_INLINE void SumTiles(const uint8_t* coarse, int coarse_bytes, int first, int count,
                         const uint8_t* const (&tables)[kQ], WindowSums<kQ>* sums) {
  const size_t groups = coarse_bytes / 4;
  if (count == 4 || groups % kLanes128 != 0) {
    return SumNibbles<kQ, kGroups>(coarse, coarse_bytes, tables, {coarse, coarse}, sums);
  }
  const hn::FixedTag<uint16_t, 8> d;
  for (int t = first; t < first + count; ++t) {
    LaneSums<kQ> lanes;
    for (size_t g = 0; g < groups; g += kLanes128) {
      lanes.Add(coarse + (t * groups + g) * 64, 64,
                [&](int q, size_t at) HWY_ATTR { return LoadLanes(tables[q] + g * 128 + at, 128); });
    }
    TileSums<kQ>* tile = sums->tile(t);
    const auto sum_of_lanes = [&](V16 v) HWY_ATTR {
      alignas(64) uint16_t all[kLanes8 / 2];
      hn::Store(v, D16(), all);
      auto sum = hn::Load(d, all);
      for (size_t l = 1; l < kLanes128; ++l) sum = hn::Add(sum, hn::Load(d, all + l * 8));
      return sum;
    };
    for (int q = 0; q < kQ; ++q) {
      const auto even = sum_of_lanes(lanes.Even(q)), odd = sum_of_lanes(lanes.odd[q]);
      hn::Store(hn::InterleaveLower(d, even, odd), d, tile->of[q]);
      hn::Store(hn::InterleaveUpper(d, even, odd), d, tile->of[q] + 8);
    }
    tile->bias = BiasOf(coarse_bytes);
  }
}

HWY_INLINE size_t AppendAbove(const WindowScores& s, VF limit, int first, uint16_t* keys) {
  const auto above = [&](const F16& tile) HWY_ATTR {
    MF masks[kParts];
    for (size_t i = 0; i < kParts; ++i) masks[i] = hn::Ge(tile.v[i], limit);
    return static_cast<uint64_t>(Bits16(masks));
  };
  const uint64_t mask = above(s.tile0) | above(s.tile1) << 16 | above(s.tile2) << 32 | above(s.tile3) << 48;
  return AppendBits(mask, static_cast<uint16_t>(first), keys);
}

template <int kQ>
HWY_INLINE void SumTiers(const uint8_t* coarse, int coarse_bytes, const uint8_t* tiers, int q, WindowSums<kQ>* sums) {
  int32_t whole[kWindowTokens];
  scalar::SumTiers(coarse, coarse_bytes, tiers, whole);
  for (int i = 0; i < kWindowTokens; ++i) {
    sums->tile(i / kTileTokens)->of[q][i % kTileTokens] = static_cast<uint16_t>(whole[i]);
    sums->tile(i / kTileTokens)->bias = 0;
  }
}

#endif

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
