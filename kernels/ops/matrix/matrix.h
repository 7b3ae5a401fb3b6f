// Products of small fp32 matrices that fit the cache: subspaces' projections, reconstructions and updates.
//
// An entry's sum runs over k in order, one multiplication and one addition each, so every target gives the same bits,
// and so does whatever splits the rows or columns in another way.
#ifndef SEINE_KERNELS_OPS_MATRIX_MATRIX_H_
#define SEINE_KERNELS_OPS_MATRIX_MATRIX_H_

#include <cstdint>

namespace seine::cpu {

inline constexpr int kMatrixLanes = 16;
// Columns that a matrix of n columns has room for: the products write whole lanes.
constexpr int PaddedColumns(int n) { return (n + kMatrixLanes - 1) / kMatrixLanes * kMatrixLanes; }

// The left factor, [m, k]: entry (i, j) at data[i * row_stride + j * column_stride], so a transpose is a view.
struct MatrixView {
  const float* data = nullptr;
  int64_t row_stride = 0, column_stride = 1;
};

// c [m, n] = a [m, k] * b [k, n], or c += where `add`. b and c row-major, rows b_stride and c_stride floats apart, with
// room for PaddedColumns(n): what stands in b's padding comes out in c's. c overlaps neither factor.
void MatMul(const MatrixView& a, const float* b, int64_t b_stride, int m, int n, int k, bool add, float* c,
            int64_t c_stride);

namespace scalar {
void MatMul(const MatrixView& a, const float* b, int64_t b_stride, int m, int n, int k, bool add, float* c,
            int64_t c_stride);
}  // namespace scalar

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_MATRIX_MATRIX_H_
