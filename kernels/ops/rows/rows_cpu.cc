// Conversions, rotation, means and dot products of rows: the float operations of rows.h, for every Highway target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/rows/rows_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/ops/rows/dot8-inl.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/targets.h"
#include "kernels/ops/rows/row_walk.h"
#include "kernels/ops/rows/rows.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL
#pragma GCC target("avx512vnni")  // Highway tests for it at run time but leaves it out of the target's options
#endif
namespace seine::cpu::HWY_NAMESPACE {

void ToFloatImpl(const ConstRows& rows, int count, int dim, float* out) {
  for (int i = 0; i < count; ++i) {
    const void* row = rows.row(i);
    for (int j = 0; j < dim; j += 16) Store16(Load16Typed(row, rows.dtype, j), out + static_cast<size_t>(i) * dim + j);
  }
}

// Rows [first, first + kRows) of four with kQueries queries: a row is loaded and converted once. sums[g][r] are the
// lanes of query g with row r.
template <int kQueries, int kRows>
HWY_INLINE void MultiplyRows(const void* const (&rows)[4], int first, DType dtype, int dim, const float* queries,
                             F16 (&sums)[kQueries][4]) {
  F16 part[kQueries][kRows];
  for (auto& of_query : part) {
    for (F16& sum : of_query) sum = Set16(0);
  }
  int j = 0;
  do {
    F16 x[kRows];
    for (int r = 0; r < kRows; ++r) x[r] = Load16Typed(rows[first + r], dtype, j);
    for (int g = 0; g < kQueries; ++g) {
      const F16 query = Load16(queries + static_cast<size_t>(g) * dim + j);
      for (int r = 0; r < kRows; ++r) part[g][r] = Add(part[g][r], Mul(x[r], query));
    }
    j += 16;
  } while (j < dim);
  for (int g = 0; g < kQueries; ++g) {
    for (int r = 0; r < kRows; ++r) sums[g][first + r] = part[g][r];
  }
}

// Products of rows row(0 .. count) in order, four at a time; ask(i) comes before rows i to i + 3.
template <int kQueries, typename Row, typename Ask>
HWY_INLINE void DotEachTyped(Row row, Ask ask, DType dtype, int64_t count, int dim, const float* queries, float* out,
                             int64_t stride) {
  // One dtype a loop, so that the branch of Load16Typed is taken once and not for each 16 elements.
  const auto run = [&](auto constant) HWY_ATTR {
    constexpr int kRows = kN == 16 ? 4 : 1;  // whose sums the registers hold
    const auto four = [&](const void* const(&rows)[4], float* to, int64_t apart) HWY_ATTR {
      F16 sums[kQueries][4];
      for (int r = 0; r < 4; r += kRows) {
        MultiplyRows<kQueries, kRows>(rows, r, decltype(constant)::value, dim, queries, sums);
      }
      if constexpr (kQueries == 4) {
        StoreSums16(sums, to, apart);
      } else {
        for (int g = 0; g < kQueries; ++g) StoreSums4(sums[g], to + g * apart);
      }
    };
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
      ask(i);
      const void* const rows[4] = {row(i), row(i + 1), row(i + 2), row(i + 3)};
      four(rows, out + i, stride);
    }
    if (i == count) return;
    ask(i);
    const void* rows[4];
    for (int r = 0; r < 4; ++r) rows[r] = row(i + r < count ? i + r : i);
    float last[kQueries][4];
    four(rows, last[0], 4);
    for (int g = 0; g < kQueries; ++g) std::copy_n(last[g], count - i, out + g * stride + i);
  };
  switch (dtype) {
    case DType::kFloat32:
      return run(std::integral_constant<DType, DType::kFloat32>());
    case DType::kFloat16:
      return run(std::integral_constant<DType, DType::kFloat16>());
    case DType::kBFloat16:
      return run(std::integral_constant<DType, DType::kBFloat16>());
    case DType::kQ8:
      return run(std::integral_constant<DType, DType::kQ8>());
    case DType::kQ4:
      return run(std::integral_constant<DType, DType::kQ4>());
  }
}

template <typename Row, typename Ask>
HWY_INLINE void DotEach(Row row, Ask ask, DType dtype, int64_t count, int dim, const float* queries, int group,
                        float* out, int64_t stride) {
  while (group > 0) {
    const int now = group < 4 ? group : 4;
    if (now == 4) DotEachTyped<4>(row, ask, dtype, count, dim, queries, out, stride);
    if (now == 3) DotEachTyped<3>(row, ask, dtype, count, dim, queries, out, stride);
    if (now == 2) DotEachTyped<2>(row, ask, dtype, count, dim, queries, out, stride);
    if (now == 1) DotEachTyped<1>(row, ask, dtype, count, dim, queries, out, stride);
    queries += static_cast<size_t>(now) * dim;
    out += now * stride;
    group -= now;
  }
}

