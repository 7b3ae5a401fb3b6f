// Exact int8 dot products, inlined into the scan as well. Per-target header.
#if defined(SEINE_KERNELS_OPS_ROWS_DOT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SEINE_KERNELS_OPS_ROWS_DOT8_INL_H_
#undef SEINE_KERNELS_OPS_ROWS_DOT8_INL_H_
#else
#define SEINE_KERNELS_OPS_ROWS_DOT8_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/products-inl.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL
#pragma GCC target("avx512vnni")  // Highway tests for it at run time but leaves it out of the target's options
#endif
namespace seine::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// n a multiple of 16; |sum| < 2^31 for n <= 2^17.
HWY_INLINE int32_t Dot8Inline(const int8_t* a, const int8_t* b, int n) {
  const hn::CappedTag<int16_t, 16> d16;
  const hn::Rebind<int8_t, decltype(d16)> d8;
  const hn::RepartitionToWide<decltype(d16)> d32;
  auto sum0 = hn::Zero(d32), sum1 = hn::Zero(d32);
  for (int i = 0; i < n; i += static_cast<int>(hn::Lanes(d16))) {
    sum0 = hn::ReorderWidenMulAccumulate(d32, hn::PromoteTo(d16, hn::LoadU(d8, a + i)),
                                         hn::PromoteTo(d16, hn::LoadU(d8, b + i)), sum0, sum1);
  }
  return hn::GetLane(hn::SumOfLanes(d32, hn::Add(sum0, sum1)));
}

#if HWY_TARGET == HWY_AVX3_DL

// <row, query> of one row, the lanes of all queries summed together; and of four rows with each query. Products are
// unsigned times signed, so rows are shifted by 128, and `taken`, 128 times the sum of a query, is taken back.
template <int kQ>
HWY_INLINE void DotsOfRow(const int8_t* row, int dim, const int8_t* const (&queries)[kQ], const int32_t (&taken)[kQ],
                          int32_t* dots, size_t stride) {
  const __m512i shift = _mm512_set1_epi8(-128);
  __m512i sum[4];
  for (int q = 0; q < 4; ++q) sum[q] = _mm512_setzero_si512();
  for (int i = 0; i < dim; i += 64) {
    const __m512i x = _mm512_xor_si512(_mm512_loadu_si512(row + i), shift);
    for (int q = 0; q < kQ; ++q) sum[q] = _mm512_dpbusd_epi32(sum[q], x, _mm512_loadu_si512(queries[q] + i));
  }
  alignas(16) int32_t four[4];
  _mm_store_si128(reinterpret_cast<__m128i*>(four), SumsOf4(sum));
  for (int q = 0; q < kQ; ++q) dots[q * stride] = four[q] - taken[q];
}

template <int kQ>
HWY_INLINE void DotsOf4Rows(const int8_t* rows, size_t row_bytes, int dim, const int8_t* const (&queries)[kQ],
                            const int32_t (&taken)[kQ], int32_t* dots, size_t stride) {
  const __m512i shift = _mm512_set1_epi8(-128);
  __m512i sum[kQ][4];
  for (int q = 0; q < kQ; ++q) {
    for (int r = 0; r < 4; ++r) sum[q][r] = _mm512_setzero_si512();
  }
  for (int i = 0; i < dim; i += 64) {
    for (int r = 0; r < 4; ++r) {
      const __m512i x = _mm512_xor_si512(_mm512_loadu_si512(rows + r * row_bytes + i), shift);
      for (int q = 0; q < kQ; ++q) {
        sum[q][r] = _mm512_dpbusd_epi32(sum[q][r], x, _mm512_loadu_si512(queries[q] + i));
        asm("" : "+v"(sum[q][r]));
      }
    }
  }
  for (int q = 0; q < kQ; ++q) {
    const __m128i four = _mm_sub_epi32(SumsOf4(sum[q]), _mm_set1_epi32(taken[q]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dots + q * stride), four);
  }
}

#endif

// dots[q * stride + i] = <row i, query q> for i < count; rows are row_bytes apart.
template <int kQ>
HWY_INLINE void Dots8(const int8_t* rows, size_t row_bytes, int count, int dim, const int8_t* const (&queries)[kQ],
                      int32_t* dots, size_t stride) {
  int row = 0;
#if HWY_TARGET == HWY_AVX3_DL
  if (dim % 64 == 0) {
    int32_t taken[kQ];
    for (int q = 0; q < kQ; ++q) {
      __m512i sum = _mm512_setzero_si512();
      for (int i = 0; i < dim; i += 64) {
        sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), _mm512_loadu_si512(queries[q] + i));
      }
      taken[q] = _mm512_reduce_add_epi32(sum);
    }
    for (; row + 4 <= count; row += 4)
      DotsOf4Rows(rows + row * row_bytes, row_bytes, dim, queries, taken, dots + row, stride);
    for (; row < count; ++row) DotsOfRow(rows + row * row_bytes, dim, queries, taken, dots + row, stride);
  }
#endif
  for (; row < count; ++row) {
    for (int q = 0; q < kQ; ++q) dots[q * stride + row] = Dot8Inline(rows + row * row_bytes, queries[q], dim);
  }
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
