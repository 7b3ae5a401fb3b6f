// The two passes of an exact selection, for every Highway target. Masks are turned into places bit by bit, which beats
// compressed stores to memory on machines that run those in microcode.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/select_ops.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <bit>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/scalar.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {

template <typename Test>
HWY_INLINE uint32_t Test16(const F16& x, Test test) {
  MF masks[kParts];
  for (size_t i = 0; i < kParts; ++i) masks[i] = test(x.v[i]);
  return Bits16(masks);
}

size_t GatherBetweenImpl(const float* scores, size_t n, float low, float high, float* out, size_t* above) {
  const DF d;
  const VF vlow = hn::Set(d, low), vhigh = hn::Set(d, high);
  size_t size = 0, count = 0, i = 0;
  for (; i + 16 <= n; i += 16) {
    const F16 x = Load16(scores + i);
    const uint32_t over = Test16(x, [&](VF v) HWY_ATTR { return hn::Gt(v, vhigh); });
    count += std::popcount(over);
    uint32_t in = Test16(x, [&](VF v) HWY_ATTR { return hn::Ge(v, vlow); }) & ~over;
    for (; in != 0; in &= in - 1) out[size++] = scores[i + std::countr_zero(in)];
  }
  for (; i < n; ++i) {
    count += scores[i] > high;
    if (scores[i] >= low && !(scores[i] > high)) out[size++] = scores[i];
  }
  *above = count;
  return size;
}

size_t PlacesAboveImpl(const float* scores, size_t n, float value, size_t ties, uint32_t* out) {
  const VF cut = hn::Set(DF(), value);
  size_t size = 0, i = 0;
  for (; i + 16 <= n; i += 16) {
    const F16 x = Load16(scores + i);
    uint32_t in = Test16(x, [&](VF v) HWY_ATTR { return hn::Ge(v, cut); });
    for (; in != 0; in &= in - 1) {
      const size_t at = i + std::countr_zero(in);
      if (scores[at] == value && ties-- == 0) {
        ties = 0;
        continue;
      }
      out[size++] = static_cast<uint32_t>(at);
    }
  }
  for (; i < n; ++i) {
    if (scores[i] > value || (scores[i] == value && ties > 0)) {
      ties -= scores[i] == value;
      out[size++] = static_cast<uint32_t>(i);
    }
  }
  return size;
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(GatherBetweenImpl);
HWY_EXPORT(PlacesAboveImpl);

size_t GatherBetween(const float* scores, size_t n, float low, float high, float* out, size_t* above) {
  if (ScalarForced()) return scalar::GatherBetween(scores, n, low, high, out, above);
  return HWY_DYNAMIC_DISPATCH(GatherBetweenImpl)(scores, n, low, high, out, above);
}
size_t PlacesAbove(const float* scores, size_t n, const Cut& cut, uint32_t* out) {
  if (ScalarForced()) return scalar::PlacesAbove(scores, n, cut, out);
  return HWY_DYNAMIC_DISPATCH(PlacesAboveImpl)(scores, n, cut.value, cut.ties, out);
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
