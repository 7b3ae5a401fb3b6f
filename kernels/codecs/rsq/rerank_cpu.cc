// Stage II: 4-bit estimates of candidates from key-major records.
//
// A record holds three bit planes of magnitudes and the subvectors' weights; the sign bits are the coarse row. Bits
// become byte masks (one instruction with AVX-512), levels come from a 16-byte table, products are summed by subvector
// in int32, and the weighted subvectors in 16 float lanes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codecs/rsq/rerank_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/products-inl.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <cstring>
#include <iterator>

#include "kernels/codecs/kinds/rsq.h"
#include "kernels/codecs/rsq/ops.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/targets.h"
#include "kernels/math.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL
#pragma GCC target("avx512vnni")  // Highway tests for it at run time but leaves it out of the target's options
#endif
namespace seine::cpu::HWY_NAMESPACE {

// Adds the high 32 bits of each 64 to the low ones.
template <class D32, class V32>
HWY_INLINE V32 AddHalves(D32 d32, V32 v) {
  const hn::Repartition<uint64_t, D32> d64;
  return hn::Add(v, hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, v))));
}

// Products of coordinates [offset, offset + lanes of D8), summed over 8 bytes in the low 32 bits of each 64.
template <class D8>
HWY_INLINE auto Chunk(D8 d, const uint8_t* signs, const uint8_t* record, int subvectors, int offset,
                      const uint8_t* levels16, const int8_t* query8) {
  const hn::Repartition<int8_t, D8> di8;
  const uint8_t* planes = record + offset / 8;
  const auto m0 = hn::LoadMaskBits(d, planes), m1 = hn::LoadMaskBits(d, planes + subvectors);
  const auto m2 = hn::LoadMaskBits(d, planes + 2 * subvectors);
  const auto positive = hn::LoadMaskBits(di8, signs + offset / 8);
  auto bin = hn::IfThenElseZero(m0, hn::Set(d, uint8_t{1}));
  bin = hn::Or(bin, hn::IfThenElseZero(m1, hn::Set(d, uint8_t{2})));
  bin = hn::Or(bin, hn::IfThenElseZero(m2, hn::Set(d, uint8_t{4})));
  const auto levels = hn::TableLookupBytes(hn::LoadDup128(d, levels16), bin);
  const auto q = hn::LoadU(di8, query8 + offset);
  const auto products = LevelProducts(d, levels, hn::IfThenElse(positive, q, hn::Neg(q)));
  return AddHalves(hn::Repartition<int32_t, D8>(), products);
}

using DI = hn::Rebind<int32_t, DF>;
inline constexpr int kChunk = static_cast<int>(kN) * 4;  // coordinates a vector of bytes holds

// Sums of kN subvectors from `first` on; those past the last are 0.
HWY_INLINE hn::Vec<DI> SubvectorSums(const uint8_t* signs, const uint8_t* record, int subvectors, int first,
                                     const uint8_t* levels16, const int8_t* query8) {
  const hn::Repartition<uint8_t, DF> wide;
  const DI di;
  const int offset = first * 8, left = subvectors * 8 - offset;
  if (left >= 2 * kChunk) {  // each chunk has its sums in the even lanes
    const auto low = Chunk(wide, signs, record, subvectors, offset, levels16, query8);
    const auto high = Chunk(wide, signs, record, subvectors, offset + kChunk, levels16, query8);
    return hn::ConcatEven(di, high, low);
  }
  if (left == kChunk) {
    return hn::ConcatEven(di, hn::Zero(di), Chunk(wide, signs, record, subvectors, offset, levels16, query8));
  }
  alignas(64) int32_t sums[16] = {0};
  int j = 0;
  if (left > kChunk) {
    const auto low = Chunk(wide, signs, record, subvectors, offset, levels16, query8);
    hn::Store(hn::ConcatEven(di, hn::Zero(di), low), di, sums);
    j = kChunk;
  }
  const hn::CappedTag<uint8_t, 16> narrow;
  for (; j < left; j += 16) {
    alignas(16) int32_t two[4];
    hn::Store(Chunk(narrow, signs, record, subvectors, offset + j, levels16, query8),
              hn::Repartition<int32_t, decltype(narrow)>(), two);
    sums[j / 8] = two[0];
    sums[j / 8 + 1] = two[2];
  }
  return hn::Load(di, sums);
}

// Weights of kN subvectors from `first` on, as floats; past the last, anything finite.
HWY_INLINE VF Weights(const uint8_t* codes, int subvectors, int first, uint32_t base) {
  const DI di;
  const hn::Rebind<uint8_t, DF> d8;
  alignas(16) uint8_t padded[16] = {0};
  const uint8_t* from = codes + first;
  if (subvectors - first < static_cast<int>(kN)) {
    if (subvectors > first) memcpy(padded, from, subvectors - first);
    from = padded;
  }
  return DecodeFactors(hn::PromoteTo(di, hn::LoadU(d8, from)), base);
}

inline constexpr int kAhead = 16;  // records in flight

HWY_INLINE void FetchRecord(const uint8_t* const* records, int i, int count, int record_bytes) {
  if (i >= count) return;
  for (int b = 0; b < record_bytes; b += 64) Prefetch(records[i] + b);
}

#if HWY_TARGET == HWY_AVX3_DL

