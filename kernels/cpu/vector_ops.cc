// Conversions, rotation, means and dot products of rows: the float operations of ops.h, for every Highway target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/vector_ops.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/dot8-inl.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <bit>
#include <cassert>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/scalar.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {

void ToFloatImpl(const ConstRows& rows, int count, int dim, float* out) {
  for (int i = 0; i < count; ++i) {
    const void* row = rows.row(i);
    for (int j = 0; j < dim; j += 16) Store16(Load16Typed(row, rows.dtype, j), out + static_cast<size_t>(i) * dim + j);
  }
}

HWY_INLINE float DotRow(const void* row, DType dtype, int dim, const float* query) {
  F16 sum = Set16(0);
  for (int j = 0; j < dim; j += 16) sum = Add(sum, Mul(Load16Typed(row, dtype, j), Load16(query + j)));
  return Sum16(sum);
}

// One dtype a loop, so that the branch of Load16Typed is taken once and not for each 16 elements.
template <typename Row>
HWY_INLINE void DotEach(Row row, DType dtype, int64_t count, int dim, const float* query, float* out) {
  const auto run = [&](auto constant) HWY_ATTR {
    for (int64_t i = 0; i < count; ++i) out[i] = DotRow(row(i), decltype(constant)::value, dim, query);
  };
  if (dtype == DType::kFloat32) return run(std::integral_constant<DType, DType::kFloat32>());
  if (dtype == DType::kFloat16) return run(std::integral_constant<DType, DType::kFloat16>());
  run(std::integral_constant<DType, DType::kBFloat16>());
}

void DotRowsImpl(const ConstRows& rows, int64_t count, int dim, const float* query, float* out) {
  // 2 KiB ahead: what the machine's own streaming bandwidth wants; much further ahead halves it.
  const auto row = [&](int64_t i) HWY_ATTR {
    const uint8_t* p = static_cast<const uint8_t*>(rows.row(i));
    for (size_t b = 0; b < dim * SizeOf(rows.dtype); b += 64) hwy::Prefetch(p + 2048 + b);
    return static_cast<const void*>(p);
  };
  DotEach(row, rows.dtype, count, dim, query, out);
}

void DotGatherImpl(const ChunkedRows& rows, const int32_t* positions, int count, const float* query, float* out) {
  constexpr int kAhead = 12;  // rows in flight: about a DRAM latency's worth of dot products
  const size_t bytes = rows.head_dim * SizeOf(rows.dtype);
  const auto fetch = [&](int i) HWY_ATTR {
    const uint8_t* p = static_cast<const uint8_t*>(rows.row(positions[i]));
    for (size_t b = 0; b < bytes; b += 64) hwy::Prefetch(p + b);
  };
  for (int i = 0; i < count && i < kAhead; ++i) fetch(i);
  const auto row = [&](int64_t i) HWY_ATTR {
    if (i + kAhead < count) fetch(static_cast<int>(i) + kAhead);
    return rows.row(positions[i]);
  };
  DotEach(row, rows.dtype, count, rows.head_dim, query, out);
}

int64_t FirstNonFiniteImpl(const ConstRows& rows, int64_t count, int dim) {
  if (rows.dtype == DType::kFloat16) {  // no half overflows a norm, so the exponent decides
    const hn::CappedTag<uint16_t, 16> d;
    const auto magnitude = hn::Set(d, uint16_t{0x7FFF}), limit = hn::Set(d, uint16_t{0x7C00});
    for (int64_t i = 0; i < count; ++i) {
      const uint16_t* p = static_cast<const uint16_t*>(rows.row(i));
      auto largest = hn::Zero(d);
      for (int j = 0; j < dim; j += static_cast<int>(hn::Lanes(d))) {
        largest = hn::Max(largest, hn::And(hn::LoadU(d, p + j), magnitude));
      }
      if (!hn::AllTrue(d, hn::Lt(largest, limit))) return i;
    }
    return -1;
  }
  for (int64_t i = 0; i < count; ++i) {
    F16 sum = Set16(0);
    for (int j = 0; j < dim; j += 16) {
      const F16 x = Load16Typed(rows.row(i), rows.dtype, j);
      sum = Add(sum, Mul(x, x));
    }
    const float norm2 = Sum16(sum);
    if (!(norm2 - norm2 == 0.0f)) return i;
  }
  return -1;
}

// Butterflies between lanes h apart inside a vector: the partner arrives by a shuffle, lanes with bit h negate
// themselves.
template <size_t kH>
HWY_INLINE VF Butterfly(VF v, VF flip) {
  VF partner;
  if constexpr (kH == 1) partner = hn::Shuffle2301(v);
  if constexpr (kH == 2) partner = hn::Shuffle1032(v);
#if HWY_MAX_BYTES >= 32
  if constexpr (kH == 4) partner = hn::SwapAdjacentBlocks(v);
#endif
#if HWY_MAX_BYTES >= 64
  if constexpr (kH == 8) partner = hn::ReverseBlocks(DF(), hn::SwapAdjacentBlocks(v));
#endif
  return hn::Add(partner, hn::Xor(v, flip));
}

