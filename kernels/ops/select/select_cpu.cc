// The two passes of an exact selection, for every Highway target. Compression happens in registers and whole vectors
// are stored: compressed stores to memory run in microcode on some machines.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/select/select_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <bit>

#include "kernels/cpu/targets.h"
#include "kernels/ops/select/select.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {

template <typename Test>
HWY_INLINE uint32_t Test16(const F16& x, Test test) {
  MF masks[kParts];
  for (size_t i = 0; i < kParts; ++i) masks[i] = test(x.v[i]);
  return Bits16(masks);
}

void RangeImpl(const float* scores, size_t n, float* smallest, float* largest) {
  const DF d;
  VF low = hn::Set(d, scores[0]), high = low;
  size_t i = 0;
  for (; i + kN <= n; i += kN) {
    const VF x = hn::LoadU(d, scores + i);
    low = hn::Min(low, x);
    high = hn::Max(high, x);
  }
  *smallest = hn::GetLane(hn::MinOfLanes(d, low));
  *largest = hn::GetLane(hn::MaxOfLanes(d, high));
  for (; i < n; ++i) {
    if (scores[i] < *smallest) *smallest = scores[i];
    if (scores[i] > *largest) *largest = scores[i];
  }
}

size_t CountAboveImpl(const float* scores, size_t n, float value) {
  const VF limit = hn::Set(DF(), value);
  size_t count = 0, i = 0;
  for (; i + 64 <= n; i += 64) {
    uint64_t bits = 0;
    for (size_t part = 0; part < 4; ++part) {
      const F16 x = Load16(scores + i + part * 16);
      bits |= static_cast<uint64_t>(Test16(x, [&](VF v) HWY_ATTR { return hn::Gt(v, limit); })) << (part * 16);
    }
    count += static_cast<size_t>(std::popcount(bits));
  }
  for (; i < n; ++i) count += scores[i] > value;
  return count;
}

// A vector is read before what is stored reaches it, so both may be the same memory.
void GatherBetweenImpl(const float* scores, size_t n, float low, float high, float* out) {
  const DF d;
  const VF vlow = hn::Set(d, low), vhigh = hn::Set(d, high);
  size_t i = 0;
  for (; i + kN <= n; i += kN) {
    const VF x = hn::LoadU(d, scores + i);
    const MF in = hn::And(hn::Gt(x, vlow), hn::Le(x, vhigh));
    if (kN < 16 && hn::AllFalse(d, in)) continue;
    hn::StoreU(hn::Compress(x, in), d, out);
    out += hn::CountTrue(d, in);
  }
  for (; i < n; ++i) {
    if (scores[i] > low && scores[i] <= high) *out++ = scores[i];
  }
}

size_t PlacesAboveImpl(const float* scores, size_t n, float value, size_t ties, uint32_t* out) {
  const DF d;
  const hn::Rebind<int32_t, DF> di;
  const VF cut = hn::Set(d, value);
  const auto iota = hn::Iota(di, 0);
  int32_t* places = reinterpret_cast<int32_t*>(out);
  size_t size = 0, i = 0;
  for (; i + kN <= n; i += kN) {
    const VF x = hn::LoadU(d, scores + i);
    MF keep = hn::Gt(x, cut);
    const MF equal = hn::Eq(x, cut);
    if (ties > 0 && !hn::AllFalse(d, equal)) {  // rare, unless scores are few: the first ones stay
      const size_t first = hn::CountTrue(d, equal);
      if (first <= ties) {
        keep = hn::Or(keep, equal);
        ties -= first;
      } else {
        for (size_t lane = 0; lane < kN; ++lane) {
          const float s = scores[i + lane];
          const bool tie = s == value && ties > 0;
          if (s > value || tie) places[size++] = static_cast<int32_t>(i + lane);
          ties -= tie;
        }
        continue;
      }
    }
    if (kN < 16 && hn::AllFalse(d, keep)) continue;
    const auto at = hn::Add(iota, hn::Set(di, static_cast<int32_t>(i)));
    hn::StoreU(hn::Compress(at, hn::RebindMask(di, keep)), di, places + size);
    size += hn::CountTrue(d, keep);
  }
  for (; i < n; ++i) {
    const bool tie = scores[i] == value && ties > 0;
    if (scores[i] > value || tie) places[size++] = static_cast<int32_t>(i);
    ties -= tie;
  }
  return size;
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(RangeImpl);
HWY_EXPORT(CountAboveImpl);
HWY_EXPORT(GatherBetweenImpl);
HWY_EXPORT(PlacesAboveImpl);

void Range(const float* scores, size_t n, float* smallest, float* largest) {
  if (ScalarForced()) return scalar::Range(scores, n, smallest, largest);
  HWY_DYNAMIC_DISPATCH(RangeImpl)(scores, n, smallest, largest);
}
size_t CountAbove(const float* scores, size_t n, float value) {
  if (ScalarForced()) return scalar::CountAbove(scores, n, value);
  return HWY_DYNAMIC_DISPATCH(CountAboveImpl)(scores, n, value);
}
void GatherBetween(const float* scores, size_t n, float low, float high, float* out) {
  if (ScalarForced()) return scalar::GatherBetween(scores, n, low, high, out);
  HWY_DYNAMIC_DISPATCH(GatherBetweenImpl)(scores, n, low, high, out);
}
size_t PlacesAbove(const float* scores, size_t n, const Cut& cut, uint32_t* out) {
  if (ScalarForced()) return scalar::PlacesAbove(scores, n, cut, out);
  return HWY_DYNAMIC_DISPATCH(PlacesAboveImpl)(scores, n, cut.value, cut.ties, out);
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
