// SinCosOf and TurnPair of rope.h for every Highway target: the same operations in the same order, none of them fused,
// so fp64's bits are theirs. A vector's lanes hide the latency of two chains of a dozen products.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/low_rank/turn_row.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
// clang-format on
#include "kernels/cpu/targets.h"
#include "kernels/ops/low_rank/turn_row.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D64 = hn::CappedTag<double, 8>;
using V64 = hn::Vec<D64>;

// The series in z: 1 - z k_0 (1 - z k_1 (...)), from the last factor to the first.
template <size_t kTerms>
HWY_INLINE V64 Series(V64 z, const double (&factors)[kTerms]) {
  const D64 d;
  const V64 one = hn::Set(d, 1.0);
  V64 sum = hn::Sub(one, hn::Mul(z, hn::Set(d, factors[0])));
  for (size_t i = 1; i < kTerms; ++i) sum = hn::Sub(one, hn::Mul(hn::Mul(z, hn::Set(d, factors[i])), sum));
  return sum;
}

HWY_INLINE void SinCosOfLanes(V64 angle, V64* sin, V64* cos) {
  constexpr double kSine[] = {1.0 / 272, 1.0 / 210, 1.0 / 156, 1.0 / 110, 1.0 / 72, 1.0 / 42, 1.0 / 20, 1.0 / 6};
  constexpr double kCosine[] = {1.0 / 240, 1.0 / 182, 1.0 / 132, 1.0 / 90, 1.0 / 56, 1.0 / 30, 1.0 / 12, 0.5};
  const D64 d;
  const V64 turns = hn::Mul(angle, hn::Set(d, 0.63661977236758138));
  const V64 half = hn::IfThenElse(hn::Lt(turns, hn::Zero(d)), hn::Set(d, -0.5), hn::Set(d, 0.5));
  const V64 m = hn::Trunc(hn::Add(turns, half));
  V64 r = hn::Sub(angle, hn::Mul(m, hn::Set(d, 0x1.921fb0p+0)));
  r = hn::Sub(r, hn::Mul(m, hn::Set(d, 0x1.5110b0p-22)));
  r = hn::Sub(r, hn::Mul(m, hn::Set(d, 0x1.18469898cc517p-44)));
  const V64 z = hn::Mul(r, r), s = hn::Mul(r, Series(z, kSine)), c = Series(z, kCosine);
  // m modulo 4, exact: m is below 2^31.
  const V64 quarter = hn::Sub(m, hn::Mul(hn::Set(d, 4.0), hn::Floor(hn::Mul(m, hn::Set(d, 0.25)))));
  const auto first = hn::Eq(quarter, hn::Set(d, 1.0)), third = hn::Eq(quarter, hn::Set(d, 3.0));
  const auto odd = hn::Or(first, third), second = hn::Eq(quarter, hn::Set(d, 2.0));
  const V64 sine = hn::IfThenElse(odd, c, s), cosine = hn::IfThenElse(odd, s, c);
  *sin = hn::IfThenElse(hn::Or(second, third), hn::Neg(sine), sine);
  *cos = hn::IfThenElse(hn::Or(first, second), hn::Neg(cosine), cosine);
}

void TurnRowImpl(const RopeTurns& rope, int head_dim, int32_t position, float* row) {
  const D64 d;
  const hn::Rebind<float, D64> df;
  const int pairs = head_dim / 2;
  for (int i = 0; i < pairs; i += static_cast<int>(hn::Lanes(d))) {
    V64 sin, cos;
    SinCosOfLanes(hn::Mul(hn::Set(d, static_cast<double>(position)), hn::LoadU(d, rope.inv_freq + i)), &sin, &cos);
    auto x = hn::Zero(df), y = x;
    if (rope.interleaved) {
      hn::LoadInterleaved2(df, row + 2 * i, x, y);
    } else {
      x = hn::LoadU(df, row + i);
      y = hn::LoadU(df, row + i + pairs);
    }
    const V64 a = hn::PromoteTo(d, x), b = hn::PromoteTo(d, y);
    x = hn::DemoteTo(df, hn::Sub(hn::Mul(a, cos), hn::Mul(b, sin)));
    y = hn::DemoteTo(df, hn::Add(hn::Mul(a, sin), hn::Mul(b, cos)));
    if (rope.interleaved) {
      hn::StoreInterleaved2(x, y, df, row + 2 * i);
    } else {
      hn::StoreU(x, df, row + i);
      hn::StoreU(y, df, row + i + pairs);
    }
  }
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(TurnRowImpl);

void TurnRow(const RopeTurns& rope, int head_dim, int32_t position, float* row) {
  if (!ScalarForced()) return HWY_DYNAMIC_DISPATCH(TurnRowImpl)(rope, head_dim, position, row);
  for (int pair = 0; pair < head_dim / 2; ++pair) TurnPair(rope, head_dim, pair, position, row);
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
