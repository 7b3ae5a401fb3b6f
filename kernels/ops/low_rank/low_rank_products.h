// Attention's two products with rows that are kept low-rank, without rebuilding these (OjaKV, sections 3.2 and A.4).
// With U [D, r] the basis and y the code of a row,
//   <q, U y> = <U^T q, y>  and  sum_i w_i U y_i = U sum_i w_i y_i:
// D r products once a version of the basis, and r a row. Keys that live before RoPE are rebuilt and turned instead;
// rows kept full-rank are read as they are. Every operation gives the same bits on every target: sums run in 16 lanes
// and one tree over a row (cpu/targets.h), and in order over rows (weighted_rows.h).
#ifndef SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_PRODUCTS_H_
#define SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_PRODUCTS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/ops/low_rank/low_rank.h"

namespace seine::cpu {

// A row of floats for each head of a group and each basis: queries in it, or sums of codes. Zeros past the rank.
class RowsByBasis {
 public:
  RowsByBasis(int group, int width) : size_(static_cast<size_t>(group) * width) {}
  // [group, width] of a basis. `fresh`: it is a new one, and its rows are zero.
  float* Of(const uint16_t* basis, bool* fresh);
  const std::vector<std::pair<const uint16_t*, std::vector<float>>>& all() const { return rows_; }

 private:
  size_t size_;
  std::vector<std::pair<const uint16_t*, std::vector<float>>> rows_;  // few, in the order that they came in
};

// Products of a group's queries with rows. What is given must outlive it. Not thread-safe.
class LowRankDots {
 public:
  LowRankDots(const LowRankTokens& tokens, const float* queries, int group);  // [group, head_dim]
  // out[g * stride + i] = <query first + g, row at places[i]>, g < heads.
  void Dot(const int32_t* places, int64_t count, int first, int heads, float* out, int64_t stride);

 private:
  const float* Projected(const uint16_t* basis);  // [group, rank rounded up to 16]

  const LowRankTokens& tokens_;
  const float* const queries_;
  const int group_;
  RowsByBasis projected_;
};

// Weighted sums of rows for a group. What is given must outlive it. Not thread-safe.
class LowRankSums {
 public:
  LowRankSums(const LowRankTokens& tokens, int group, float* out);  // [group, head_dim]
  // out[first + g] += the sum of weights[g * stride + i] times the row at places[i], g < heads; where rows are codes,
  // once Finish is called.
  void Add(const int32_t* places, int64_t count, const float* weights, int first, int heads, int64_t stride);
  void Finish();

 private:
  const LowRankTokens& tokens_;
  const int group_;
  float* const out_;
  RowsByBasis sums_;
};

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_PRODUCTS_H_
