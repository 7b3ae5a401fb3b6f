// Checks of subspaces' settings that need nothing else of the index.
#include "index/config/subspace_config.h"

#include <algorithm>

#include "profile/field_error.h"

namespace seine {

absl::Status Validate(const PromptUpdate& prompt) {
  if (prompt.pool < 0 || prompt.pool > kMaxPromptPool) {
    return BadField("prompt_pool", prompt.pool, " is not in [0, ", kMaxPromptPool, "]");
  }
  if (!(prompt.learning_rate > 0 && prompt.learning_rate <= kMaxOjaStep)) {
    return BadField("prompt_learning_rate", prompt.learning_rate, " is not in (0, ", kMaxOjaStep, "]");
  }
  return absl::OkStatus();
}

absl::Status Validate(const FullRankChoice& choice) {
  if (choice.queries < 0 || choice.queries > kMaxChoiceQueries) {
    return BadField("full_rank_queries", choice.queries, " is not in [0, ", kMaxChoiceQueries, "]");
  }
  if (choice.pool < 1 || choice.pool > kMaxChoicePool || choice.pool % 2 == 0) {
    return BadField("full_rank_pool", choice.pool, " is no odd number in [1, ", kMaxChoicePool, "]");
  }
  return absl::OkStatus();
}

int LargestRanks(const SubspaceConfig& config) {
  const auto largest = [](const std::vector<int>& each, int one) {
    return each.empty() ? one : *std::max_element(each.begin(), each.end());
  };
  return largest(config.key_ranks, config.key_rank) + largest(config.value_ranks, config.value_rank);
}

int QueriesKept(const SubspaceConfig& config) { return config.full_rank > 0 ? config.choice.queries : 0; }

}  // namespace seine
