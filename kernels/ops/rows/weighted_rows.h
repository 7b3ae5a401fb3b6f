// The second half of attention, sums of value rows, each with a weight of its own for every query head; and both halves
// for the int8 means of windows (window_means.h). Every operation gives the same bits on every target (cpu/targets.h).
#ifndef SEINE_KERNELS_OPS_ROWS_WEIGHTED_ROWS_H_
#define SEINE_KERNELS_OPS_ROWS_WEIGHTED_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/ops/rows/rows.h"
#include "kernels/types.h"

namespace seine::cpu {

// out[g][j] += sum over i of weights[g * stride + i] * row_i[j], for i < count, g < group; out [group, dim], dim a
// multiple of 16. Rows are summed in order, 64 at a time from zero, and each such sum is added to out. A row is fetched
// once for the whole group, and converted once for up to four heads.
void AddRows(const ConstRows& rows, int64_t count, int dim, const float* weights, int group, int64_t stride, float* out,
             const RowsAhead& ahead = {});
// The same for rows at `places`.
void AddGathered(const ChunkedRows& rows, const int32_t* places, int64_t count, const float* weights, int group,
                 int64_t stride, float* out);
// The same for int8 rows [count, dim] that are stride_bytes apart.
void AddRows8(const int8_t* rows, size_t stride_bytes, int64_t count, int dim, const float* weights, int group,
              int64_t stride, float* out);
// out[g * stride + i] = <query_g, row_i>, exact; int8 queries [group, dim].
void DotRows8(const int8_t* rows, size_t stride_bytes, int64_t count, int dim, const int8_t* queries, int group,
              int64_t stride, float* out);
// x[i] *= by[i] * unit, and x[i] *= counts[i] with lanes[i % 16] += x[i], for i < n.
void ScaleEach(float* x, const float* by, float unit, size_t n);
void CountEach(float* x, const uint8_t* counts, size_t n, float* lanes);

namespace scalar {
void ScaleEach(float* x, const float* by, float unit, size_t n);
void CountEach(float* x, const uint8_t* counts, size_t n, float* lanes);
void AddRows(const ConstRows& rows, int64_t count, int dim, const float* weights, int group, int64_t stride,
             float* out);
void AddGathered(const ChunkedRows& rows, const int32_t* places, int64_t count, const float* weights, int group,
                 int64_t stride, float* out);
void AddRows8(const int8_t* rows, size_t stride_bytes, int64_t count, int dim, const float* weights, int group,
              int64_t stride, float* out);
void DotRows8(const int8_t* rows, size_t stride_bytes, int64_t count, int dim, const int8_t* queries, int group,
              int64_t stride, float* out);
}  // namespace scalar

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_ROWS_WEIGHTED_ROWS_H_
