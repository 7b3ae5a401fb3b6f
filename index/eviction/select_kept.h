// Which tokens of each head are kept, by their scores.
#ifndef SEINE_INDEX_EVICTION_SELECT_KEPT_H_
#define SEINE_INDEX_EVICTION_SELECT_KEPT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "index/config/budget.h"
#include "index/scorers/scorer.h"

namespace seine {

// For each head the places kept, ascending: the best by score, ties to the lowest position. Of all heads together
// (kAdaptive) ties go to the lowest KV head, then position. Scores of tokens that must be kept are overwritten.
// `window` as in BudgetScope. `weighting`, which may be nullptr, is the scorer's: scores are selected by in its two
// stages. Under kAdaptive scores as they are tell how many each head keeps, and the stages run in each head
// (CriticalAdaKV). INVALID_ARGUMENT where tokens that must be kept are more than the budget has; errors of
// the backend.
absl::StatusOr<std::vector<std::vector<uint32_t>>> SelectKept(const BudgetConfig& budget, const KeepConfig& keep,
                                                              int num_layers, int64_t window, const ScoreInput& input,
                                                              Scores* scores,
                                                              const ValueWeighting* weighting = nullptr);

}  // namespace seine

#endif  // SEINE_INDEX_EVICTION_SELECT_KEPT_H_
