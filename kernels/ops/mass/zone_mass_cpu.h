// Log-sum-exps of a search on the CPU, and the rest of a zone in them (kernels/ops/query/zone_mass.h).
#ifndef SEINE_KERNELS_OPS_MASS_ZONE_MASS_CPU_H_
#define SEINE_KERNELS_OPS_MASS_ZONE_MASS_CPU_H_

#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/ops/query/search.h"
#include "kernels/ops/scan/coarse_stage.h"

namespace seine::cpu {

// A log-sum-exp in pieces: values are added in 16 lanes, so the sum does not depend on the target.
class LogSumExp {
 public:
  // e^(x[i] scale), i < n. x may hold -infinity, but not alone.
  void Add(const float* x, size_t n, float scale);
  float Value() const;

 private:
  float max_ = -INFINITY;
  float lanes_[16] = {0};
};

// Factors of a zone's sampled keys, the same for every query, and the sum of their squares.
struct SampleFactors {
  std::vector<float> values;
  float squares = 0;
};
void FindFactors(const SearchTask& task, SampleFactors* out);

// Adds the keys of the zone but the query's survivors: by their estimates those that are candidates, by its sample the
// others. The estimates are of no use afterwards.
void AddUnscored(const SearchTask& task, float scale, const SampleFactors& factors, QueryWork* work, LogSumExp* lse);

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_MASS_ZONE_MASS_CPU_H_