template <int kSize>
void WalshHadamard(float* x, const float* signs) {
  constexpr size_t kVectors = kSize / kN;
  const DF d;
  alignas(64) float flips[4][16];
  for (int s = 0; s < 4; ++s) {
    for (int i = 0; i < 16; ++i) flips[s][i] = (i >> s) & 1 ? -0.0f : 0.0f;
  }
  const VF f1 = hn::Load(d, flips[0]), f2 = hn::Load(d, flips[1]);
  [[maybe_unused]] const VF f4 = hn::Load(d, flips[2]), f8 = hn::Load(d, flips[3]);
  VF v[kVectors];
  for (size_t i = 0; i < kVectors; ++i) {
    v[i] = hn::Mul(hn::LoadU(d, x + i * kN), hn::LoadU(d, signs + i * kN));
    v[i] = Butterfly<2>(Butterfly<1>(v[i], f1), f2);
    if constexpr (kN >= 8) v[i] = Butterfly<4>(v[i], f4);
    if constexpr (kN >= 16) v[i] = Butterfly<8>(v[i], f8);
  }
  for (size_t h = 1; h < kVectors; h *= 2) {
    for (size_t i = 0; i < kVectors; i += 2 * h) {
      for (size_t j = i; j < i + h; ++j) {
        const VF a = v[j], b = v[j + h];
        v[j] = hn::Add(a, b);
        v[j + h] = hn::Sub(a, b);
      }
    }
  }
  for (size_t i = 0; i < kVectors; ++i) hn::StoreU(v[i], d, x + i * kN);
}

void RotateImpl(float* rows, int count, int dim, const float* signs) {
  const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(dim)));
  const auto transform = [&](float* x, const float* s) HWY_ATTR {
    switch (p) {
      case 32:
        return WalshHadamard<32>(x, s);
      case 64:
        return WalshHadamard<64>(x, s);
      case 128:
        return WalshHadamard<128>(x, s);
      case 256:
        return WalshHadamard<256>(x, s);
      default:
        assert(false && "head_dim outside [32, 511]");
    }
  };
  for (int i = 0; i < count; ++i) {
    float* x = rows + static_cast<size_t>(i) * dim;
    transform(x, signs);
    if (p < dim) transform(x + dim - p, signs + p);
  }
}

void MeanRowImpl(const float* rows, int count, int dim, float* out) {
  const F16 share = Set16(1.0f / static_cast<float>(count));
  for (int j = 0; j < dim; j += 16) {
    F16 sum = Load16(rows + j);
    for (int i = 1; i < count; ++i) sum = Add(sum, Load16(rows + static_cast<size_t>(i) * dim + j));
    Store16(Mul(sum, share), out + j);
  }
}

void SubtractRowImpl(float* rows, int count, int dim, const float* centre) {
  for (int i = 0; i < count; ++i) {
    float* x = rows + static_cast<size_t>(i) * dim;
    for (int j = 0; j < dim; j += 16) Store16(Sub(Load16(x + j), Load16(centre + j)), x + j);
  }
}

int32_t Dot8Impl(const int8_t* a, const int8_t* b, int n) { return Dot8Inline(a, b, n); }

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(ToFloatImpl);
HWY_EXPORT(DotRowsImpl);
HWY_EXPORT(DotGatherImpl);
HWY_EXPORT(FirstNonFiniteImpl);
HWY_EXPORT(RotateImpl);
HWY_EXPORT(MeanRowImpl);
HWY_EXPORT(SubtractRowImpl);
HWY_EXPORT(Dot8Impl);

void ToFloat(const ConstRows& rows, int count, int dim, float* out) {
  if (ScalarForced()) return scalar::ToFloat(rows, count, dim, out);
  HWY_DYNAMIC_DISPATCH(ToFloatImpl)(rows, count, dim, out);
}
void DotRows(const ConstRows& rows, int64_t count, int dim, const float* query, float* out) {
  if (ScalarForced()) return scalar::DotRows(rows, count, dim, query, out);
  HWY_DYNAMIC_DISPATCH(DotRowsImpl)(rows, count, dim, query, out);
}
void DotGather(const ChunkedRows& rows, const int32_t* positions, int count, const float* query, float* out) {
  if (ScalarForced()) return scalar::DotGather(rows, positions, count, query, out);
  HWY_DYNAMIC_DISPATCH(DotGatherImpl)(rows, positions, count, query, out);
}
int64_t FirstNonFinite(const ConstRows& rows, int64_t count, int dim) {
  if (ScalarForced()) return scalar::FirstNonFinite(rows, count, dim);
  return HWY_DYNAMIC_DISPATCH(FirstNonFiniteImpl)(rows, count, dim);
}
void Rotate(float* rows, int count, int dim, const float* signs) {
  if (ScalarForced()) return scalar::Rotate(rows, count, dim, signs);
  HWY_DYNAMIC_DISPATCH(RotateImpl)(rows, count, dim, signs);
}
void MeanRow(const float* rows, int count, int dim, float* out) {
  if (ScalarForced()) return scalar::MeanRow(rows, count, dim, out);
  HWY_DYNAMIC_DISPATCH(MeanRowImpl)(rows, count, dim, out);
}
void SubtractRow(float* rows, int count, int dim, const float* centre) {
  if (ScalarForced()) return scalar::SubtractRow(rows, count, dim, centre);
  HWY_DYNAMIC_DISPATCH(SubtractRowImpl)(rows, count, dim, centre);
}
int32_t Dot8(const int8_t* a, const int8_t* b, int n) {
  if (ScalarForced()) return scalar::Dot8(a, b, n);
  return HWY_DYNAMIC_DISPATCH(Dot8Impl)(a, b, n);
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
