// Fine stage of the balanced code: whole codes of candidates from the coarse row and the record.
//
// An index of a coordinate is two fields of the key's bytes, fixed for the head: its leading bits in the coarse row,
// the rest in the record, where fields follow one another. AVX-512 brings each field's bytes to the coordinate's lane
// by a shuffle and its bits to their place by a shift of each lane's own; other targets, whose lanes have none, turn
// the keys so that a lane is a key. Products are summed in int32.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codecs/balanced/rerank_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/bytes-inl.h"
#include "kernels/cpu/products-inl.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <cstring>
#include <iterator>
#include <type_traits>
#include <vector>

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
                                                         SumKeys<4, false>, SumKeys<5, false>, SumKeys<6, false>,
                                                         SumKeys<7, false>, SumKeys<8, false>};
  static_assert(std::size(kOf) * 64 == kMaxHeadDim);
  const bool plain = r.groups == 2 && r.coarse_bytes == 16 && r.record_bytes == 16;  // head_dim 128, 1 + 1 bits
  (plain ? SumKeys<2, true> : kOf[r.groups - 1])(rows, records, count, r, fine8, sums);
}

#else

// Keys by the lane: a vector holds one byte of as many keys as it has lanes. A coordinate's bits lie in the same place
// of each, so that shifts by constants serve, and levels of four coordinates side by side multiply weights of all keys
// alike.
using VI8 = hn::Vec<DI8>;
using D32 = hn::Repartition<int32_t, D8>;

// A query's weights in the order of the steps: their sizes, and where the levels with their signs begin.
struct StepWeights {
  static constexpr int kMost = kMaxHeadDim + 16;  // three kinds, each in fours
  alignas(64) uint8_t size[kMost], levels[kMost];
  StepWeights(const BalancedReader& r, const int8_t* fine8) {
    const size_t n = r.step_coordinate.size();
    int8_t weight[kMost];
    for (size_t i = 0; i < n; ++i) weight[i] = fine8[r.step_coordinate[i]];
    const uint8_t* of = r.step_levels.data();
    for (size_t i = 0; i < n; ++i) {
      size[i] = static_cast<uint8_t>(weight[i] < 0 ? -weight[i] : weight[i]);
      levels[i] = static_cast<uint8_t>(of[i] + (static_cast<uint8_t>(weight[i]) & 128));
    }
  }
};

HWY_INLINE V8 RightPart(const uint8_t* bytes, const BalancedPart& part) {
  const D8 d;
  const auto moved = hn::ShiftRightSame(hn::BitCast(D16(), hn::Load(d, bytes + part.byte * kLanes8)), part.shift);
  return hn::And(hn::BitCast(d, moved), hn::BitCast(d, hn::Set(hn::Repartition<uint32_t, D8>(), part.mask)));
}
HWY_INLINE V8 LeftPart(const uint8_t* bytes, const BalancedPart& part) {
  const D8 d;
  const auto moved = hn::ShiftLeftSame(hn::BitCast(D16(), hn::Load(d, bytes + part.byte * kLanes8)), part.shift);
  return hn::And(hn::BitCast(d, moved), hn::BitCast(d, hn::Set(hn::Repartition<uint32_t, D8>(), part.mask)));
}

enum class Kind { kPlain, kSplit, kWide };

// The signed levels of one coordinate.
template <Kind kKind>
HWY_INLINE VI8 LevelsOf(const uint8_t* bytes, const BalancedStep& s, const int8_t* levels) {
  const D8 d;
  const DI8 di;
  V8 index = hn::Or(RightPart(bytes, s.right[0]), RightPart(bytes, s.right[1]));
  if constexpr (kKind != Kind::kPlain) {
    index = hn::Or(index, hn::Or(LeftPart(bytes, s.left[0]), LeftPart(bytes, s.left[1])));
  }
  if constexpr (kKind != Kind::kWide) return hn::TableLookupBytes(hn::LoadDup128(di, levels), hn::BitCast(di, index));
  const VI8 low = hn::BitCast(di, hn::And(index, hn::Set(d, uint8_t{15})));
  VI8 level = hn::TableLookupBytes(hn::LoadDup128(di, levels), low);
  for (int q = 1; q < s.quarters; ++q) {
    const auto beyond = hn::Gt(hn::BitCast(di, index), hn::Set(di, static_cast<int8_t>(16 * q - 1)));
    level = hn::IfThenElse(beyond, hn::TableLookupBytes(hn::LoadDup128(di, levels + 16 * q), low), level);
  }
  return level;
}

