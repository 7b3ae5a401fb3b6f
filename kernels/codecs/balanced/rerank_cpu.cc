// Fine stage of the balanced code: whole codes of candidates from the coarse row and the record.
//
// An index of a coordinate is two fields of the key's bytes, fixed for the head: its leading bits in the coarse row,
// the rest in the record, where fields follow one another. Each field's bytes are brought to the coordinate's lane by a
// shuffle and its bits to their place by a shift of each lane's own. Products are summed in int32.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codecs/balanced/rerank_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/products-inl.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <cstring>

#include "kernels/codecs/balanced/ops.h"
#include "kernels/cpu/targets.h"
#include "kernels/math.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL
#pragma GCC target("avx512vnni")  // Highway tests for it at run time but leaves it out of the target's options
#endif
namespace seine::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

// 64 coordinates are six shuffles and two selections: about twelve cycles a key of 128, less than its record's way from
// memory.
struct Group {
  __m512i coarse_byte, coarse_bit, coarse_mask;  // bytes of the key by lane; first bit in their eight lanes; bits kept
  __m512i fine_byte, fine_bit, fine_mask;
  __m512i width, weight;  // 2^total, which with the index finds the level; fine8
};

HWY_INLINE __m512i Load512(const void* p) { return _mm512_loadu_si512(p); }

HWY_INLINE Group MakeGroup(const BalancedReader& r, size_t first, const int8_t* fine8) {
  const __m512i lane = _mm512_set1_epi64(0x0706050403020100);
  const __m512i lane_bit = _mm512_set1_epi64(0x3830282018100800);
  // The first of each eight lanes' bytes: fields of eight coordinates lie within the eight bytes from there on.
  const __m512i fine = Load512(r.fine_byte.data() + first);
  const __m512i begin = _mm512_shuffle_epi8(fine, _mm512_set_epi64(0x0808080808080808, 0, 0x0808080808080808, 0,
                                                                   0x0808080808080808, 0, 0x0808080808080808, 0));
  const __m512i past = _mm512_sub_epi8(fine, begin);  // at most seven bytes, so that times 8 stays within its lane
  Group g;
  g.coarse_byte = Load512(r.coarse_byte.data() + first);
  g.coarse_bit = _mm512_add_epi8(lane_bit, Load512(r.coarse_shift.data() + first));
  g.coarse_mask = Load512(r.coarse_mask.data() + first);
  g.fine_byte = _mm512_add_epi8(begin, lane);
  g.fine_bit = _mm512_add_epi8(_mm512_slli_epi64(past, 3), Load512(r.fine_shift.data() + first));
  g.fine_mask = Load512(r.fine_mask.data() + first);
  // flip is 2^(total - 1) - 1, and 0 for no bits at all as for one; a weight of 0 makes them one.
  g.width = _mm512_add_epi8(_mm512_slli_epi64(Load512(r.flip.data() + first), 1), _mm512_set1_epi8(2));
  g.weight = Load512(fine8 + first);
  return g;
}

// Sums of products over 64 coordinates, four a lane; levels are 128 too high.
HWY_INLINE __m512i AddGroup(__m512i sum, __m512i key, const Group& g, __m512i low_levels, __m512i high_levels) {
  const __m512i fine = _mm512_multishift_epi64_epi8(g.fine_bit, _mm512_permutexvar_epi8(g.fine_byte, key));
  const __m512i coarse = _mm512_multishift_epi64_epi8(g.coarse_bit, _mm512_permutexvar_epi8(g.coarse_byte, key));
  constexpr int kAndOr = 0xea;  // (a & b) | c
  const __m512i marked = _mm512_ternarylogic_epi64(fine, g.fine_mask, g.width, kAndOr);
  const __m512i index = _mm512_ternarylogic_epi64(coarse, g.coarse_mask, marked, kAndOr);
  return _mm512_dpbusd_epi32(sum, _mm512_permutex2var_epi8(low_levels, index, high_levels), g.weight);
}

// A key's bytes in one register: its row, then its record. kPlain: both are sixteen bytes long.
template <bool kPlain>
struct Joiner {
  const int* record_at;
  __mmask64 row;
  __mmask16 record;  // of a record of fewer than sixteen bytes
  __m512i join;
  HWY_INLINE explicit Joiner(const BalancedReader& r) : record_at(r.record_at), join(Load512(r.join)) {
    row = r.coarse_bytes < 64 ? (__mmask64{1} << r.coarse_bytes) - 1 : ~__mmask64{0};
    record = static_cast<__mmask16>(r.record_bytes < 16 ? (1u << r.record_bytes) - 1 : 0xffff);
  }

