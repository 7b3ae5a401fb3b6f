// Oja's rule with orthonormalisation: a basis that follows a stream of rows (ojakv.txt, 5.2 and Algorithm 1).
//
//   U <- orthonormalise(U + a R Y^T),  Y = U^T X [r, n], R = X - U Y [D, n],  a = eta / n
//
// R Y^T / n is (I - U U^T) C U with C = X X^T / n: section 5.2 divides by n, Algorithm 1 does not; here it is divided.
// U^T R = 0 makes the new columns' Gram matrix I + a^2 Y R^T R Y^T: n by n products, not r by r factorisations, undo
// it.
//
// Learning rates are relative: a = min(eta D / tr C, max_gain / |U^T C U|_F) / n. Without the second bound a direction
// that holds most of the energy, as the mean of keys does, overshoots: a step is stable while a times the largest
// eigenvalue stays below 1. README.md has the measurement behind the defaults.
#ifndef SEINE_INDEX_SUBSPACE_OJA_H_
#define SEINE_INDEX_SUBSPACE_OJA_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "index/subspace/basis.h"
#include "index/subspace/options.h"
#include "kernels/types.h"

namespace seine {

struct OjaStats {
  int64_t rows = 0;       // seen in whole intervals
  int64_t intervals = 0;  // whole ones
  int64_t updates = 0;
  int64_t large_steps = 0;                 // updates that turned the basis so far that a QR made it orthonormal
  double energy = 0, residual_energy = 0;  // of those rows, as each interval met the basis of its time
  double last_ratio = 0;                   // residual over energy of the last interval
};

// Not thread-safe. The same rows in the same order give the same bases, whatever the calls that they come in and
// whatever the SIMD target, as long as no step is large: Eigen's QR is the same on every machine of one build only.
class OjaTracker {
 public:
  OjaTracker(Basis start, const OjaOptions& options);  // valid ones

  // Rows [count, D], in order. INVALID_ARGUMENT naming the first row that is not finite: then none is taken.
  absl::Status Add(const ConstRows& rows, int64_t count);
  // The paper's prefill: one step with the moment of all rows, averaged over `pool` (>= 1) neighbours first. Counts as
  // an update, its rows in no statistics. Nothing happens where there are fewer rows than `pool`.
  absl::Status AddBatch(const ConstRows& rows, int64_t count, int pool);

  // What a tracker holds; more while rows wait for their interval's end.
  static int64_t Bytes(int head_dim, int rank, const OjaOptions& options, bool rows_wait) {
    const int columns = cpu::PaddedColumns(rank) + (rows_wait ? cpu::PaddedColumns(options.interval) : 0);
    return int64_t{head_dim} * columns * static_cast<int64_t>(sizeof(float));
  }
  int waiting() const { return filled_; }  // rows
  const Basis& basis() const { return basis_; }
  const OjaStats& stats() const { return stats_; }

 private:
  struct Products;

  void EndInterval();
  double StepSize(double trace, double gain, int64_t count) const;
  void Step(float a, Products* p);
  void CountUpdate();
  double Polish();

  OjaOptions options_;
  Basis basis_;
  OjaStats stats_;
  int columns_;              // interval, padded
  std::vector<float> rows_;  // [D, columns_]: the interval's rows so far as columns; empty where there are none
  int filled_ = 0;
  int64_t since_update_ = 0;  // rows
};

}  // namespace seine

#endif  // SEINE_INDEX_SUBSPACE_OJA_H_
