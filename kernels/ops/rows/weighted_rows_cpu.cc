// Weighted sums of rows, for every Highway target. Coordinates outside, rows inside: the sums of a few coordinates stay
// in registers while a block of rows, which the first cache holds, is gone through.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/rows/weighted_rows_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/ops/rows/dot8-inl.h"
// clang-format on
#include <algorithm>

#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/targets.h"
#include "kernels/ops/rows/row_walk.h"
#include "kernels/ops/rows/weighted_rows.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL
#pragma GCC target("avx512vnni")  // Highway tests for it at run time but leaves it out of the target's options
#endif
namespace seine::cpu::HWY_NAMESPACE {

constexpr int kBlock = 64;  // rows

// How 16 coordinates of a row are read.
template <DType kType>
struct Typed {
  static constexpr size_t Bytes(size_t count) { return BytesOf(kType, count); }
  static HWY_INLINE F16 Load(const void* row, int j) { return Load16Typed(row, kType, j); }
};
struct Int8 {
  static constexpr size_t Bytes(size_t count) { return count; }
  static HWY_INLINE F16 Load(const void* row, int j) {
    const int8_t* p = static_cast<const int8_t*>(row) + j;
    const hn::RebindToSigned<DF> d32;
    const hn::Rebind<int8_t, DF> d8;
    return Map([&](size_t i) HWY_ATTR { return hn::ConvertTo(DF(), hn::PromoteTo(d32, hn::LoadU(d8, p + i * kN))); });
  }
};

struct Block {
  const void* rows[kBlock];
  int count = 0;
};

// Sums of one block for kQueries heads and kColumns times 16 coordinates from j on. The same coordinates of the `next`
// block are fetched meanwhile: all its lines at once would be more than can be under way.
template <typename Reader, int kQueries, int kColumns>
HWY_INLINE void AddColumns(const Block& block, const Block& next, int j, int dim, const float* weights, int64_t stride,
                           float* out) {
  const size_t line = (Reader::Bytes(j) + 63) / 64 * 64, lines_end = Reader::Bytes(j + 16 * kColumns);
  F16 sums[kQueries][kColumns];
  for (auto& of_query : sums) {
    for (F16& sum : of_query) sum = Set16(0);
  }
  for (int i = 0; i < block.count; ++i) {
    for (size_t b = line; b < lines_end && i < next.count; b += 64) {
      Prefetch(static_cast<const uint8_t*>(next.rows[i]) + b);
    }
    F16 x[kColumns];
    for (int c = 0; c < kColumns; ++c) x[c] = Reader::Load(block.rows[i], j + 16 * c);
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

// Eight vectors of sums hide the adds' latency; where there are registers for sixteen, weights serve twice as often.
template <typename Reader, int kQueries>
HWY_INLINE void AddBlock(const Block& block, const Block& next, int dim, const float* weights, int64_t stride,
                         float* out) {
  constexpr int kRoom = (kN == 16 ? 16 : 8) / (kQueries * static_cast<int>(kParts));
  constexpr int kColumns = kRoom >= 4 ? 4 : kRoom >= 2 ? 2 : 1;
  int j = 0;
  for (; j + 16 * kColumns <= dim; j += 16 * kColumns) {
    AddColumns<Reader, kQueries, kColumns>(block, next, j, dim, weights, stride, out);
  }
  for (; j < dim; j += 16) AddColumns<Reader, kQueries, 1>(block, next, j, dim, weights, stride, out);
}

template <typename Reader, typename Row>
HWY_INLINE void AddAs(const Row& row, int64_t count, int dim, const float* weights, int group, int64_t stride,
                      float* out, const RowsAhead& ahead = {}) {
  const auto take = [&](int64_t first, Block* block) HWY_ATTR {
    const int64_t left = first < count ? count - first : ahead.count;
    block->count = static_cast<int>(left < kBlock ? left : kBlock);
    for (int i = 0; i < block->count; ++i) block->rows[i] = first < count ? row(first + i) : ahead.rows.row(i);
  };
  Block blocks[2];
  const Block none = {};
  take(0, &blocks[0]);
  for (int i = 0; i < blocks[0].count; ++i) {
    const uint8_t* p = static_cast<const uint8_t*>(blocks[0].rows[i]);
    for (size_t b = 0; b < Reader::Bytes(dim); b += 64) Prefetch(p + b);
  }
  for (int64_t first = 0; first < count; first += kBlock) {
    const Block& block = blocks[first / kBlock % 2];
    Block* following = &blocks[(first / kBlock + 1) % 2];
    take(first + kBlock, following);
    for (int g = 0; g < group; g += 4) {
      const Block& next = g == 0 ? *following : none;
      const float* w = weights + g * stride + first;
      float* to = out + static_cast<size_t>(g) * dim;
      const int now = group - g < 4 ? group - g : 4;
      if (now == 4) AddBlock<Reader, 4>(block, next, dim, w, stride, to);
      if (now == 3) AddBlock<Reader, 3>(block, next, dim, w, stride, to);
      if (now == 2) AddBlock<Reader, 2>(block, next, dim, w, stride, to);
      if (now == 1) AddBlock<Reader, 1>(block, next, dim, w, stride, to);
    }
  }
}

template <typename Row>
HWY_INLINE void AddEach(Row row, DType dtype, int64_t count, int dim, const float* weights, int group, int64_t stride,
                        float* out, const RowsAhead& ahead = {}) {
  switch (dtype) {
    case DType::kFloat32:
      return AddAs<Typed<DType::kFloat32>>(row, count, dim, weights, group, stride, out, ahead);
    case DType::kFloat16:
      return AddAs<Typed<DType::kFloat16>>(row, count, dim, weights, group, stride, out, ahead);
    case DType::kBFloat16:
      return AddAs<Typed<DType::kBFloat16>>(row, count, dim, weights, group, stride, out, ahead);
    case DType::kQ8:
      return AddAs<Typed<DType::kQ8>>(row, count, dim, weights, group, stride, out, ahead);
    case DType::kQ4:
      return AddAs<Typed<DType::kQ4>>(row, count, dim, weights, group, stride, out, ahead);
  }
}

void AddRowsImpl(const ConstRows& rows, int64_t count, int dim, const float* weights, int group, int64_t stride,
                 float* out, const RowsAhead& ahead) {
  const auto row = [&](int64_t i) HWY_ATTR { return rows.row(i); };
  AddEach(row, rows.dtype, count, dim, weights, group, stride, out, ahead);
}

void AddGatheredImpl(const ChunkedRows& rows, const int32_t* places, int64_t count, const float* weights, int group,
                     int64_t stride, float* out) {
  RowWalk walk(rows);
  const auto row = [&](int64_t i) HWY_ATTR { return static_cast<const void*>(walk.At(places[i])); };
  AddEach(row, rows.dtype, count, rows.head_dim, weights, group, stride, out);
}

void AddRows8Impl(const int8_t* rows, size_t stride_bytes, int64_t count, int dim, const float* weights, int group,
                  int64_t stride, float* out) {
  const auto row = [&](int64_t i) HWY_ATTR { return static_cast<const void*>(rows + i * stride_bytes); };
  AddAs<Int8>(row, count, dim, weights, group, stride, out);
}

template <int kQ>
void DotRows8Of(const int8_t* rows, size_t stride_bytes, int64_t count, int dim, const int8_t* queries, int64_t stride,
                float* out) {
  constexpr int kRows = 32, kAhead = 32;  // whole records are asked for: their steps and values are next
  const int8_t* query[kQ];
  for (int q = 0; q < kQ; ++q) query[q] = queries + static_cast<size_t>(q) * dim;
  alignas(64) int32_t dots[kQ][kRows];
  const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(rows);
  const size_t end = count * stride_bytes;
  size_t asked = 0;
  for (int64_t first = 0; first < count; first += kRows) {
    const int now = count - first < kRows ? static_cast<int>(count - first) : kRows;
    for (const size_t until = std::min((first + kRows + kAhead) * stride_bytes, end); asked < until; asked += 64) {
      PrefetchFar(bytes + asked);
    }
    Dots8(rows + first * stride_bytes, stride_bytes, now, dim, query, dots[0], kRows);
    for (int q = 0; q < kQ; ++q) {
      for (int i = 0; i < now; ++i) out[q * stride + first + i] = static_cast<float>(dots[q][i]);
    }
  }
}

void DotRows8Impl(const int8_t* rows, size_t stride_bytes, int64_t count, int dim, const int8_t* queries, int group,
                  int64_t stride, float* out) {
  static constexpr decltype(&DotRows8Of<1>) kOf[] = {DotRows8Of<1>, DotRows8Of<2>, DotRows8Of<3>, DotRows8Of<4>};
  for (int g = 0; g < group; g += 4) {
    const int now = group - g < 4 ? group - g : 4;
    kOf[now - 1](rows, stride_bytes, count, dim, queries + static_cast<size_t>(g) * dim, stride, out + g * stride);
  }
}

void ScaleEachImpl(float* x, const float* by, float unit, size_t n) {
  const F16 all = Set16(unit);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) Store16(Mul(Load16(x + i), Mul(Load16(by + i), all)), x + i);
  for (; i < n; ++i) x[i] *= by[i] * unit;
}

void CountEachImpl(float* x, const uint8_t* counts, size_t n, float* lanes) {
  const DF d;
  const hn::RebindToSigned<DF> d32;
  const hn::Rebind<uint8_t, DF> d8;
  F16 sum = Load16(lanes);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F16 count = Map(
        [&](size_t p) HWY_ATTR { return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, counts + i + p * kN))); });
    const F16 product = Mul(Load16(x + i), count);
    Store16(product, x + i);
    sum = Add(sum, product);
  }
  Store16(sum, lanes);
  scalar::CountEach(x + i, counts + i, n - i, lanes);
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(AddRowsImpl);
HWY_EXPORT(AddGatheredImpl);
HWY_EXPORT(AddRows8Impl);
HWY_EXPORT(DotRows8Impl);
HWY_EXPORT(ScaleEachImpl);
HWY_EXPORT(CountEachImpl);

