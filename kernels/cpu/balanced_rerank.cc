// Fine stage of the balanced code: whole codes of candidates from the coarse row and the record.
//
// Every bit of an index has a place in the two, fixed for the head, so 64 coordinates are read together: their bytes by
// a shuffle, their bits by a mask, from the highest bit down. The highest is the sign; the others, mirrored below zero,
// are the magnitude bin, which with the width chooses one of 63 levels. Products are summed in int32.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/balanced_rerank.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/products-inl.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <cstring>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/scalar.h"
#include "kernels/math.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL
#pragma GCC target("avx512vnni")  // Highway tests for it at run time but leaves it out of the target's options
#endif
namespace seine::cpu::HWY_NAMESPACE {

using DB = hn::CappedTag<uint8_t, 64>;
using VB = hn::Vec<DB>;
inline constexpr size_t kBytes = HWY_MAX_BYTES < 64 ? HWY_MAX_BYTES : 64;

#if HWY_TARGET == HWY_AVX3_DL

// A key's 64 bytes, from which any 64 are chosen at once.
struct Source {
  __m512i bytes;
  HWY_INLINE Source(const uint8_t* row, int row_bytes, const uint8_t* record, int record_bytes) {
    // Loads under a mask touch nothing outside it, so the record may be read from before its beginning.
    const auto mask = [](int n) { return n < 64 ? (__mmask64{1} << n) - 1 : ~__mmask64{0}; };
    const __m512i low = _mm512_maskz_loadu_epi8(mask(row_bytes), row);
    bytes = _mm512_mask_loadu_epi8(low, mask(record_bytes) << row_bytes, record - row_bytes);
  }
  HWY_INLINE VB Choose(const uint8_t* from) const {
    return VB{_mm512_permutexvar_epi8(_mm512_loadu_si512(from), bytes)};
  }
};

HWY_INLINE VB Levels(const uint8_t* levels, VB index) {
  return VB{_mm512_permutexvar_epi8(index.raw, _mm512_loadu_si512(levels))};
}

#else

// 16 of 64 bytes by their indices: each quarter is shuffled for all, and gives 0 for the indices outside it.
HWY_INLINE VB Choose64(const uint8_t* bytes, VB index) {
  const DB d;
  const VB quarter = hn::Set(d, uint8_t{16}), out_of_reach = hn::Set(d, uint8_t{112});
  VB chosen = hn::Zero(d);
  for (int q = 0; q < 4; ++q) {
    // Above 15, the index plus 112 has its highest bit set; below 0 it has it already.
    const VB reach = hn::Or(index, hn::And(hn::Add(index, out_of_reach), hn::Set(d, uint8_t{128})));
    chosen = hn::Or(chosen, hn::TableLookupBytesOr0(hn::LoadDup128(d, bytes + q * 16), reach));
    index = hn::Sub(index, quarter);
  }
  return chosen;
}

struct Source {
  alignas(64) uint8_t bytes[64] = {0};
  HWY_INLINE Source(const uint8_t* row, int row_bytes, const uint8_t* record, int record_bytes) {
    for (int b = 0; b < row_bytes; b += 4) memcpy(bytes + b, row + b, 4);
    for (int b = 0; b < record_bytes; ++b) bytes[row_bytes + b] = record[b];
  }
  HWY_INLINE VB Choose(const uint8_t* from) const { return Choose64(bytes, hn::LoadU(DB(), from)); }
};

HWY_INLINE VB Levels(const uint8_t* levels, VB index) { return Choose64(levels, index); }

#endif

// Sum over 64 coordinates of group g.
HWY_INLINE hn::Vec<hn::Repartition<int32_t, DB>> GroupSum(const Source& source, const BalancedReader& r, int g,
                                                          const int8_t* fine8) {
  const DB d;
  const hn::Repartition<int8_t, DB> di8;
  auto sum = hn::Zero(hn::Repartition<int32_t, DB>());
  for (size_t lane = 0; lane < 64; lane += kBytes) {
    VB bin = hn::Zero(d), negative = hn::Zero(d);
    for (int p = 0; p < r.steps[g]; ++p) {
      const size_t at = (static_cast<size_t>(g) * 6 + p) * 64 + lane;
      const VB bits = hn::And(source.Choose(r.byte.data() + at), hn::LoadU(d, r.bit.data() + at));
      const VB clear = hn::VecFromMask(d, hn::Eq(bits, hn::Zero(d)));
      if (p == 0) {
        negative = clear;
      } else {
        bin = hn::Or(bin, hn::AndNot(clear, hn::LoadU(d, r.value.data() + at)));
      }
    }
    const VB flip = hn::LoadU(d, r.flip.data() + g * 64 + lane);
    bin = hn::Xor(bin, hn::And(negative, flip));
    const VB level = Levels(r.levels, hn::Add(bin, flip));
    const auto weight = hn::LoadU(di8, fine8 + g * 64 + lane);
    const auto minus = hn::MaskFromVec(hn::BitCast(di8, negative));
    sum = hn::Add(sum, LevelProducts(d, level, hn::IfThenElse(minus, hn::Neg(weight), weight)));
  }
  return sum;
}

void RerankBalancedImpl(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases,
                        int count, const BalancedReader& r, const int8_t* fine8, float* out) {
  const hn::Repartition<int32_t, DB> d32;
  for (int i = 0; i < count; ++i) {
    const Source source(coarse_rows[i], r.coarse_bytes, records[i], r.record_bytes);
    auto sum = hn::Zero(d32);
    for (int g = 0; g < r.groups; ++g) sum = hn::Add(sum, GroupSum(source, r, g, fine8));
    const float total = static_cast<float>(hn::GetLane(hn::SumOfLanes(d32, sum)));
    out[i] = DecodeFactor(records[i][r.record_bytes], bases[i]) * total;
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
