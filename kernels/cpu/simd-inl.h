// Sixteen float lanes on any target: one vector of 16, two of 8 or four of 4. All sums of floats run in these lanes and
// are reduced by one tree, so every target gives the same bits. Per-target header: included once for each Highway
// target.
#if defined(SEINE_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SEINE_KERNELS_CPU_SIMD_INL_H_
#undef SEINE_KERNELS_CPU_SIMD_INL_H_
#else
#define SEINE_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"
#include "kernels/math.h"
#include "kernels/types.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
using MF = hn::Mask<DF>;
inline constexpr size_t kN = HWY_MAX_BYTES / 4 < 16 ? HWY_MAX_BYTES / 4 : 16;
inline constexpr size_t kParts = 16 / kN;

struct F16 {
  VF v[kParts];
};

template <typename Op>
HWY_INLINE F16 Map(Op op) {
  F16 r;
  for (size_t i = 0; i < kParts; ++i) r.v[i] = op(i);
  return r;
}
HWY_INLINE F16 Load16(const float* p) {
  return Map([&](size_t i) HWY_ATTR { return hn::LoadU(DF(), p + i * kN); });
}
HWY_INLINE void Store16(const F16& a, float* p) {
  for (size_t i = 0; i < kParts; ++i) hn::StoreU(a.v[i], DF(), p + i * kN);
}
HWY_INLINE F16 Set16(float x) {
  return Map([&](size_t) HWY_ATTR { return hn::Set(DF(), x); });
}
HWY_INLINE F16 Add(const F16& a, const F16& b) {
  return Map([&](size_t i) HWY_ATTR { return hn::Add(a.v[i], b.v[i]); });
}
HWY_INLINE F16 Sub(const F16& a, const F16& b) {
  return Map([&](size_t i) HWY_ATTR { return hn::Sub(a.v[i], b.v[i]); });
}
HWY_INLINE F16 Mul(const F16& a, const F16& b) {
  return Map([&](size_t i) HWY_ATTR { return hn::Mul(a.v[i], b.v[i]); });
}

// Lane i with lane i ^ 4, i ^ 2, i ^ 1 within groups of 8; every lane of a group ends with the group's sum.
HWY_INLINE VF AddNear(VF s) {
  s = hn::Add(s, hn::Shuffle1032(s));
  return hn::Add(s, hn::Shuffle2301(s));
}
HWY_INLINE F16 SumOf8(const F16& a) {
  F16 r;
#if HWY_MAX_BYTES >= 32
  for (size_t i = 0; i < kParts; ++i) r.v[i] = AddNear(hn::Add(a.v[i], hn::SwapAdjacentBlocks(a.v[i])));
#else
  for (size_t i = 0; i < kParts; i += 2) r.v[i] = r.v[i + 1] = AddNear(hn::Add(a.v[i], a.v[i + 1]));
#endif
  return r;
}

// The tree: lanes i + (i + 8), then + 4, + 2, + 1.
HWY_INLINE float Sum16(const F16& a) {
#if HWY_MAX_BYTES >= 64
  const hn::Half<DF> d8;
  const hn::Half<decltype(d8)> d4;
  const auto s8 = hn::Add(hn::LowerHalf(d8, a.v[0]), hn::UpperHalf(d8, a.v[0]));
  auto s = hn::Add(hn::LowerHalf(d4, s8), hn::UpperHalf(d4, s8));
#elif HWY_MAX_BYTES >= 32
  const hn::Half<DF> d4;
  const auto s8 = hn::Add(a.v[0], a.v[1]);
  auto s = hn::Add(hn::LowerHalf(d4, s8), hn::UpperHalf(d4, s8));
#else
  auto s = hn::Add(hn::Add(a.v[0], a.v[2]), hn::Add(a.v[1], a.v[3]));
#endif
  s = hn::Add(s, hn::Shuffle1032(s));
  s = hn::Add(s, hn::Shuffle2301(s));
  return hn::GetLane(s);
}

