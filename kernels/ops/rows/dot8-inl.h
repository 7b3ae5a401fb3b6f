// Exact int8 dot product, inlined into the scan as well. Per-target header.
#if defined(SEINE_KERNELS_OPS_ROWS_DOT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SEINE_KERNELS_OPS_ROWS_DOT8_INL_H_
#undef SEINE_KERNELS_OPS_ROWS_DOT8_INL_H_
#else
#define SEINE_KERNELS_OPS_ROWS_DOT8_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
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

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
