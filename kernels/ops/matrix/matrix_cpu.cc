// Matrix products for every Highway target: a tile of c stays in registers while k runs.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/matrix/matrix_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include "kernels/cpu/targets.h"
#include "kernels/ops/matrix/matrix.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {

// Accumulators that fit the registers beside a row of b: 12 of 32 on AVX-512, 8 of 16 elsewhere. Two or more chains a
// port hide the latency of an addition.
inline constexpr int kTileRows = kParts == 1 ? 6 : kParts == 2 ? 4 : 2;
inline constexpr int kTileColumns = kParts == 1 ? 2 : 1;  // of 16 lanes

struct Operands {
  MatrixView a;
  const float* b;
  int64_t b_stride;
  int k;
  bool add;
  float* c;
  int64_t c_stride;
};

template <int kRows, int kColumns>
HWY_INLINE void Tile(const Operands& o, int row, int column) {
  F16 sums[kRows][kColumns];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      sums[i][j] = o.add ? Load16(o.c + (row + i) * o.c_stride + column + 16 * j) : Set16(0);
    }
  }
  const float* a = o.a.data + row * o.a.row_stride;
  const float* b = o.b + column;
  for (int l = 0; l < o.k; ++l, a += o.a.column_stride, b += o.b_stride) {
    F16 right[kColumns];
    for (int j = 0; j < kColumns; ++j) right[j] = Load16(b + 16 * j);
    for (int i = 0; i < kRows; ++i) {
      const F16 left = Set16(a[i * o.a.row_stride]);
      for (int j = 0; j < kColumns; ++j) sums[i][j] = Add(sums[i][j], Mul(left, right[j]));
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) Store16(sums[i][j], o.c + (row + i) * o.c_stride + column + 16 * j);
  }
}

template <int kColumns>
HWY_INLINE void Columns(const Operands& o, int m, int column) {
  int i = 0;
  for (; i + kTileRows <= m; i += kTileRows) Tile<kTileRows, kColumns>(o, i, column);
  for (; kTileRows > 4 && i + 4 <= m; i += 4) Tile<4, kColumns>(o, i, column);
  for (; i + 2 <= m; i += 2) Tile<2, kColumns>(o, i, column);
  for (; i < m; ++i) Tile<1, kColumns>(o, i, column);
}

void MatMulImpl(const MatrixView& a, const float* b, int64_t b_stride, int m, int n, int k, bool add, float* c,
                int64_t c_stride) {
  const Operands o = {a, b, b_stride, k, add, c, c_stride};
  int j = 0;
  if constexpr (kParts == 1) {  // few rows, as a group's queries: b, read once, goes by in longer pieces
    for (; m <= 4 && j + 64 <= PaddedColumns(n); j += 64) Columns<4>(o, m, j);
  }
  for (; j + 16 * kTileColumns <= PaddedColumns(n); j += 16 * kTileColumns) Columns<kTileColumns>(o, m, j);
  for (; j < n; j += 16) Columns<1>(o, m, j);
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(MatMulImpl);

void MatMul(const MatrixView& a, const float* b, int64_t b_stride, int m, int n, int k, bool add, float* c,
            int64_t c_stride) {
  if (ScalarForced()) return scalar::MatMul(a, b, b_stride, m, n, k, add, c, c_stride);
  HWY_DYNAMIC_DISPATCH(MatMulImpl)(a, b, b_stride, m, n, k, add, c, c_stride);
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