void AddRows(const ConstRows& rows, int64_t count, int dim, const float* weights, int group, int64_t stride, float* out,
             const RowsAhead& ahead) {
  if (ScalarForced()) return scalar::AddRows(rows, count, dim, weights, group, stride, out);
  HWY_DYNAMIC_DISPATCH(AddRowsImpl)(rows, count, dim, weights, group, stride, out, ahead);
}
void AddGathered(const ChunkedRows& rows, const int32_t* places, int64_t count, const float* weights, int group,
                 int64_t stride, float* out) {
  if (ScalarForced()) return scalar::AddGathered(rows, places, count, weights, group, stride, out);
  HWY_DYNAMIC_DISPATCH(AddGatheredImpl)(rows, places, count, weights, group, stride, out);
}

void AddRows8(const int8_t* rows, size_t stride_bytes, int64_t count, int dim, const float* weights, int group,
              int64_t stride, float* out) {
  if (ScalarForced()) return scalar::AddRows8(rows, stride_bytes, count, dim, weights, group, stride, out);
  HWY_DYNAMIC_DISPATCH(AddRows8Impl)(rows, stride_bytes, count, dim, weights, group, stride, out);
}
void DotRows8(const int8_t* rows, size_t stride_bytes, int64_t count, int dim, const int8_t* queries, int group,
              int64_t stride, float* out) {
  if (ScalarForced()) return scalar::DotRows8(rows, stride_bytes, count, dim, queries, group, stride, out);
  HWY_DYNAMIC_DISPATCH(DotRows8Impl)(rows, stride_bytes, count, dim, queries, group, stride, out);
}

void ScaleEach(float* x, const float* by, float unit, size_t n) {
  if (ScalarForced()) return scalar::ScaleEach(x, by, unit, n);
  HWY_DYNAMIC_DISPATCH(ScaleEachImpl)(x, by, unit, n);
}
void CountEach(float* x, const uint8_t* counts, size_t n, float* lanes) {
  if (ScalarForced()) return scalar::CountEach(x, counts, n, lanes);
  HWY_DYNAMIC_DISPATCH(CountEachImpl)(x, counts, n, lanes);
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
