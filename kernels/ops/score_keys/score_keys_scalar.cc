// Plain C++ twins of score_keys_cpu.h.
#include <cmath>

#include "kernels/cpu/scalar.h"
#include "kernels/ops/score_keys/score_keys_cpu.h"

namespace seine::cpu {
namespace scalar {
namespace {

// Sixteen lanes and one tree (simd-inl.h); term(j) is what coordinate j adds.
template <typename Term, typename Op>
float Reduce(int dim, Term term, Op op) {
  float lanes[16] = {0};
  for (int j = 0; j < dim; ++j) lanes[j % 16] = op(lanes[j % 16], term(j));
  for (int h = 8; h >= 1; h /= 2) {
    for (int i = 0; i < h; ++i) lanes[i] = op(lanes[i], lanes[i + h]);
  }
  return lanes[0];
}

float Plus(float a, float b) { return a + b; }
float Max(float a, float b) { return a > b ? a : b; }

float Squares(const void* row, DType dtype, int dim) {
  const auto square = [&](int j) {
    const float x = At(row, dtype, j);
    return x * x;
  };
  return Reduce(dim, square, Plus);
}

float Score(const void* row, DType dtype, int dim, KeyScore kind, const float* a, float anchor_squares) {
  const auto x = [&](int j) { return At(row, dtype, j); };
  const auto product = [&](int j) { return x(j) * a[j]; };
  const auto away = [&](int j) { return std::fabs(x(j) - a[j]); };
  const auto away2 = [&](int j) {
    const float d = x(j) - a[j];
    return d * d;
  };
  float main = 0;
  if (kind == KeyScore::kL2) main = Reduce(dim, away2, Plus);
  if (kind == KeyScore::kL1) main = Reduce(dim, away, Plus);
  if (kind == KeyScore::kLinf) main = Reduce(dim, away, Max);
  if (TakesAnchor(kind) && !IsDistance(kind)) main = Reduce(dim, product, Plus);
  const float squares = TakesSquares(kind) ? Squares(row, dtype, dim) : 0.0f;
  return FinishScore(kind, main, squares, anchor_squares);
}

}  // namespace

void ScoreKeys(const ConstRows& rows, int64_t count, int dim, KeyScore kind, const float* anchor, float* out) {
  const float anchor_squares = kind == KeyScore::kUnitL2 ? AnchorSquares(anchor, dim) : 0.0f;
  for (int64_t i = 0; i < count; ++i) out[i] = Score(rows.row(i), rows.dtype, dim, kind, anchor, anchor_squares);
}

void AddKeys(const ConstRows& rows, int64_t count, int dim, bool unit, double* sums) {
  for (int64_t i = 0; i < count; ++i) {
    const void* row = rows.row(i);
    const float scale = unit ? InverseNorm(Squares(row, rows.dtype, dim)) : 1.0f;
    for (int j = 0; j < dim; ++j) {
      const float x = At(row, rows.dtype, j);
      sums[j] += static_cast<double>(unit ? x * scale : x);
    }
  }
}

}  // namespace scalar

float AnchorSquares(const float* anchor, int dim) { return scalar::Squares(anchor, DType::kFloat32, dim); }

}  // namespace seine::cpu
