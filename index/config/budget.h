// How many tokens of each head are kept: budgets, and tokens that are always kept.
#ifndef SEINE_INDEX_CONFIG_BUDGET_H_
#define SEINE_INDEX_CONFIG_BUDGET_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace seine {

// kUniform: every head the same. kAdaptive (AdaKV): a head's best floor(safeguard * budget), at least 1, are safe, the
// rest of the layer's budget goes to the best of all heads. kPyramid (PyramidKV, as kvpress defines it): uniform in a
// layer, falling linearly from `high` in the first layer to `low` in the last, the sum over layers unchanged. With n
// tokens, a mean budget of m and an observation window of w (BudgetScope) low = m / pyramid_ratio and high = 2 m - low;
// where a layer cannot use that much, high = n - w and low = 2 m - high. Every layer has m where low would then be
// above high or below w. By tokens, n is the sequence's length, so that layers agree on it whatever each still holds,
// and nothing goes where n <= m; by ratio it is what the layer holds.
enum class HeadBudget : uint8_t { kUniform = 0, kAdaptive = 1, kPyramid = 2 };

struct BudgetConfig {
  int64_t tokens = 0;  // > 0: tokens a head; any number above those held keeps all
  double ratio = 0;    // > 0, below 1, in place of tokens: the share that goes; floor(n (1 - ratio)) stay, at least 1
  HeadBudget heads = HeadBudget::kUniform;
  double safeguard = .2;      // kAdaptive, in [0, 1]
  double pyramid_ratio = 20;  // kPyramid, at least 1: the mean budget over the last layer's
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

// Where a budget is spent. The defaults are all that kUniform and kAdaptive look at.
struct BudgetScope {
  int layer = 0, num_layers = 1;
  int64_t length = 0;  // kPyramid in tokens: the sequence's, evicted ones counted
  int64_t window = 0;  // kPyramid: the scorer's (Scorer::observation_window)
};

// Tokens that a head of `count` tokens keeps, before an adaptive budget moves any between heads.
int64_t KeptTokens(const BudgetConfig& budget, int64_t count, const BudgetScope& scope);

// The same of a layer's heads, which hold `counts`: an adaptive budget is the layer's, and what one head lacks others
// may have.
std::vector<int64_t> KeptOfHeads(const BudgetConfig& budget, const std::vector<int64_t>& counts,
                                 const BudgetScope& scope);

}  // namespace seine

#endif  // SEINE_INDEX_CONFIG_BUDGET_H_
