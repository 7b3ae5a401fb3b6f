// Bytes of many keys by the lane: loads that put a tile of keys into each 128-bit lane, turns after which a vector
// holds one byte position of them, and lists of those that a mask names. Per-target header.
#if defined(SEINE_KERNELS_CPU_BYTES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SEINE_KERNELS_CPU_BYTES_INL_H_
#undef SEINE_KERNELS_CPU_BYTES_INL_H_
#else
#define SEINE_KERNELS_CPU_BYTES_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D8 = hn::CappedTag<uint8_t, 64>;
using DI8 = hn::RebindToSigned<D8>;
using V8 = hn::Vec<D8>;
using D16 = hn::Repartition<uint16_t, D8>;
using V16 = hn::Vec<D16>;
inline constexpr size_t kLanes8 = HWY_MAX_BYTES >= 64 ? 64 : HWY_MAX_BYTES;
inline constexpr size_t kLanes128 = kLanes8 / 16;  // 128-bit lanes, one tile each

// One 128-bit lane from each of kLanes128 tiles.
HWY_INLINE V8 LoadLanes(const uint8_t* p, size_t tile_bytes) {
  const D8 d;
#if HWY_MAX_BYTES >= 64
  const hn::Half<D8> d2;
  const hn::Half<decltype(d2)> d1;
  const auto low = hn::Combine(d2, hn::LoadU(d1, p + tile_bytes), hn::LoadU(d1, p));
  const auto high = hn::Combine(d2, hn::LoadU(d1, p + 3 * tile_bytes), hn::LoadU(d1, p + 2 * tile_bytes));
  return hn::Combine(d, high, low);
#elif HWY_MAX_BYTES >= 32
  const hn::Half<D8> d1;
  return hn::Combine(d, hn::LoadU(d1, p + tile_bytes), hn::LoadU(d1, p));
#else
  return hn::LoadU(d, p);
#endif
}

// The reverse: each 128-bit lane to its place, `apart` bytes from the one before.
template <class V>
HWY_INLINE void StoreLanes(V v, uint8_t* p, size_t apart) {
  const D8 d;
  const V8 bytes = hn::BitCast(d, v);
#if HWY_MAX_BYTES == 32
  const hn::Half<D8> d1;
  hn::StoreU(hn::LowerHalf(d1, bytes), d1, p);
  hn::StoreU(hn::UpperHalf(d1, bytes), d1, p + apart);
#else
  alignas(64) uint8_t all[kLanes8];
  hn::Store(bytes, d, all);
  for (size_t l = 0; l < kLanes128; ++l) memcpy(p + l * apart, all + l * 16, 16);
#endif
}

// GCC puts additions off and spills what is to be added, unless each sum is pinned to its register.
template <class V>
HWY_INLINE void Pin(V& v) {
#if HWY_ARCH_X86
  asm("" : "+x"(v.raw));
#endif
}

// Appends first + i for every bit i and returns how many these are; room for three more. Four are written without a
// branch, which would be foretold too badly.
template <typename T>
HWY_INLINE size_t AppendBits(uint64_t bits, T first, T* out) {
  const auto count = static_cast<size_t>(hwy::PopCount(bits));
  do {
    for (int i = 0; i < 4; ++i, bits &= bits - 1) {
      asm("" : "+r"(bits));  // GCC would end the four early, by a branch
      *out++ = static_cast<T>(first + static_cast<T>(std::countr_zero(bits)));
    }
  } while (bits != 0);
  return count;
}

// Turns 16 bytes of kLanes8 keys, stride apart: out[b * kLanes8 + k] is byte b of key k. Four perfect shuffles of what
// lies in the same lanes turn sixteen times sixteen bytes.
HWY_INLINE void TurnKeys(const uint8_t* keys, size_t stride, uint8_t* out) {
  const D8 d;
  V8 v[16];
  for (size_t i = 0; i < 16; ++i) v[i] = LoadLanes(keys + i * stride, 16 * stride);
  for (int round = 0; round < 4; ++round) {
    V8 to[16];
    for (size_t i = 0; i < 8; ++i) {
      to[2 * i] = hn::InterleaveLower(d, v[i], v[i + 8]);
      to[2 * i + 1] = hn::InterleaveUpper(d, v[i], v[i + 8]);
    }
    for (size_t i = 0; i < 16; ++i) v[i] = to[i];
  }
  for (size_t i = 0; i < 16; ++i) hn::Store(v[i], d, out + i * kLanes8);
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
