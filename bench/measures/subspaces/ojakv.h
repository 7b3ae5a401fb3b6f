// OjaKV's pipeline as we read the paper, beside the library's own, in an index and at equal bytes.
//
// Each head of a trace is a layer of its own. A prompt, all tokens up to the first `prompt_queries` positions whose
// queries the trace holds, comes in one append with these; then the rest comes token by token, each with its queries.
// Positions spread over that rest are asked while the index holds what it holds then. So what chooses tokens by queries
// has seen none that is asked before its time. The sink is 16 tokens and the local zone 64; all else is low-rank.
#ifndef SEINE_BENCH_MEASURES_SUBSPACES_OJAKV_H_
#define SEINE_BENCH_MEASURES_SUBSPACES_OJAKV_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/inputs/dataset.h"
#include "index/config/subspace_config.h"
#include "kernels/backend.h"
#include "profile/profile.h"
#include "profile/rope.h"

namespace seine::bench {

struct OjakvOptions {
  int rank = 38, pre_rope_rank = 20;  // of values and of keys after RoPE; of keys before it
  // Other settings of the subspace: the measure sets rank, frame and profile. Ranks by layer are of the trace's.
  SubspaceConfig asked;
  std::vector<std::string> methods;  // ids of OjakvArms; empty: all
  double full_rank = .05;            // of the hybrids; the others' ranks grow by what that takes
  int prompt_queries = 32;
  int queries = 8;                         // positions asked
  std::shared_ptr<const Profile> profile;  // of the trace's model
  Rope rope;                               // not stated: keys after RoPE alone
};

struct OjakvRow {
  std::string frame;   // post_rope, pre_rope
  std::string method;  // an arm's id, see OjakvArms
  int key_rank = 0, value_rank = 0;
  double bytes = 0;            // of codes, full-rank tokens and bases, over the full rows of the tokens that they hold
  double attention_error = 0;  // |o^ - o| / |o| of the queries asked
  double mass = 0;             // attention that lies where the full cache's does: sum of min(w, w^)
  double updates = 0;          // of the keys' basis
  double blocks_without_queries = 0;
};

struct OjakvArm {
  const char* id;
  const char* title;
};
const std::vector<OjakvArm>& OjakvArms();

// Rows of every arm and frame; means over heads. Errors of the index; INVALID_ARGUMENT where the trace holds too few
// queries.
absl::StatusOr<std::vector<OjakvRow>> MeasureOjakv(const Dataset& dataset, const OjakvOptions& options,
                                                   Backend* backend);

}  // namespace seine::bench

#endif  // SEINE_BENCH_MEASURES_SUBSPACES_OJAKV_H_
