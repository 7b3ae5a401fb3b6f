// The sums and exponents of a zone's sampled keys (kernels/ops/query/zone_mass.h), for every Highway target: a row of
// 16 keys, of one window, at a time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/mass/mass_ops.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include "kernels/cpu/targets.h"
#include "kernels/ops/mass/mass_ops.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {

void SumResidualsImpl(const MassRows& rows, float* e, float* squares) {
  F16 sum = Set16(0), sum2 = Set16(0);
  for (uint32_t i = 0; i < rows.size; i += kMassLanes) {
    const F16 x = Sub(Load16(rows.scores + i), Set16(rows.bases[i >> rows.shift]));
    sum = Add(sum, x);
    sum2 = Add(sum2, Mul(x, x));
  }
  Store16(sum, e);
  Store16(sum2, squares);
}

// MassModel::Exponent: the same operations in the same order.
void ExponentsImpl(const MassRows& rows, const MassModel& m, float* out) {
  const F16 unit = Set16(m.unit), mean = Set16(m.mean), shrink = Set16(m.shrink), spread = Set16(m.spread),
            bend = Set16(m.bend), half = Set16(0.5f), shift = Set16(m.shift), weight = Set16(m.weight);
  for (uint32_t i = 0; i < rows.size; i += kMassLanes) {
    const F16 base = Set16(rows.bases[i >> rows.shift]), e = Sub(Load16(rows.scores + i), base);
    const F16 logit = Mul(unit, Add(base, Add(mean, Mul(shrink, Sub(e, mean)))));
    const F16 s = Mul(spread, Load16(rows.factors + i));
    const F16 square = Map([&](size_t p) HWY_ATTR { return hn::Min(s.v[p], bend.v[p]); });
    const F16 growth = Add(Mul(Mul(half, square), square), Mul(bend, Sub(s, square)));
    Store16(Add(Add(Add(logit, growth), shift), weight), out + i);
  }
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(SumResidualsImpl);
HWY_EXPORT(ExponentsImpl);

void SumResiduals(const MassRows& rows, float* e, float* squares) {
  if (!ScalarForced()) return HWY_DYNAMIC_DISPATCH(SumResidualsImpl)(rows, e, squares);
  for (uint32_t j = 0; j < kMassLanes; ++j) e[j] = squares[j] = 0;
  for (uint32_t i = 0; i < rows.size; ++i) {
    const float x = rows.scores[i] - rows.bases[i >> rows.shift];
    e[i % kMassLanes] = e[i % kMassLanes] + x;
    squares[i % kMassLanes] = squares[i % kMassLanes] + x * x;
  }
}

void Exponents(const MassRows& rows, const MassModel& model, float* out) {
  if (!ScalarForced()) return HWY_DYNAMIC_DISPATCH(ExponentsImpl)(rows, model, out);
  for (uint32_t i = 0; i < rows.size; ++i) {
    const float base = rows.bases[i >> rows.shift];
    out[i] = model.Exponent(base, rows.scores[i] - base, rows.factors[i]);
  }
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
