// The plain C++ twin of matrix.h.
#include "kernels/ops/matrix/matrix.h"

namespace seine::cpu::scalar {

void MatMul(const MatrixView& a, const float* b, int64_t b_stride, int m, int n, int k, bool add, float* c,
            int64_t c_stride) {
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < PaddedColumns(n); ++j) {
      float sum = add ? c[i * c_stride + j] : 0;
      for (int l = 0; l < k; ++l) sum += a.data[i * a.row_stride + l * a.column_stride] * b[l * b_stride + j];
      c[i * c_stride + j] = sum;
    }
  }
}

}  // namespace seine::cpu::scalar
