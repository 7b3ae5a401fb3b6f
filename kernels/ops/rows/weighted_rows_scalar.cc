// Plain C++ twins of weighted_rows.h.
#include <algorithm>

#include "kernels/cpu/scalar.h"
#include "kernels/math.h"
#include "kernels/ops/rows/rows.h"
#include "kernels/ops/rows/weighted_rows.h"

namespace seine::cpu::scalar {
namespace {

constexpr int64_t kBlock = 64;  // rows that are summed from zero

// at(i, j): coordinate j of row i.
template <typename Element>
void AddEach(Element at, int64_t count, int dim, const float* weights, int group, int64_t stride, float* out) {
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t end = std::min(first + kBlock, count);
    for (int g = 0; g < group; ++g) {
      for (int j = 0; j < dim; ++j) {
        float sum = 0;
        for (int64_t i = first; i < end; ++i) sum = sum + at(i, j) * weights[g * stride + i];
        float& total = out[static_cast<size_t>(g) * dim + j];
        total = total + sum;
      }
    }
  }
}

}  // namespace

void AddRows(const ConstRows& rows, int64_t count, int dim, const float* weights, int group, int64_t stride,
             float* out) {
  const auto at = [&](int64_t i, int j) { return At(rows.row(i), rows.dtype, j); };
  AddEach(at, count, dim, weights, group, stride, out);
}

void AddGathered(const ChunkedRows& rows, const int32_t* places, int64_t count, const float* weights, int group,
                 int64_t stride, float* out) {
  const auto at = [&](int64_t i, int j) { return At(rows.row(places[i]), rows.dtype, j); };
  AddEach(at, count, rows.head_dim, weights, group, stride, out);
}

void AddRows8(const int8_t* rows, size_t stride_bytes, int64_t count, int dim, const float* weights, int group,
              int64_t stride, float* out) {
  const auto at = [&](int64_t i, int j) { return static_cast<float>(rows[i * stride_bytes + j]); };
  AddEach(at, count, dim, weights, group, stride, out);
}

void DotRows8(const int8_t* rows, size_t stride_bytes, int64_t count, int dim, const int8_t* queries, int group,
              int64_t stride, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    for (int g = 0; g < group; ++g) {
      out[g * stride + i] =
          static_cast<float>(Dot8(rows + i * stride_bytes, queries + static_cast<size_t>(g) * dim, dim));
    }
  }
}

void ScaleEach(float* x, const float* by, float unit, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] *= by[i] * unit;
}

void CountEach(float* x, const uint8_t* counts, size_t n, float* lanes) {
  for (size_t i = 0; i < n; ++i) {
    x[i] *= static_cast<float>(counts[i]);
    lanes[i % 16] += x[i];
  }
}

}  // namespace seine::cpu::scalar
