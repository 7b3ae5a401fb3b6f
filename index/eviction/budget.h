// How many tokens of each head are kept, and which: budgets, tokens that are always kept, and the selection.
#ifndef SEINE_INDEX_EVICTION_BUDGET_H_
#define SEINE_INDEX_EVICTION_BUDGET_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "index/scorers/scorer.h"

namespace seine {

// kUniform: every head the same. kAdaptive (AdaKV): a head's best floor(safeguard * budget), at least 1, are safe, the
// rest of the layer's budget goes to the best of all heads. kPyramid (PyramidKV): uniform in a layer, falling linearly
// from the first layer to the last, the sum over layers unchanged.
enum class HeadBudget : uint8_t { kUniform = 0, kAdaptive = 1, kPyramid = 2 };

struct BudgetConfig {
  int64_t tokens = 0;  // > 0: tokens a head
  double ratio = 0;    // > 0, below 1, in place of tokens: the share that goes; floor(n (1 - ratio)) stay, at least 1
  HeadBudget heads = HeadBudget::kUniform;
  double safeguard = .2;  // kAdaptive, in [0, 1]
  double beta = 20;       // kPyramid, at least 1: the mean budget over the last layer's
};

// What stays whatever its score. All of it counts towards the budget.
struct KeepConfig {
  int64_t sinks = 0;        // positions [0, sinks)
  int64_t recent = 0;       // the last positions
  double recent_share = 0;  // in [0, 1): of the budget, for the last positions (KeyDiff with a sliding window)
  std::vector<int32_t> positions = {};  // ascending; those not held are passed over
};

// INVALID_ARGUMENT "budget.field: ..." or "keep.field: ...".
absl::Status Validate(const BudgetConfig& budget);
absl::Status Validate(const KeepConfig& keep);

// Tokens that a head of `count` tokens keeps in this layer, before an adaptive budget moves any between heads.
int64_t KeptTokens(const BudgetConfig& budget, int64_t count, int layer, int num_layers);

// For each head the places kept, ascending: the best by score, ties to the lowest position. Of all heads together
// (kAdaptive) ties go to the lowest KV head, then position. Scores of tokens that must be kept are overwritten.
// INVALID_ARGUMENT where these are more than the budget has; errors of the backend.
absl::StatusOr<std::vector<std::vector<uint32_t>>> SelectKept(const BudgetConfig& budget, const KeepConfig& keep,
                                                              int layer, int num_layers, const ScoreInput& input,
                                                              Scores* scores);

}  // namespace seine

#endif  // SEINE_INDEX_EVICTION_BUDGET_H_