// out[i] = Sum16(s[i]), by the same tree: the adds of several sums share vectors.
HWY_INLINE void StoreSums4(const F16 (&s)[4], float* out) {
  const hn::FixedTag<float, 4> d4;
#if HWY_MAX_BYTES >= 64
  const DF d;
  const hn::Half<DF> d8;
  const auto blocks = [&](VF a, VF b) HWY_ATTR {  // two of a's, two of b's, the blocks added
    const VF halves = hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
    return hn::Add(halves, hn::SwapAdjacentBlocks(halves));
  };
  const VF all = hn::OddEvenBlocks(blocks(s[1].v[0], s[3].v[0]), blocks(s[0].v[0], s[2].v[0]));
  alignas(64) static constexpr int32_t kFirsts[16] = {0, 4, 8, 12};
  const VF firsts = hn::TableLookupLanes(AddNear(all), hn::SetTableIndices(d, kFirsts));
  const auto sums = hn::LowerHalf(d4, hn::LowerHalf(d8, firsts));
#else
  const auto block = [&](const F16& a) HWY_ATTR {
#if HWY_MAX_BYTES >= 32
    const VF near = hn::Add(a.v[0], a.v[1]);
    return hn::Add(hn::LowerHalf(d4, near), hn::UpperHalf(d4, near));
#else
    return hn::Add(hn::Add(a.v[0], a.v[2]), hn::Add(a.v[1], a.v[3]));
#endif
  };
  const auto pairs = [&](const F16& x, const F16& y) HWY_ATTR {
    const auto a = block(x), b = block(y);
    return hn::Add(hn::InterleaveLower(d4, a, b), hn::InterleaveUpper(d4, a, b));
  };
  const auto ab = pairs(s[0], s[1]), cd = pairs(s[2], s[3]);
  const auto sums = hn::Add(hn::ConcatLowerLower(d4, cd, ab), hn::ConcatUpperUpper(d4, cd, ab));
#endif
  hn::StoreU(sums, d4, out);
}
// The first `count` of them, at most four.
HWY_INLINE void StoreSums4(const F16 (&s)[4], int count, float* out) {
  if (count >= 4) return StoreSums4(s, out);
  alignas(16) float four[4];
  StoreSums4(s, four);
  for (int i = 0; i < count; ++i) out[i] = four[i];
}

// out[g * apart + r] = Sum16(s[g][r]), by the same tree. With 16 lanes, all sixteen share vectors from the first add
// on.
HWY_INLINE void StoreSums16(const F16 (&s)[4][4], float* out, ptrdiff_t apart) {
#if HWY_MAX_BYTES >= 64
  const DF d;
  const hn::Repartition<double, DF> d64;
  const hn::FixedTag<float, 4> d4;
  const auto halves = [&](VF a, VF b) HWY_ATTR {  // two blocks of a's, two of b's
    return hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
  };
  VF of_row[4];  // block g: four lanes of query g
  for (int r = 0; r < 4; ++r) {
    const VF a = halves(s[0][r].v[0], s[2][r].v[0]), b = halves(s[1][r].v[0], s[3][r].v[0]);
    of_row[r] = hn::Add(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
  }
  const auto pairs = [&](VF a, VF b) HWY_ATTR {  // block g: two lanes of a's, two of b's
    const auto x = hn::BitCast(d64, a), y = hn::BitCast(d64, b);
    return hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, x, y)), hn::BitCast(d, hn::InterleaveUpper(d64, x, y)));
  };
  const VF ab = pairs(of_row[0], of_row[1]), cd = pairs(of_row[2], of_row[3]);
  const VF all = hn::Add(hn::ConcatEven(d, cd, ab), hn::ConcatOdd(d, cd, ab));
  alignas(64) static constexpr int32_t kByQuery[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
  alignas(64) float sums[16];
  hn::Store(hn::TableLookupLanes(all, hn::SetTableIndices(d, kByQuery)), d, sums);
  for (int g = 0; g < 4; ++g) hn::StoreU(hn::Load(d4, sums + 4 * g), d4, out + g * apart);
#else
  for (int g = 0; g < 4; ++g) StoreSums4(s[g], out + g * apart);
#endif
}

