// Weighted sums of rows, for every Highway target. Coordinates outside, rows inside: the sums of a few coordinates stay
// in registers while a block of rows, which the first cache holds, is gone through.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/weighted_rows.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/scalar.h"
#include "kernels/cpu/weighted_rows.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {

constexpr int kBlock = 64;  // rows

// Sums of one block for kQueries heads and kColumns times 16 coordinates from j on.
template <DType kType, int kQueries, int kColumns>
HWY_INLINE void AddColumns(const void* const* block, int count, int j, int dim, const float* weights, int64_t stride,
                           float* out) {
  F16 sums[kQueries][kColumns];
  for (auto& of_query : sums) {
    for (F16& sum : of_query) sum = Set16(0);
  }
  for (int i = 0; i < count; ++i) {
    F16 x[kColumns];
    for (int c = 0; c < kColumns; ++c) x[c] = Load16Typed(block[i], kType, j + 16 * c);
    for (int g = 0; g < kQueries; ++g) {
      const F16 weight = Set16(weights[g * stride + i]);
      for (int c = 0; c < kColumns; ++c) sums[g][c] = Add(sums[g][c], Mul(x[c], weight));
    }
  }
  for (int g = 0; g < kQueries; ++g) {
    for (int c = 0; c < kColumns; ++c) {
      float* at = out + static_cast<size_t>(g) * dim + j + 16 * c;
      Store16(Add(Load16(at), sums[g][c]), at);
    }
  }
}

// Eight vectors of sums are as many as hide the adds' latency and leave registers for the rest.
template <DType kType, int kQueries>
HWY_INLINE void AddBlock(const void* const* block, int count, int dim, const float* weights, int64_t stride,
                         float* out) {
  constexpr int kRoom = 8 / (kQueries * static_cast<int>(kParts));
  constexpr int kColumns = kRoom >= 4 ? 4 : kRoom >= 2 ? 2 : 1;
  int j = 0;
  for (; j + 16 * kColumns <= dim; j += 16 * kColumns) {
    AddColumns<kType, kQueries, kColumns>(block, count, j, dim, weights, stride, out);
  }
  for (; j < dim; j += 16) AddColumns<kType, kQueries, 1>(block, count, j, dim, weights, stride, out);
}

template <DType kType, typename Row>
HWY_INLINE void AddTyped(Row row, int64_t count, int dim, const float* weights, int group, int64_t stride, float* out) {
  const size_t bytes = dim * SizeOf(kType);
  const void* blocks[2][kBlock];
  const auto size = [&](int64_t first) HWY_ATTR {
    return first >= count ? 0 : static_cast<int>(count - first < kBlock ? count - first : kBlock);
  };
  const auto fetch = [&](int64_t first) HWY_ATTR {
    for (int i = 0; i < size(first); ++i) {
      const void* p = row(first + i);
      blocks[first / kBlock % 2][i] = p;
      for (size_t b = 0; b < bytes; b += 64) PrefetchFar(static_cast<const uint8_t*>(p) + b);
    }
  };
  fetch(0);
  for (int64_t first = 0; first < count; first += kBlock) {
    fetch(first + kBlock);
    const void* const* block = blocks[first / kBlock % 2];
    const int n = size(first);
    for (int g = 0; g < group; g += 4) {
      const float* w = weights + g * stride + first;
      float* to = out + static_cast<size_t>(g) * dim;
      const int now = group - g < 4 ? group - g : 4;
      if (now == 4) AddBlock<kType, 4>(block, n, dim, w, stride, to);
      if (now == 3) AddBlock<kType, 3>(block, n, dim, w, stride, to);
      if (now == 2) AddBlock<kType, 2>(block, n, dim, w, stride, to);
      if (now == 1) AddBlock<kType, 1>(block, n, dim, w, stride, to);
    }
  }
}

template <typename Row>
HWY_INLINE void AddEach(Row row, DType dtype, int64_t count, int dim, const float* weights, int group, int64_t stride,
                        float* out) {
  switch (dtype) {
    case DType::kFloat32:
      return AddTyped<DType::kFloat32>(row, count, dim, weights, group, stride, out);
    case DType::kFloat16:
      return AddTyped<DType::kFloat16>(row, count, dim, weights, group, stride, out);
    case DType::kBFloat16:
      return AddTyped<DType::kBFloat16>(row, count, dim, weights, group, stride, out);
  }
}

void AddRowsImpl(const ConstRows& rows, int64_t count, int dim, const float* weights, int group, int64_t stride,
                 float* out) {
  const auto row = [&](int64_t i) HWY_ATTR { return rows.row(i); };
  AddEach(row, rows.dtype, count, dim, weights, group, stride, out);
}

void AddGatheredImpl(const ChunkedRows& rows, const int32_t* places, int64_t count, const float* weights, int group,
                     int64_t stride, float* out) {
  const auto row = [&](int64_t i) HWY_ATTR { return rows.row(places[i]); };
  AddEach(row, rows.dtype, count, rows.head_dim, weights, group, stride, out);
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(AddRowsImpl);
HWY_EXPORT(AddGatheredImpl);

void AddRows(const ConstRows& rows, int64_t count, int dim, const float* weights, int group, int64_t stride,
             float* out) {
  if (ScalarForced()) return scalar::AddRows(rows, count, dim, weights, group, stride, out);
  HWY_DYNAMIC_DISPATCH(AddRowsImpl)(rows, count, dim, weights, group, stride, out);
}
void AddGathered(const ChunkedRows& rows, const int32_t* places, int64_t count, const float* weights, int group,
                 int64_t stride, float* out) {
  if (ScalarForced()) return scalar::AddGathered(rows, places, count, weights, group, stride, out);
  HWY_DYNAMIC_DISPATCH(AddGatheredImpl)(rows, places, count, weights, group, stride, out);
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