HWY_INLINE __mmask64 Bits64(const uint8_t* p) {
  uint64_t bits;
  memcpy(&bits, p, sizeof bits);
  return _cvtu64_mask64(bits);
}

// Whole chunks of 64 coordinates: planes and signs add up to an index of 16 levels, signed and 128 too high, so that
// the query's bytes stay in their registers as they are.
template <int kChunks>
void RerankChunks(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases, int count,
                  const RsqTables& tables, const int8_t* query8, float* out) {
  constexpr int kSubvectors = kChunks * 8, kRecordBytes = kChunks * 32;
  alignas(16) uint8_t raised16[16];
  for (int t = 0; t < 8; ++t) {
    raised16[t] = static_cast<uint8_t>(128 - tables.levels8[t]);
    raised16[8 + t] = static_cast<uint8_t>(128 + tables.levels8[t]);
  }
  const __m512i raised = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(raised16)));
  const __m512i one = _mm512_set1_epi8(1), two = _mm512_set1_epi8(2), four = _mm512_set1_epi8(4);
  const __m512i eight = _mm512_set1_epi8(8), zero = _mm512_setzero_si512();
  __m512i query[kChunks], begin[kChunks];  // `begin` takes off what the levels are too high
  for (int c = 0; c < kChunks; ++c) {
    query[c] = _mm512_loadu_si512(query8 + c * 64);
    begin[c] = _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(-128), query[c]));
  }
  const DI di;
  for (int i = 0; i < kAhead; ++i) FetchRecord(records, i, count, kRecordBytes);
  for (int i = 0; i < count; i += 4) {
    F16 totals[4];
    for (int k = 0; k < 4; ++k) {
      const int at = HWY_MIN(i + k, count - 1);
      FetchRecord(records, i + k + kAhead, count, kRecordBytes);
      const auto products = [&](int c) HWY_ATTR {
        const uint8_t* planes = records[at] + c * 8;
        __m512i index = _mm512_maskz_mov_epi8(Bits64(planes), one);
        index = _mm512_mask_add_epi8(index, Bits64(planes + kSubvectors), index, two);
        index = _mm512_mask_add_epi8(index, Bits64(planes + 2 * kSubvectors), index, four);
        index = _mm512_mask_add_epi8(index, Bits64(coarse_rows[at] + c * 8), index, eight);
        return hn::Vec<DI>{_mm512_dpbusd_epi32(begin[c], _mm512_shuffle_epi8(raised, index), query[c])};
      };
      totals[k] = Set16(0);
      for (int c = 0; c < kChunks; c += 2) {  // 16 subvectors, of two products each
        const auto low = products(c), high = c + 1 < kChunks ? products(c + 1) : hn::Zero(di);
        const auto sums = hn::Add(hn::ConcatEven(di, high, low), hn::ConcatOdd(di, high, low));
        const VF weights = Weights(records[at] + 3 * kSubvectors, kSubvectors, c * 8, bases[at]);
        totals[k].v[0] = hn::Add(totals[k].v[0], hn::Mul(weights, hn::ConvertTo(DF(), sums)));
      }
    }
    StoreSums4(totals, HWY_MIN(count - i, 4), out + i);
  }
}

#endif

void RerankRsqImpl(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases, int count,
                   int dim, const RsqTables& tables, const int8_t* query8, float* out) {
#if HWY_TARGET == HWY_AVX3_DL
  if (dim % 64 == 0) {
    static constexpr decltype(&RerankChunks<1>) kOf[] = {RerankChunks<1>, RerankChunks<2>, RerankChunks<3>,
                                                         RerankChunks<4>, RerankChunks<5>, RerankChunks<6>,
                                                         RerankChunks<7>, RerankChunks<8>};
    static_assert(std::size(kOf) * 64 == kMaxHeadDim);
    return kOf[dim / 64 - 1](coarse_rows, records, bases, count, tables, query8, out);
  }
#endif
  alignas(16) uint8_t levels16[16] = {0};
  for (int t = 0; t < 8; ++t) levels16[t] = tables.levels8[t];
  const int subvectors = dim / 8, record_bytes = dim / 2;
  for (int i = 0; i < kAhead; ++i) FetchRecord(records, i, count, record_bytes);
  for (int i = 0; i < count; ++i) {
    FetchRecord(records, i + kAhead, count, record_bytes);
    F16 total = Set16(0);
    for (int b = 0; b < subvectors; b += 16) {
      total = Add(total, Map([&](size_t p) HWY_ATTR {
                    const int first = b + static_cast<int>(p * kN);
                    const auto sums = SubvectorSums(coarse_rows[i], records[i], subvectors, first, levels16, query8);
                    return hn::Mul(Weights(records[i] + 3 * subvectors, subvectors, first, bases[i]),
                                   hn::ConvertTo(DF(), sums));
                  }));
    }
    out[i] = Sum16(total);
  }
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(RerankRsqImpl);

void RerankRsq(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases, int count,
               int dim, const RsqTables& tables, const int8_t* query8, float* out) {
  if (ScalarForced()) return scalar::RerankRsq(coarse_rows, records, bases, count, dim, tables, query8, out);
  HWY_DYNAMIC_DISPATCH(RerankRsqImpl)(coarse_rows, records, bases, count, dim, tables, query8, out);
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
