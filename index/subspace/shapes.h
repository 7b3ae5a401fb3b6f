// The low-rank stores of an index as its settings want them: what each head's begin with.
#ifndef SEINE_INDEX_SUBSPACE_SHAPES_H_
#define SEINE_INDEX_SUBSPACE_SHAPES_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "index/config/config.h"
#include "index/subspace/low_rank_store.h"

namespace seine {

// Puts the ranks of valid settings that give an energy share in their place. INVALID_ARGUMENT as below.
absl::Status FindRanks(IndexConfig* config);

// [num_layers][num_kv_heads], of valid settings with ranks; empty where they have no subspaces. INVALID_ARGUMENT where
// the profile's moments give no basis.
using LowRankShapes = std::vector<std::vector<LowRankShape>>;
absl::StatusOr<LowRankShapes> MakeLowRankShapes(const IndexConfig& config);

}  // namespace seine

#endif  // SEINE_INDEX_SUBSPACE_SHAPES_H_