void DotRowsImpl(const ConstRows& rows, int64_t count, int dim, const float* queries, int group, float* out,
                 int64_t stride, const RowsAhead& ahead) {
  // So far ahead of the products, a quarter of the first cache. The lead grows by a row with each row, as a burst would
  // make the first products wait.
  constexpr size_t kFarBytes = 12 << 10, kNearBytes = 2 << 10;
  constexpr int64_t kBlock = 512;  // rows that are still at hand when the next four queries come
  const size_t bytes = BytesOf(rows.dtype, dim);
  const auto far = static_cast<int64_t>(kFarBytes / bytes), near = static_cast<int64_t>(kNearBytes / bytes);
  const int64_t last = count + ahead.count;
  int64_t asked = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const auto ask = [&](int64_t i) HWY_ATTR {
      const int64_t at = begin + i + 3;
      for (const int64_t stop = std::min({2 * at + near, at + far, last}); asked < stop; ++asked) {
        const void* of = asked < count ? rows.row(asked) : ahead.rows.row(asked - count);
        const uint8_t* p = static_cast<const uint8_t*>(of);
        for (size_t b = 0; b < bytes; b += 64) Prefetch(p + b);
      }
    };
    const auto row = [&](int64_t i) HWY_ATTR { return rows.row(begin + i); };
    DotEach(row, ask, rows.dtype, count - begin < kBlock ? count - begin : kBlock, dim, queries, group, out + begin,
            stride);
  }
}

void DotGatherImpl(const ChunkedRows& rows, const int32_t* positions, int count, const float* queries, int group,
                   float* out) {
  // So far ahead of the products. Requests that come faster than memory answers are dropped: the lead grows by a row
  // with each row, and what a caller has asked for in a burst is asked for again.
  constexpr size_t kFarBytes = 10 << 10;
  constexpr int64_t kMostFar = 56, kNear = 4, kRing = 64;  // rows
  const size_t bytes = BytesOf(rows.dtype, rows.head_dim);
  const auto far = std::clamp<int64_t>(kFarBytes / bytes, kNear, kMostFar);
  const uint8_t* ahead[kRing];
  RowWalk walk(rows);
  int64_t asked = 0;
  const auto ask = [&](int64_t i) HWY_ATTR {
    if (i == 0) asked = 0;  // from the first row on for each four queries
    const int64_t at = i + 3;
    for (const int64_t stop = std::min<int64_t>({2 * at + kNear, at + far, count}); asked < stop; ++asked) {
      const uint8_t* p = walk.At(positions[asked]);
      for (size_t b = 0; b < bytes; b += 64) PrefetchFar(p + b);
      ahead[asked % kRing] = p;
    }
  };
  const auto row = [&](int64_t i) HWY_ATTR { return ahead[i % kRing]; };
  DotEach(row, ask, rows.dtype, count, rows.head_dim, queries, group, out, count);
}

// math.h, ExpNonPositive: the same operations in the same order.
HWY_INLINE VF Exp(VF x) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const auto set = [&](float c) HWY_ATTR { return hn::Set(d, c); };
  const auto n = hn::ConvertTo(di, hn::Sub(hn::Mul(x, set(1.44269504f)), set(0.5f)));
  const VF whole = hn::ConvertTo(d, n);
  const VF r = hn::Add(hn::Sub(x, hn::Mul(whole, set(0.693359375f))), hn::Mul(whole, set(2.12194440e-4f)));
  VF p = set(1.9875691500e-4f);
  for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    p = hn::Add(hn::Mul(p, r), set(c));
  }
  p = hn::Add(hn::Add(hn::Mul(hn::Mul(p, r), r), r), set(1.0f));
  const VF power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
  return hn::IfThenElseZero(hn::Gt(x, set(-87.0f)), hn::Mul(p, power));
}

void SumExpImpl(const float* x, size_t n, float scale, float shift, float* lanes) {
  const F16 vscale = Set16(scale), vshift = Set16(shift);
  F16 sum = Load16(lanes);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F16 t = Sub(Mul(Load16(x + i), vscale), vshift);
    sum = Add(sum, Map([&](size_t p) HWY_ATTR { return Exp(t.v[p]); }));
  }
  Store16(sum, lanes);
  scalar::SumExp(x + i, n - i, scale, shift, lanes);
}

void ExpInPlaceImpl(float* x, size_t n, float shift, float* lanes) {
  const F16 vshift = Set16(shift);
  const VF zero = hn::Zero(DF());
  F16 sum = Load16(lanes);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F16 t = Sub(Load16(x + i), vshift);
    const F16 e = Map([&](size_t p) HWY_ATTR { return Exp(hn::Min(t.v[p], zero)); });
    sum = Add(sum, e);
    Store16(e, x + i);
  }
  Store16(sum, lanes);
  scalar::ExpInPlace(x + i, n - i, shift, lanes);
}

void AddExpImpl(const float* x, size_t n, float shift, float share, float* out) {
  const F16 vshare = Set16(share), vshift = Set16(shift);
  const VF zero = hn::Zero(DF());
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F16 t = Sub(Load16(x + i), vshift);
    const F16 e = Map([&](size_t p) HWY_ATTR { return Exp(hn::Min(t.v[p], zero)); });
    Store16(Add(Load16(out + i), Mul(e, vshare)), out + i);
  }
  scalar::AddExp(x + i, n - i, shift, share, out + i);
}

