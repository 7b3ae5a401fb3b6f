// Stage II: 4-bit estimates of candidates from key-major records.
//
// A record holds three bit planes of magnitudes and the subvectors' weights; the sign bits are the coarse row. Bits
// become byte masks (one instruction with AVX-512), levels come from a 16-byte table, products are summed by subvector
// in int32, and the weighted subvectors in 16 float lanes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rerank.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/products-inl.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
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
  const auto code = hn::PromoteTo(di, hn::LoadU(d8, from));
  return hn::BitCast(DF(), hn::Add(hn::ShiftLeft<kFactorShift>(code), hn::Set(di, static_cast<int32_t>(base))));
}

void RerankRsqImpl(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases, int count,
                   int dim, const RsqTables& tables, const int8_t* query8, float* out) {
  constexpr int kAhead = 16;  // records in flight
  alignas(16) uint8_t levels16[16] = {0};
  for (int t = 0; t < 8; ++t) levels16[t] = tables.levels8[t];
  const int subvectors = dim / 8, record_bytes = dim / 2;
  const auto fetch = [&](int i) HWY_ATTR {
    for (int b = 0; b < record_bytes; b += 64) Prefetch(records[i] + b);
  };
  for (int i = 0; i < kAhead && i < count; ++i) fetch(i);
  for (int i = 0; i < count; ++i) {
    if (i + kAhead < count) fetch(i + kAhead);
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
