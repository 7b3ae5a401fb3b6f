// The subspace bench: how much of keys and values low-rank bases leave out, and what that does to attention's output.
//
// The first part of each head's tokens is prefill: bases may learn from it, and its tokens are stored in the basis at
// its end. The rest are decode steps: a token is stored in the basis that its interval found. Figures are of the decode
// part (attention: of all tokens that a query sees), means over heads.
#ifndef SEINE_BENCH_MEASURES_SUBSPACES_SUBSPACE_H_
#define SEINE_BENCH_MEASURES_SUBSPACES_SUBSPACE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/inputs/dataset.h"
#include "index/subspace/oja.h"
#include "profile/profile.h"
#include "profile/rope.h"

namespace seine::bench {

struct SubspaceOptions {
  int rank = 38;           // of keys after RoPE and of values
  int pre_rope_rank = 20;  // of keys before RoPE
  int64_t prefill = 0;     // tokens
  double carried_to = 0;   // positions [0, carried_to) that a post-RoPE basis is calibrated for
  OjaOptions oja;          // interval: that of the error-triggered line
  double trigger = .9;     // error-triggered: threshold over the residual share of the prefill's last tokens
  double full_rank = .05;  // share of the tokens that the hybrid keeps full-rank
  int queries = 8;         // a query head, for attention's output
  std::shared_ptr<const Profile> profile;  // of a trace's model
  Rope rope;                               // of the data; not stated: no pre-RoPE lines
};

// One way to choose bases on one stream of rows.
struct SubspaceRow {
  std::string stream;  // keys_post_rope, keys_pre_rope, values
  std::string method;  // static, pca_prefill, oja_batch, oja_32, oja_64, oja_128, triggered, oracle
  int rank = 0;
  double rer = 0;      // residual energy ratio of the decode part
  double overlap = 0;  // of the last basis with the oracle's
  double updates = 0;  // in the decode part, a head
  double us_per_update = 0;
  // |o^ - o| / |o| where keys come from this row's stream and values by the same method; and with the hybrid's tokens
  // full-rank. Of key streams with values beside them only.
  std::optional<double> attention_error, hybrid_error;
  std::vector<double> rer_over_time;  // of each bucket of the decode part
};

struct SubspaceResult {
  std::vector<SubspaceRow> rows;
  int64_t bucket_tokens = 0;
  const SubspaceRow* Find(const std::string& stream, const std::string& method) const;
};

absl::StatusOr<SubspaceResult> MeasureSubspaces(const Dataset& dataset, const DatasetOptions& data,
                                                const SubspaceOptions& options);

}  // namespace seine::bench

#endif  // SEINE_BENCH_MEASURES_SUBSPACES_SUBSPACE_H_
