// Matrix products: against float64, and the same bits on every target.
#include "kernels/ops/matrix/matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernels/test_util.h"

namespace seine {
namespace {

struct Shape {
  int m, n, k;
  bool transposed, add;
};

constexpr int kSizes[] = {1, 7, 8, 9, 31, 33, 96};

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes = {{32, 38, 64, false, false}, {96, 96, 128, true, true}, {257, 17, 80, true, false}};
  for (int m : kSizes) {
    for (int n : kSizes) shapes.push_back({m, n, (m + n) % 40 + 1, m % 2 == 1, n % 2 == 1});
  }
  return shapes;
}

// b and c, row-major with padded columns.
struct Factors {
  explicit Factors(const Shape& s) : stride(cpu::PaddedColumns(s.n) + 16) {
    a = Gaussian(static_cast<size_t>(s.m) * s.k, 1);
    b = Gaussian(static_cast<size_t>(s.k) * stride, 2);
    c = Gaussian(static_cast<size_t>(s.m) * stride, 3);
    view = s.transposed ? cpu::MatrixView{a.data(), 1, s.m} : cpu::MatrixView{a.data(), s.k, 1};
  }
  double Exact(const Shape& s, int i, int j) const {
    double sum = s.add ? c[static_cast<size_t>(i) * stride + j] : 0;
    for (int l = 0; l < s.k; ++l) {
      const double left = view.data[i * view.row_stride + l * view.column_stride];
      sum += left * b[static_cast<size_t>(l) * stride + j];
    }
    return sum;
  }
  int64_t stride;
  std::vector<float> a, b, c;
  cpu::MatrixView view;
};

TEST(Matrix, EqualsTheSumInDoublePrecision) {
  for (const Shape& s : Shapes()) {
    const Factors f(s);
    std::vector<float> c = f.c;
    cpu::MatMul(f.view, f.b.data(), f.stride, s.m, s.n, s.k, s.add, c.data(), f.stride);
    for (int i = 0; i < s.m; ++i) {
      for (int j = 0; j < s.n; ++j) {
        ASSERT_NEAR(c[static_cast<size_t>(i) * f.stride + j], f.Exact(s, i, j), 2e-6 * s.k + 1e-5)
            << s.m << "x" << s.n << "x" << s.k << " at " << i << ", " << j;
      }
      for (int64_t j = cpu::PaddedColumns(s.n); j < f.stride; ++j) {  // nothing past the padding is touched
        ASSERT_EQ(c[static_cast<size_t>(i) * f.stride + j], f.c[static_cast<size_t>(i) * f.stride + j]);
      }
    }
  }
}

TEST(Matrix, TargetsGiveTheSameBits) {
  for (const Shape& s : Shapes()) {
    const Factors f(s);
    ASSERT_TRUE(cpu::ForceTarget("SCALAR"));
    std::vector<float> want = f.c;
    cpu::MatMul(f.view, f.b.data(), f.stride, s.m, s.n, s.k, s.add, want.data(), f.stride);
    OnEveryTarget([&](const std::string& target) {
      std::vector<float> c = f.c;
      cpu::MatMul(f.view, f.b.data(), f.stride, s.m, s.n, s.k, s.add, c.data(), f.stride);
      ASSERT_EQ(c, want) << target;
    });
  }
}

TEST(Matrix, NothingToAddUpGivesZero) {
  float c[16] = {1, 2};
  const float b[16] = {0};
  cpu::MatMul({b, 1, 1}, b, 16, 1, 16, 0, false, c, 16);
  for (float x : c) EXPECT_EQ(x, 0);
}

}  // namespace
}  // namespace seine
