// What an index that evicts, one that stores low-rank, and one that does both take and make of attention's output.
//
// Each head is a layer of its own: the tokens before the last ones, which bring the queries, are appended, cut back to
// a budget, then the rest is appended, so that `keep` of all tokens are held at the end. Attention is over what the
// index gives back of the tokens that a query sees; bytes are the stored keys' and values' by the index's own account,
// positions, checksums and bases included, over those of fp16 rows of all tokens. Retrieval codes are apart.
#ifndef SEINE_BENCH_MEASURES_SUBSPACES_SUBSPACE_STORAGE_H_
#define SEINE_BENCH_MEASURES_SUBSPACES_SUBSPACE_STORAGE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/inputs/dataset.h"
#include "bench/measures/subspaces/subspace.h"
#include "kernels/backend.h"

namespace seine::bench {

struct StorageRow {
  std::string frame;  // of the low-rank keys; empty: full-rank
  int key_rank = 0;   // 0: full-rank
  bool evicted = false;
  double kept = 1;             // share of the tokens that are held
  double bytes = 0;            // share of the full cache's
  double low_rank_bytes = 0;   // of it: codes, tokens kept full-rank besides, bases
  double attention_error = 0;  // |o^ - o| / |o|
};

// Rows full, evicted, low-rank, both: the last two for each frame that the data allow; means over heads. The profile
// must be of the trace's model. Errors of the index, the scorer's name first of all.
absl::StatusOr<std::vector<StorageRow>> MeasureStorage(const Dataset& dataset, const SubspaceOptions& options,
                                                       const std::string& scorer, double keep, Backend* backend);

}  // namespace seine::bench

#endif  // SEINE_BENCH_MEASURES_SUBSPACES_SUBSPACE_STORAGE_H_