  HWY_INLINE __m512i Key(const uint8_t* at_row, const uint8_t* at_record) const {
    const auto part = [&](int lane) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at_record + record_at[lane]));
    };
    if constexpr (kPlain) {
      const __m128i of_row = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at_row));
      const __m128i of_record = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at_record));
      return _mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_castsi128_si256(of_row), of_record, 1));
    }
    __m512i whole = _mm512_castsi128_si512(_mm_maskz_loadu_epi8(record, at_record));
    if (record_at[1] > 0) {
      whole = _mm512_inserti32x4(whole, part(1), 1);
      whole = _mm512_inserti32x4(whole, part(2), 2);
      whole = _mm512_inserti32x4(whole, part(3), 3);
    }
    return _mm512_permutex2var_epi8(_mm512_maskz_loadu_epi8(row, at_row), join, whole);
  }
};

template <int kGroups, bool kPlain>
void SumKeys(const uint8_t* const* rows, const uint8_t* const* records, int count, const BalancedReader& r,
             const int8_t* fine8, int32_t* sums) {
  const Joiner<kPlain> joiner(r);
  const __m512i low = Load512(r.raised), high = Load512(r.raised + 64), raise = _mm512_set1_epi8(-128);
  Group groups[kGroups];
  __m512i raised = _mm512_setzero_si512();
  for (int g = 0; g < kGroups; ++g) {
    groups[g] = MakeGroup(r, static_cast<size_t>(g) * 64, fine8);
    raised = _mm512_dpbusd_epi32(raised, raise, groups[g].weight);
  }
  const __m512i begin = _mm512_sub_epi32(_mm512_setzero_si512(), raised);
  for (int i = 0; i < count; i += 4) {
    __m512i four[4];
    for (int k = 0; k < 4; ++k) {
      const int at = HWY_MIN(i + k, count - 1);
      const __m512i key = joiner.Key(rows[at], records[at]);
      four[k] = begin;
      for (int g = 0; g < kGroups; ++g) four[k] = AddGroup(four[k], key, groups[g], low, high);
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums + i), SumsOf4(four));
  }
}

// sums [count rounded up to 4]
HWY_INLINE void SumAll(const uint8_t* const* rows, const uint8_t* const* records, int count, const BalancedReader& r,
                       const int8_t* fine8, int32_t* sums) {
  static constexpr decltype(&SumKeys<1, false>) kOf[] = {SumKeys<1, false>, SumKeys<2, false>, SumKeys<3, false>,
                                                         SumKeys<4, false>};
  const bool plain = r.groups == 2 && r.coarse_bytes == 16 && r.record_bytes == 16;  // head_dim 128, 1 + 1 bits
  (plain ? SumKeys<2, true> : kOf[r.groups - 1])(rows, records, count, r, fine8, sums);
}

#else

using DB = hn::CappedTag<uint8_t, 64>;
using VB = hn::Vec<DB>;
inline constexpr size_t kBytes = HWY_MAX_BYTES < 64 ? HWY_MAX_BYTES : 64;

HWY_INLINE VB Pick(const uint8_t* bytes, const BalancedPicks& picks, size_t lane) {
  const DB d;
  VB picked = hn::Zero(d);
  for (int q = picks.first; q < picks.end; ++q) {
    const VB at = hn::LoadU(d, picks.at[q].data() + lane);
    picked = hn::Or(picked, hn::TableLookupBytesOr0(hn::LoadDup128(d, bytes + q * 16), at));
  }
  return picked;
}

// Looks up levels at indices below 16 * quarters, of 64 in all.
HWY_INLINE VB LevelsAt(const uint8_t* levels, int quarters, VB index) {
  const DB d;
  const VB quarter = hn::Set(d, uint8_t{16}), out_of_reach = hn::Set(d, uint8_t{112});
  if (quarters == 1) return hn::TableLookupBytes(hn::LoadDup128(d, levels), index);
  VB chosen = hn::Zero(d);
  for (int q = 0; q < quarters; ++q) {
    // Above 15, the index plus 112 has its highest bit set; below 0 it has it already.
    const VB reach = hn::Or(index, hn::And(hn::Add(index, out_of_reach), hn::Set(d, uint8_t{128})));
    chosen = hn::Or(chosen, hn::TableLookupBytesOr0(hn::LoadDup128(d, levels + q * 16), reach));
    index = hn::Sub(index, quarter);
  }
  return chosen;
}

