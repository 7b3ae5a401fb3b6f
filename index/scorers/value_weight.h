// CriticalKV (arXiv 2502.03805): what a token adds to attention's output is its weight times its projected value, so a
// score is multiplied by the size of that value. Definition: kvpress 0.5.5, CriticalKVPress and CriticalAdaKVPress.
#ifndef SEINE_INDEX_SCORERS_VALUE_WEIGHT_H_
#define SEINE_INDEX_SCORERS_VALUE_WEIGHT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "index/scorers/scorer.h"

namespace seine {

// Weights w_i of tokens: |v_i|_1, or the mean over the group's query heads g of |W_O^g v_i|_1.
//
// The definition is made for scores that are attention or like it: at least 0. A score below 0 sinks the more the
// larger the value is. Immutable and thread-safe.
class ValueWeighting {
 public:
  explicit ValueWeighting(const ScorerConfig& config)
      : kind_(config.value_weight), epsilon_(config.weight_epsilon), first_stage_(config.first_stage) {}

  // s_i becomes (s_i + weight_epsilon) w_i, finite. INVALID_ARGUMENT "given.output_projection: ..."; StopStatus().
  absl::Status Apply(const ScoreInput& input, Scores* scores) const;

  // The same for a head's kept[h] tokens to be selected in two stages. Scores of kLargestFloat stay: these tokens must
  // be kept. Of the others the best by s_i, a share first_stage of what is left and at least one of it where
  // first_stage is not 0, or those that fill safe[h], come right behind them; then all others by weighted scores.
  absl::Status ApplyWithin(const ScoreInput& input, const std::vector<int64_t>& kept, const std::vector<int64_t>& safe,
                           Scores* scores) const;

 private:
  absl::Status Weights(const ScoreInput& input, Scores* weights) const;

  const ValueWeight kind_;
  const double epsilon_, first_stage_;
};

}  // namespace seine

#endif  // SEINE_INDEX_SCORERS_VALUE_WEIGHT_H_