// Bit j of the result is lane j of the mask.
template <typename Masks>
HWY_INLINE uint32_t Bits16(const Masks& masks) {
#if HWY_ARCH_X86 && HWY_MAX_BYTES >= 64
  return masks[0].raw;
#endif
  uint32_t bits = 0;
  for (size_t i = 0; i < kParts; ++i) {
    uint8_t part[8] = {0};
    hn::StoreMaskBits(DF(), masks[i], part);
    bits |= (part[0] | (kN > 8 ? uint32_t{part[1]} << 8 : 0u)) << (i * kN);
  }
  return bits;
}

// The factors that kN codes stand for (math.h, DecodeFactor).
template <typename Codes>
HWY_INLINE VF DecodeFactors(Codes codes, uint32_t base) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  if (HWY_LIKELY((base & kWideFactors) == 0)) {
    return hn::BitCast(d, hn::Add(hn::ShiftLeft<kFactorShift>(codes), hn::Set(di, static_cast<int32_t>(base))));
  }
  const auto least = hn::Set(di, static_cast<int32_t>(base & ~kWideFactors));
  const auto factors = hn::BitCast(d, hn::Add(hn::ShiftLeft<kWideFactorShift>(codes), least));
  return hn::IfThenZeroElse(hn::RebindMask(d, hn::Eq(codes, hn::Zero(di))), factors);
}

// Elements [offset, offset + 16) of a quantised row as floats; they share a scale.
HWY_INLINE F16 Load16Quantised(const void* row, DType dtype, size_t offset) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const uint8_t* p = static_cast<const uint8_t*>(row) + BytesOf(dtype, offset / kScaledValues * kScaledValues);
  uint16_t bits;
  memcpy(&bits, p, sizeof(bits));
  const hn::Rebind<uint16_t, DF> d16;
  const VF scale = hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), hn::Set(d16, bits)));
  p += sizeof(bits);
  const size_t half = offset % kScaledValues;  // 0 or 16
  if (dtype == DType::kQ8) {
    const int8_t* values = reinterpret_cast<const int8_t*>(p) + half;
    const hn::Rebind<int8_t, DF> d8;
    return Map([&](size_t i) HWY_ATTR {
      return hn::Mul(hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, values + i * kN))), scale);
    });
  }
  const hn::Rebind<uint8_t, DF> d8;
  const auto low = hn::Set(di, 15), middle = hn::Set(di, 8);
  return Map([&](size_t i) HWY_ATTR {
    const auto both = hn::PromoteTo(di, hn::LoadU(d8, p + i * kN));
    const auto value = hn::And(hn::ShiftRightSame(both, static_cast<int>(half / 4)), low);
    return hn::Mul(hn::ConvertTo(d, hn::Sub(value, middle)), scale);
  });
}

// 16 elements of a typed row as floats.
HWY_INLINE F16 Load16Typed(const void* row, DType dtype, size_t offset) {
  if (dtype == DType::kFloat32) return Load16(static_cast<const float*>(row) + offset);
  if (IsQuantised(dtype)) return Load16Quantised(row, dtype, offset);
  const uint16_t* p = static_cast<const uint16_t*>(row) + offset;
  const hn::Rebind<hwy::float16_t, DF> dh;
  const hn::Rebind<hwy::bfloat16_t, DF> db;
  if (dtype == DType::kFloat16) {
    return Map([&](size_t i) HWY_ATTR {
      return hn::PromoteTo(DF(), hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(p + i * kN)));
    });
  }
  return Map([&](size_t i) HWY_ATTR {
    return hn::PromoteTo(DF(), hn::LoadU(db, reinterpret_cast<const hwy::bfloat16_t*>(p + i * kN)));
  });
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
