// Oja's rule as backends learn by it: bases of several heads that follow their rows. index/subspace/oja.h has the rule
// and its sources; kernels/ops/learn/oja_rule.h its steps, which every backend takes in one order, so that all give the
// same bits.
#ifndef SEINE_KERNELS_OPS_LEARN_OJA_H_
#define SEINE_KERNELS_OPS_LEARN_OJA_H_

#include <cstdint>

namespace seine {

struct OjaOptions {
  int interval = 32;           // T: rows between updates, and in one; 1 to 256
  double learning_rate = .05;  // eta, above 0
  bool relative = true;        // to the covariance's trace; false: the paper's own eta, unbounded
  double max_gain = .5;        // of a relative step, above 0
  // Above 0: of the intervals, only those update whose residual energy ratio is above it, and which end `min_spacing`
  // rows or more after the last update.
  double error_threshold = 0;
  int64_t min_spacing = 0;
};

struct OjaStats {
  int64_t rows = 0;       // seen in whole intervals
  int64_t intervals = 0;  // whole ones
  int64_t updates = 0;
  int64_t since_update = 0;                // rows
  int64_t large_steps = 0;                 // updates that turned the basis so far that it was orthogonalised anew
  double energy = 0, residual_energy = 0;  // of those rows, as each interval met the basis of its time
  double last_ratio = 0;                   // residual over energy of the last interval
};

// One basis and the rows that it learns from. Any memory.
struct LearnTask {
  OjaOptions options;           // valid ones
  int head_dim = 0, rank = 0;   // head_dim a multiple of 16, rank 1 to head_dim
  float* basis = nullptr;       // U [head_dim][rank rounded up to 16], zeros past the rank; in place
  const float* rows = nullptr;  // [count][head_dim], finite
  int64_t count = 0;            // of whole intervals
  OjaStats* stats = nullptr;    // of the basis's whole life; in place
};

}  // namespace seine

#endif  // SEINE_KERNELS_OPS_LEARN_OJA_H_
