// The plain twins of rows.h.
#include "kernels/ops/rows/rows.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/cpu/scalar.h"
#include "kernels/math.h"

namespace seine::cpu::scalar {
namespace {

float Dot(const void* row, DType dtype, int dim, const float* query) {
  float lanes[16] = {0};
  for (int j = 0; j < dim; ++j) lanes[j % 16] = lanes[j % 16] + At(row, dtype, j) * query[j];
  return Tree(lanes, 16);
}

}  // namespace

void ToFloat(const ConstRows& rows, int count, int dim, float* out) {
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < dim; ++j) out[static_cast<size_t>(i) * dim + j] = At(rows.row(i), rows.dtype, j);
  }
}

int64_t FirstNonFinite(const ConstRows& rows, int64_t count, int dim) {
  for (int64_t i = 0; i < count; ++i) {
    float lanes[16] = {0};
    for (int j = 0; j < dim; ++j) {
      const float x = At(rows.row(i), rows.dtype, j);
      lanes[j % 16] = lanes[j % 16] + x * x;
    }
    if (!std::isfinite(Tree(lanes, 16))) return i;
  }
  return -1;
}

void Rotate(float* rows, int count, int dim, const float* signs) {
  const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(dim)));
  const auto transform = [p](float* x, const float* s) {
    for (int i = 0; i < p; ++i) x[i] = x[i] * s[i];
    for (int h = 1; h < p; h *= 2) {
      for (int i = 0; i < p; i += 2 * h) {
        for (int j = i; j < i + h; ++j) {
          const float a = x[j], b = x[j + h];
          x[j] = a + b;
          x[j + h] = a - b;
        }
      }
    }
  };
  for (int i = 0; i < count; ++i) {
    float* x = rows + static_cast<size_t>(i) * dim;
    transform(x, signs);
    if (p < dim) transform(x + dim - p, signs + p);
  }
}

void MeanRow(const float* rows, int count, int dim, float* out) {
  const float share = 1.0f / static_cast<float>(count);
  for (int j = 0; j < dim; ++j) {
    float sum = rows[j];
    for (int i = 1; i < count; ++i) sum = sum + rows[static_cast<size_t>(i) * dim + j];
    out[j] = sum * share;
  }
}

void SubtractRow(float* rows, int count, int dim, const float* centre) {
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < dim; ++j) rows[static_cast<size_t>(i) * dim + j] -= centre[j];
  }
}

void ToInt8Row(const float* x, int n, float inverse, int8_t* out) {
  for (int i = 0; i < n; ++i) out[i] = ToInt8(x[i], inverse);
}

int32_t Dot8(const int8_t* a, const int8_t* b, int n) {
  int32_t sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void DotRows(const ConstRows& rows, int64_t count, int dim, const float* queries, int group, float* out,
             int64_t stride) {
  for (int g = 0; g < group; ++g) {
    const float* query = queries + static_cast<size_t>(g) * dim;
    for (int64_t i = 0; i < count; ++i) out[g * stride + i] = Dot(rows.row(i), rows.dtype, dim, query);
  }
}

void DotGather(const ChunkedRows& rows, const int32_t* positions, int count, const float* queries, int group,
               float* out) {
  for (int g = 0; g < group; ++g) {
    const float* query = queries + static_cast<size_t>(g) * rows.head_dim;
    for (int i = 0; i < count; ++i) *out++ = Dot(rows.row(positions[i]), rows.dtype, rows.head_dim, query);
  }
}

void SumExp(const float* x, size_t n, float scale, float shift, float* lanes) {
  for (size_t i = 0; i < n; ++i) lanes[i % 16] = lanes[i % 16] + ExpNonPositive(x[i] * scale - shift);
}

void ExpInPlace(float* x, size_t n, float shift, float* lanes) {
  for (size_t i = 0; i < n; ++i) {
    x[i] = ExpNonPositive(std::min(x[i] - shift, 0.0f));
    lanes[i % 16] = lanes[i % 16] + x[i];
  }
}

void AddExp(const float* x, size_t n, float shift, float share, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = out[i] + ExpNonPositive(std::min(x[i] - shift, 0.0f)) * share;
}

void CapEach(float* x, size_t n, float cap) {
  const float by = -2.0f / cap;
  for (size_t i = 0; i < n; ++i) {
    const float t = ExpNonPositive(std::fabs(x[i]) * by);  // tanh y = (1 - e^-2y) / (1 + e^-2y)
    x[i] = std::copysign(((1.0f - t) / (1.0f + t)) * cap, x[i]);
  }
}

}  // namespace seine::cpu::scalar
