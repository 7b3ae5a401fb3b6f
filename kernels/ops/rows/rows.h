// Float operations on rows: conversion, rotation, means, dot products and exponentials, by the best instruction set
// (cpu/targets.h).
#ifndef SEINE_KERNELS_OPS_ROWS_ROWS_H_
#define SEINE_KERNELS_OPS_ROWS_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

namespace seine::cpu {

// Rows to fp32, [count, dim]. dim a multiple of 16.
void ToFloat(const ConstRows& rows, int count, int dim, float* out);

// Index of the first row in [0, count) that holds a NaN or infinity, or whose squared norm overflows fp32; -1 if none.
int64_t FirstNonFinite(const ConstRows& rows, int64_t count, int dim);

// In place on [count, dim]: SRHT. With P the largest power of two <= dim: coordinates [0, P) are multiplied by
// signs[0..P) and transformed by the unnormalised Walsh-Hadamard matrix; if P < dim, [dim - P, dim) again with
// signs[P..2P). signs are +-1/sqrt(P), so each step is orthonormal; overlapping steps mix a dim that is no power of two
// without padding.
void Rotate(float* rows, int count, int dim, const float* signs);

// Means over `count` rows [count, dim], rows added in order. out[dim]. And rows -= centre.
void MeanRow(const float* rows, int count, int dim, float* out);
void SubtractRow(float* rows, int count, int dim, const float* centre);

// int8 dot product, exact. n a multiple of 16.
int32_t Dot8(const int8_t* a, const int8_t* b, int n);

// out[i] = ToInt8(x[i], inverse) of math.h. n a multiple of 16.
void ToInt8Row(const float* x, int n, float inverse, int8_t* out);

// Rows of the same dim and dtype that the caller reads next: memory is asked for the first of them while a call ends.
struct RowsAhead {
  ConstRows rows;
  int64_t count = 0;
};

// out[g * stride + i] = <query_g, row_i> in fp32, fixed order of sums; queries [group, dim]. A row is read and
// converted once for up to four queries.
void DotRows(const ConstRows& rows, int64_t count, int dim, const float* queries, int group, float* out, int64_t stride,
             const RowsAhead& ahead = {});
// The same for rows at `positions`; stride = count.
void DotGather(const ChunkedRows& rows, const int32_t* positions, int count, const float* queries, int group,
               float* out);

// lanes[i % 16] += e^(x[i] * scale - shift) for i < n; no exponent above 0.
void SumExp(const float* x, size_t n, float scale, float shift, float* lanes);
// x[i] becomes e^min(x[i] - shift, 0), and lanes[i % 16] += x[i], for i < n.
void ExpInPlace(float* x, size_t n, float shift, float* lanes);
// out[i] += share * e^min(x[i] - shift, 0) for i < n.
void AddExp(const float* x, size_t n, float shift, float share, float* out);
// x[i] becomes cap tanh(x[i] / cap) for i < n: logits under a soft cap (Gemma 2, arXiv 2408.00118, 2). cap > 0.
void CapEach(float* x, size_t n, float cap);

// The plain twins, which every target equals bit for bit.
namespace scalar {

void ToFloat(const ConstRows& rows, int count, int dim, float* out);
int64_t FirstNonFinite(const ConstRows& rows, int64_t count, int dim);
void Rotate(float* rows, int count, int dim, const float* signs);
void MeanRow(const float* rows, int count, int dim, float* out);
void SubtractRow(float* rows, int count, int dim, const float* centre);
int32_t Dot8(const int8_t* a, const int8_t* b, int n);
void ToInt8Row(const float* x, int n, float inverse, int8_t* out);
void DotRows(const ConstRows& rows, int64_t count, int dim, const float* queries, int group, float* out,
             int64_t stride);
void DotGather(const ChunkedRows& rows, const int32_t* positions, int count, const float* queries, int group,
               float* out);
void SumExp(const float* x, size_t n, float scale, float shift, float* lanes);
void ExpInPlace(float* x, size_t n, float shift, float* lanes);
void AddExp(const float* x, size_t n, float shift, float share, float* out);
void CapEach(float* x, size_t n, float cap);

}  // namespace scalar

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_ROWS_ROWS_H_
