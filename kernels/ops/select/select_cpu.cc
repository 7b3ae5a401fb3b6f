// The two passes of an exact selection, for every Highway target. Compression happens in registers and whole vectors
// are stored: compressed stores to memory run in microcode on some machines.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/select/select_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/bytes-inl.h"
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

// Bit i of the result is test of scores[i], i < 64.
template <typename Test>
HWY_INLINE uint64_t Test64(const float* scores, Test test) {
  uint64_t bits = 0;
  for (size_t part = 0; part < 4; ++part) {
    bits |= static_cast<uint64_t>(Test16(Load16(scores + part * 16), test)) << (part * 16);
  }
  return bits;
}

size_t CountAboveImpl(const float* scores, size_t n, float value) {
  const VF limit = hn::Set(DF(), value);
  size_t count = 0, i = 0;
  for (; i + 64 <= n; i += 64) {
    const uint64_t bits = Test64(scores + i, [&](VF x) HWY_ATTR { return hn::Gt(x, limit); });
    count += static_cast<size_t>(std::popcount(bits));
  }
  for (; i < n; ++i) count += scores[i] > value;
  return count;
}

// 64 scores are read before any is stored, so both may be the same memory.
void GatherBetweenImpl(const float* scores, size_t n, float low, float high, float* out) {
  const DF d;
  const VF vlow = hn::Set(d, low), vhigh = hn::Set(d, high);
  const auto between = [&](VF x) HWY_ATTR { return hn::And(hn::Gt(x, vlow), hn::Le(x, vhigh)); };
  size_t i = 0;
  if constexpr (kN == 16) {
    for (; i + kN <= n; i += kN) {
      const VF x = hn::LoadU(d, scores + i);
      const MF in = between(x);
      hn::StoreU(hn::Compress(x, in), d, out);
      out += hn::CountTrue(d, in);
    }
  } else {  // where nothing compresses, few are looked up one by one
    for (; i + 64 <= n; i += 64) {
      for (uint64_t bits = Test64(scores + i, between); bits != 0; bits &= bits - 1) {
        *out++ = scores[i + std::countr_zero(bits)];
      }
    }
  }
  for (; i < n; ++i) {
    if (scores[i] > low && scores[i] <= high) *out++ = scores[i];
  }
}

// Appends first + i of every bit i; room for 16 more.
HWY_INLINE size_t AppendPlaces(uint64_t bits, uint32_t first, uint32_t* out) {
  size_t count = 0;
#if HWY_TARGET == HWY_AVX3_DL
  alignas(64) static constexpr uint8_t kIota[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                                    32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                                    48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
  const __m512i found = _mm512_maskz_compress_epi8(bits, _mm512_load_si512(kIota)), start = _mm512_set1_epi32(first);
  count = static_cast<size_t>(_mm_popcnt_u64(bits));
  _mm512_storeu_si512(out, _mm512_add_epi32(_mm512_cvtepu8_epi32(_mm512_castsi512_si128(found)), start));
  if (HWY_LIKELY(count <= 16)) return count;
  alignas(64) uint8_t rest[64];
  _mm512_store_si512(rest, found);
  for (size_t c = 16; c < count; c += 16) {
    const __m128i places = _mm_load_si128(reinterpret_cast<const __m128i*>(rest + c));
    _mm512_storeu_si512(out + c, _mm512_add_epi32(_mm512_cvtepu8_epi32(places), start));
  }
#else
  count = AppendBits(bits, first, out);
#endif
  return count;
}

size_t PlacesAboveImpl(const float* scores, size_t n, float value, size_t ties, uint32_t* out) {
  const VF cut = hn::Set(DF(), value);
  size_t size = 0, i = 0;
  for (; i + 64 <= n; i += 64) {
    uint64_t keep = Test64(scores + i, [&](VF x) HWY_ATTR { return hn::Gt(x, cut); });
    if (ties > 0) {
      uint64_t equal = Test64(scores + i, [&](VF x) HWY_ATTR { return hn::Eq(x, cut); });
      for (; equal != 0 && ties > 0; equal &= equal - 1, --ties) keep |= equal & (0 - equal);
    }
    if (keep != 0) size += AppendPlaces(keep, static_cast<uint32_t>(i), out + size);
  }
  for (; i < n; ++i) {
    const bool tie = scores[i] == value && ties > 0;
    if (scores[i] > value || tie) out[size++] = static_cast<uint32_t>(i);
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
