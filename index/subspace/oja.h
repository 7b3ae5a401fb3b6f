// Oja's rule with orthonormalisation: a basis that follows a stream of rows (OjaKV, 5.2 and Algorithm 1).
//
//   U <- orthonormalise(U + a R Y^T),  Y = U^T X [r, n], R = X - U Y [D, n],  a = eta / n
//
// R Y^T / n is (I - U U^T) C U with C = X X^T / n: section 5.2 divides by n, Algorithm 1 does not; here it is divided.
// U^T R = 0 makes the new columns' Gram matrix I + a^2 Y R^T R Y^T: n by n products, not r by r factorisations, undo
// it.
//
// Learning rates are relative: a = min(eta D / tr C, max_gain / |U^T C U|_F) / n. Without the second bound a direction
// that holds most of the energy, as the mean of keys does, overshoots: a step is stable while a times the largest
// eigenvalue stays below 1. docs/decisions has the measurement behind the defaults.
#ifndef SEINE_INDEX_SUBSPACE_OJA_H_
#define SEINE_INDEX_SUBSPACE_OJA_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "index/config/subspace_config.h"
#include "index/subspace/basis.h"
#include "kernels/ops/learn/oja.h"
#include "kernels/types.h"

namespace seine {

// The second moment of a prompt's rows, averaged over neighbours first: C_pooled of section 5.2. Not thread-safe.
class PooledMoment {
 public:
  PooledMoment(int head_dim, int pool)  // pool >= 1
      : head_dim_(head_dim), pool_(pool), sum_(Eigen::MatrixXd::Zero(head_dim, head_dim)) {}
  // Finite rows [count, D] that follow each other; those past the last whole group of `pool` are left out. Parts of one
  // prompt add up to the whole's where each but the last is a multiple of `pool`.
  void Add(const ConstRows& rows, int64_t count);
  int64_t count() const { return count_; }                                     // averaged rows so far
  Eigen::MatrixXd mean() const { return sum_ / static_cast<double>(count_); }  // [D, D]; count() above 0

 private:
  int head_dim_, pool_;
  int64_t count_ = 0;
  Eigen::MatrixXd sum_;
};

// Not thread-safe. The same rows in the same order give the same bases, whatever the calls that they come in, the SIMD
// target and the backend.
class OjaTracker {
 public:
  OjaTracker(Basis start, const OjaOptions& options);  // valid ones
  // One that goes on: its statistics, and its rows [waiting, D].
  OjaTracker(Basis basis, const OjaOptions& options, const OjaStats& stats, std::vector<float> rows);

  // Rows [count, D], in order. INVALID_ARGUMENT naming the first row that is not finite: then none is taken.
  absl::Status Add(const ConstRows& rows, int64_t count);
  // The same of finite rows [count, D] in two steps, so that several trackers learn in one call: Begin each,
  // Backend::Learn of what they return, which nothing may come between, End each.
  LearnTask Begin(const float* rows, int64_t count);
  void End();
  // The paper's prefill: one step with the moment of all rows, averaged over `pool` (>= 1) neighbours first. Counts as
  // an update, and as a large step; its rows are in no statistics. Nothing happens where there are fewer than `pool`.
  absl::Status AddBatch(const ConstRows& rows, int64_t count, int pool);
  // The same with a moment [D, D] and a learning rate of its own. INVALID_ARGUMENT where it is not finite.
  absl::Status AddMoment(const Eigen::MatrixXd& moment, double learning_rate);

  int waiting() const { return static_cast<int>(rows_.size()) / basis_.head_dim; }  // rows
  const std::vector<float>& rows() const { return rows_; }                          // [waiting, D]
  const OjaOptions& options() const { return options_; }
  const Basis& basis() const { return basis_; }
  const OjaStats& stats() const { return stats_; }

 private:
  OjaOptions options_;
  Basis basis_;
  OjaStats stats_;
  std::vector<float> rows_;       // [waiting, D]: of an interval that is not whole, and between Begin and End
  int64_t updates_of_basis_ = 0;  // as its version counts them
};

}  // namespace seine

#endif  // SEINE_INDEX_SUBSPACE_OJA_H_