// Adds what steps of one kind, the first of which is step `at` of all, add to the sums of the keys. Lane i of sums[s]
// is of key (i / 4) * 16 + s * 4 + i % 4.
template <Kind kKind>
HWY_INLINE int AddSteps(const uint8_t* bytes, const std::vector<BalancedStep>& steps, const int8_t* levels,
                        const StepWeights& weights, int at, hn::Vec<D32> (&sums)[4]) {
  const D8 d;
  const hn::Repartition<int16_t, D8> d16;
  for (size_t i = 0; i < steps.size(); i += 4, at += 4) {
    VI8 level[4];
    for (int c = 0; c < 4; ++c) level[c] = LevelsOf<kKind>(bytes, steps[i + c], levels + weights.levels[at + c]);
    uint32_t four;
    memcpy(&four, weights.size + at, 4);
    const V8 weight = hn::BitCast(d, hn::Set(hn::Repartition<uint32_t, D8>(), four));
    const auto pair = [&](auto low, int s) HWY_ATTR {
      const auto of = [&](VI8 a, VI8 b) HWY_ATTR {
        return hn::BitCast(d16, low ? hn::InterleaveLower(DI8(), a, b) : hn::InterleaveUpper(DI8(), a, b));
      };
      const auto a = of(level[0], level[1]), b = of(level[2], level[3]);
      const auto first = hn::BitCast(DI8(), hn::InterleaveLower(d16, a, b));
      const auto second = hn::BitCast(DI8(), hn::InterleaveUpper(d16, a, b));
      sums[s] = hn::Add(sums[s], LevelProducts(d, weight, first));
      sums[s + 1] = hn::Add(sums[s + 1], LevelProducts(d, weight, second));
    };
    pair(std::true_type(), 0);
    pair(std::false_type(), 2);
  }
  return at;
}

// A key's row and record one after the other.
HWY_INLINE void Join(const uint8_t* row, int row_bytes, const uint8_t* record, int n, uint8_t* to) {
  if (row_bytes == 16) {
    memcpy(to, row, 16);
  } else {
    for (int b = 0; b < row_bytes; b += 4) memcpy(to + b, row + b, 4);
  }
  to += row_bytes;
  if (n < 16) {
    for (int b = 0; b < n; ++b) to[b] = record[b];
    return;
  }
  for (int b = 0; b < n - 16; b += 16) memcpy(to + b, record + b, 16);
  memcpy(to + n - 16, record + n - 16, 16);
}

HWY_INLINE void SumAll(const uint8_t* const* rows, const uint8_t* const* records, int count, const BalancedReader& r,
                       const int8_t* fine8, int32_t* sums) {
  constexpr int kKeys = static_cast<int>(kLanes8);
  const StepWeights weights(r, fine8);
  alignas(64) uint8_t keys[kKeys * 64], bytes[kKeys * 64];
  for (int first = 0; first < count; first += kKeys) {
    for (int k = 0; k < kKeys; ++k) {
      const int at = HWY_MIN(first + k, count - 1);
      Join(rows[at], r.coarse_bytes, records[at], r.record_bytes, keys + k * 64);
    }
    for (int b = 0; b < r.coarse_bytes + r.record_bytes; b += 16) TurnKeys(keys + b, 64, bytes + b * kLanes8);
    hn::Vec<D32> of[4];
    for (auto& sum : of) sum = hn::Zero(D32());
    int at = AddSteps<Kind::kPlain>(bytes, r.plain, r.signed_levels, weights, 0, of);
    at = AddSteps<Kind::kSplit>(bytes, r.split, r.signed_levels, weights, at, of);
    AddSteps<Kind::kWide>(bytes, r.wide, r.signed_levels, weights, at, of);
    for (int s = 0; s < 4; ++s) {
      alignas(64) int32_t lanes[kLanes8 / 4];
      hn::Store(of[s], D32(), lanes);
      for (int l = 0; l < kKeys / 4; l += 4) memcpy(sums + first + l * 4 + s * 4, lanes + l, 16);
    }
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
