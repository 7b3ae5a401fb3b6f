// One answer out of those of a sequence's shards.
#ifndef SEINE_CLIENT_SHARDED_MERGE_H_
#define SEINE_CLIENT_SHARDED_MERGE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "client/sharded/stripe_map.h"
#include "client/types.h"

namespace seine::client {

// The answer of one shard.
template <typename Of>
struct FromShard {
  int shard = 0;
  Of answer;
};

// The state of a whole sequence's layer at the time of a query.
struct WholeLayer {
  int64_t num_tokens = 0;
  int64_t zone_begin = 0, zone_end = 0;  // equal: all is dense
  int num_sets = 0;                      // of the selector's scope
  bool exact = false;
};

// Attention over what all shards attended, by their log-sum-exps, in double. At least one answer; all are OK.
Attended MergeAttended(absl::Span<const FromShard<Attended>> parts, const WholeLayer& whole);

// The best top_k of each set by score, in positions of the whole; of equal scores the lowest positions. Scores must
// have come, of logits: those of different shards compare. Shards that have no zone are left out. all_returned: each
// set is the whole zone.
Answer MergeAnswers(absl::Span<const FromShard<Answer>> parts, const StripeMap& map, int top_k,
                    const WholeLayer& whole);

// All that the shards' sets hold, as MergeAnswers returns it.
Answer JoinAnswers(absl::Span<const FromShard<Answer>> parts, const StripeMap& map, const WholeLayer& whole);

// A shard's part of each set of `answer`: int32 rows, [num_sets, width], padded with -1; `width` is set.
std::vector<int32_t> RowsOfShard(const Answer& answer, const StripeMap& map, int shard, int* width);

}  // namespace seine::client

#endif  // SEINE_CLIENT_SHARDED_MERGE_H_