// A key's row and record one after the other.
struct Key {
  alignas(64) uint8_t bytes[64] = {0};
  HWY_INLINE Key(const uint8_t* row, int row_bytes, const uint8_t* record, int n) {
    for (int b = 0; b < row_bytes; b += 4) memcpy(bytes + b, row + b, 4);
    uint8_t* to = bytes + row_bytes;
    if (n < 16) {
      for (int b = 0; b < n; ++b) to[b] = record[b];
      return;
    }
    for (int b = 0; b < n - 16; b += 16) memcpy(to + b, record + b, 16);
    memcpy(to + n - 16, record + n - 16, 16);
  }
};

// The low eight bits of each 16-bit (byte, next byte) >> shift, by lane; shift from -5 to 7. Lanes have no shift of
// their own for bytes, so the even and the odd ones are multiplied as 16 bits.
HWY_INLINE VB ShiftEach(VB byte, VB next, const uint16_t* even_by, const uint16_t* odd_by) {
  const hn::Repartition<uint16_t, DB> d16;
  const auto low = hn::BitCast(d16, byte), high = hn::BitCast(d16, next), first = hn::Set(d16, uint16_t{255});
  const auto even = hn::Or(hn::And(low, first), hn::ShiftLeft<8>(high));
  const auto odd = hn::Or(hn::ShiftRight<8>(low), hn::AndNot(first, high));
  const auto even_field = hn::ShiftRight<8>(hn::Mul(even, hn::LoadU(d16, even_by)));
  const auto odd_field = hn::AndNot(first, hn::Mul(odd, hn::LoadU(d16, odd_by)));
  return hn::BitCast(DB(), hn::Or(even_field, odd_field));
}

HWY_INLINE void SumAll(const uint8_t* const* rows, const uint8_t* const* records, int count, const BalancedReader& r,
                       const int8_t* fine8, int32_t* sums) {
  const DB d;
  const hn::Repartition<int8_t, DB> di8;
  const hn::Repartition<int32_t, DB> d32;
  const size_t lanes = static_cast<size_t>(r.groups) * 64;
  for (int k = 0; k < count; ++k) {
    const Key key(rows[k], r.coarse_bytes, records[k], r.record_bytes);
    auto sum = hn::Zero(d32);
    for (size_t at = 0; at < lanes; at += kBytes) {
      const auto table = [&](const auto& values) HWY_ATTR { return hn::LoadU(d, values.data() + at); };
      const auto shifted = [&](VB byte, VB next, const auto& by)
                               HWY_ATTR { return ShiftEach(byte, next, by[0].data() + at / 2, by[1].data() + at / 2); };
      const VB coarse = shifted(Pick(key.bytes, r.coarse_at, at), hn::Zero(d), r.coarse_by);
      const VB fine = shifted(Pick(key.bytes, r.fine_at, at), Pick(key.bytes, r.after_fine, at), r.fine_by);
      const VB index = hn::Or(hn::And(coarse, table(r.coarse_mask)), hn::And(fine, table(r.fine_mask)));
      // The highest bit is the sign; the others, mirrored below zero, are the bin of the magnitude.
      const VB flip = table(r.flip);
      const auto positive = hn::Gt(hn::BitCast(di8, index), hn::BitCast(di8, flip));
      const VB mirror = hn::IfThenZeroElse(hn::RebindMask(d, positive), flip);
      const VB level = LevelsAt(r.levels, r.level_quarters, hn::Add(hn::Xor(hn::And(index, flip), mirror), flip));
      const auto weight = hn::LoadU(di8, fine8 + at);
      sum = hn::Add(sum, LevelProducts(d, level, hn::IfThenElse(positive, weight, hn::Neg(weight))));
    }
    sums[k] = hn::GetLane(hn::SumOfLanes(d32, sum));
  }
}

#endif

void RerankBalancedImpl(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases,
                        int count, const BalancedReader& r, const int8_t* fine8, float* out) {
  constexpr int kAtOnce = 64;
  int32_t sums[kAtOnce];
  for (int first = 0; first < count; first += kAtOnce) {
    const int n = HWY_MIN(kAtOnce, count - first);
    SumAll(coarse_rows + first, records + first, n, r, fine8, sums);
    uint8_t factors[kAtOnce];
    for (int i = 0; i < n; ++i) factors[i] = records[first + i][r.record_bytes];
    for (int i = 0; i < n; ++i) {
      out[first + i] = DecodeFactor(factors[i], bases[first + i]) * static_cast<float>(sums[i]);
    }
  }
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(RerankBalancedImpl);

void RerankBalanced(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases, int count,
                    const BalancedReader& reader, const int8_t* fine8, float* out) {
  if (ScalarForced()) return scalar::RerankBalanced(coarse_rows, records, bases, count, reader, fine8, out);
  HWY_DYNAMIC_DISPATCH(RerankBalancedImpl)(coarse_rows, records, bases, count, reader, fine8, out);
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