void CapEachImpl(float* x, size_t n, float cap) {
  const DF d;
  const VF vcap = hn::Set(d, cap), by = hn::Set(d, -2.0f / cap), one = hn::Set(d, 1.0f);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F16 v = Load16(x + i);
    const F16 capped = Map([&](size_t p) HWY_ATTR {
      const VF t = Exp(hn::Mul(hn::Abs(v.v[p]), by));
      return hn::CopySign(hn::Mul(hn::Div(hn::Sub(one, t), hn::Add(one, t)), vcap), v.v[p]);
    });
    Store16(capped, x + i);
  }
  scalar::CapEach(x + i, n - i, cap);
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
  if (IsQuantised(rows.dtype)) {  // the same of scales
    for (int64_t i = 0; i < count; ++i) {
      for (int j = 0; j < dim; j += kScaledValues) {
        uint16_t scale;
        memcpy(&scale, static_cast<const uint8_t*>(rows.row(i)) + BytesOf(rows.dtype, j), sizeof(scale));
        if ((scale & 0x7C00) == 0x7C00) return i;
      }
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
      case 512:
        return WalshHadamard<512>(x, s);
      default:
        assert(false && "head_dim outside [32, 1023]");
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

void ToInt8RowImpl(const float* x, int n, float inverse, int8_t* out) {
  const DF d;
  const hn::Rebind<int32_t, DF> di;
  const hn::Rebind<int8_t, DF> d8;
  const VF scale = hn::Set(d, inverse), half = hn::Set(d, 0.5f);
  for (size_t i = 0; i < static_cast<size_t>(n); i += kN) {
    const VF v = hn::Mul(hn::LoadU(d, x + i), scale);
    hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(di, hn::Add(v, hn::CopySign(half, v)))), d8, out + i);
  }
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(ToFloatImpl);
HWY_EXPORT(DotRowsImpl);
HWY_EXPORT(DotGatherImpl);
HWY_EXPORT(SumExpImpl);
HWY_EXPORT(ExpInPlaceImpl);
HWY_EXPORT(AddExpImpl);
HWY_EXPORT(CapEachImpl);
HWY_EXPORT(FirstNonFiniteImpl);
HWY_EXPORT(RotateImpl);
HWY_EXPORT(MeanRowImpl);
HWY_EXPORT(SubtractRowImpl);
HWY_EXPORT(Dot8Impl);
HWY_EXPORT(ToInt8RowImpl);

void ToFloat(const ConstRows& rows, int count, int dim, float* out) {
  if (ScalarForced()) return scalar::ToFloat(rows, count, dim, out);
  HWY_DYNAMIC_DISPATCH(ToFloatImpl)(rows, count, dim, out);
}
void DotRows(const ConstRows& rows, int64_t count, int dim, const float* queries, int group, float* out, int64_t stride,
             const RowsAhead& ahead) {
  if (ScalarForced()) return scalar::DotRows(rows, count, dim, queries, group, out, stride);
  HWY_DYNAMIC_DISPATCH(DotRowsImpl)(rows, count, dim, queries, group, out, stride, ahead);
}
void DotGather(const ChunkedRows& rows, const int32_t* positions, int count, const float* queries, int group,
               float* out) {
  if (ScalarForced()) return scalar::DotGather(rows, positions, count, queries, group, out);
  HWY_DYNAMIC_DISPATCH(DotGatherImpl)(rows, positions, count, queries, group, out);
}
void SumExp(const float* x, size_t n, float scale, float shift, float* lanes) {
  if (ScalarForced()) return scalar::SumExp(x, n, scale, shift, lanes);
  HWY_DYNAMIC_DISPATCH(SumExpImpl)(x, n, scale, shift, lanes);
}
void ExpInPlace(float* x, size_t n, float shift, float* lanes) {
  if (ScalarForced()) return scalar::ExpInPlace(x, n, shift, lanes);
  HWY_DYNAMIC_DISPATCH(ExpInPlaceImpl)(x, n, shift, lanes);
}
void AddExp(const float* x, size_t n, float shift, float share, float* out) {
  if (ScalarForced()) return scalar::AddExp(x, n, shift, share, out);
  HWY_DYNAMIC_DISPATCH(AddExpImpl)(x, n, shift, share, out);
}
void CapEach(float* x, size_t n, float cap) {
  if (ScalarForced()) return scalar::CapEach(x, n, cap);
  HWY_DYNAMIC_DISPATCH(CapEachImpl)(x, n, cap);
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
void ToInt8Row(const float* x, int n, float inverse, int8_t* out) {
  if (ScalarForced()) return scalar::ToInt8Row(x, n, inverse, out);
  HWY_DYNAMIC_DISPATCH(ToInt8RowImpl)(x, n, inverse, out);
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
