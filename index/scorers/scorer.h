// Scorers: how much each stored token of a head is worth keeping. Higher is kept. One small file each, chosen by name:
//
//   keydiff              -cos(k, mean of unit keys)                         KeyDiff, equation 8
//   manifoldkv           |k - mean of keys|                                 ManifoldKV, equation 3
//   windowed_manifoldkv  |k - mean of the keys of its window of positions|  ManifoldKV, algorithm 2
//   hybrid               (1 - lambda) keydiff + lambda manifoldkv, each scaled to [0, 1] within its head; the paper's
//                        table 10 names it and does not define it: this is our reading
//   normalized           |k/|k| - mean of unit keys|, our reading of the same table
//   qfilters             <k, filter>                                        Q-Filters, section 2.2
//   knorm                -|k|
//   streaming_llm        the first `sink` tokens, then the most recent      StreamingLLM
//   snapkv               mean attention of the last queries, pooled         SnapKV
//   tova                 attention of the last query, mean over all heads   TOVA
//   h2o                  mean attention of the queries that see a token     H2O
//   expected_attention   attention that queries to come are expected to pay Expected Attention
//   client               scores that the caller gives
//
// Conventions of the attention-based ones are those of NVIDIA kvpress 0.5.5, which the tests compare with.
#ifndef SEINE_INDEX_SCORERS_SCORER_H_
#define SEINE_INDEX_SCORERS_SCORER_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "index/scorers/key_sums.h"
#include "kernels/backend.h"
#include "kernels/types.h"
#include "profile/profile.h"
#include "profile/rope.h"

namespace seine {

// KeyDiff's anchor: the mean of unit keys, of keys as they are, their coordinates' (lower) medians; or no anchor but
// the mean cosine to every key (equation 7), for at most kMaxPairwise tokens.
enum class Anchor : uint8_t { kUnitMean = 0, kMean = 1, kMedian = 2, kPairwise = 3 };
enum class Similarity : uint8_t { kCosine = 0, kDot = 1, kEuclid = 2 };
enum class Metric : uint8_t { kL2 = 0, kL1 = 1, kLinf = 2 };

inline constexpr int64_t kMaxPairwise = 8192;

struct ScorerConfig {
  std::string name = "keydiff";
  Anchor anchor = Anchor::kUnitMean;            // keydiff
  Similarity similarity = Similarity::kCosine;  // keydiff
  Metric metric = Metric::kL2;                  // manifoldkv, windowed_manifoldkv
  int window = 4096;                            // windowed_manifoldkv, positions
  double lambda = .3;                           // hybrid, in [0, 1]
  int sink = 4;                                 // streaming_llm, expected_attention: first tokens always kept
  int query_window = 64;                        // snapkv: last queries, whose tokens are kept; at most 65536
  int kernel = 5;                               // snapkv: tokens pooled, odd, at most 255
  int future = 512;                             // expected_attention: positions ahead
  double epsilon = 0;                           // expected_attention: added before the value's norm, in [0, 1]
  bool value_norms = true;                      // expected_attention: times |v|; needs stored values
};

// One KV head's tokens, ascending by position.
struct HeadTokens {
  int64_t count = 0;
  ChunkedRows keys = {};               // [count, head_dim]
  ChunkedRows values = {};             // chunks == nullptr: not held
  const int32_t* positions = nullptr;  // [count]; nullptr: 0, 1, ... count - 1
  const KeySums* sums = nullptr;       // what the scorer wants (Scorer::sums); nullptr: summed by the backend
  int32_t position(int64_t i) const { return positions == nullptr ? static_cast<int32_t>(i) : positions[i]; }
};

// What scorers look at: the tokens of one layer, and what comes with the call.
struct ScoreInput {
  Backend* backend = nullptr;
  int head_dim = 0, group = 1;  // group: query heads a KV head
  float softmax_scale = 0;      // of logits <q, k>, where a scorer computes attention
  int64_t length = 0;           // of the sequence: the position of the next token
  int layer = 0;
  std::vector<HeadTokens> heads;   // [num_kv_heads]
  const float* queries = nullptr;  // [num_queries, num_q_heads, head_dim] after RoPE
  int64_t num_queries = 0;         // at most length
  // [num_queries] ascending, below length: of queries that the index kept, of which scorers take what there is;
  // nullptr: they came with the call and are of the last positions.
  const int64_t* query_positions = nullptr;
  const float* filters = nullptr;    // [num_kv_heads, head_dim], qfilters: high <k, filter> is kept
  const Profile* profile = nullptr;  // expected_attention, in place of queries
  const Rope* rope = nullptr;        // expected_attention; not stated: vectors are used as observed
  std::vector<const float*> given;   // [num_kv_heads][count], client
  int num_q_heads() const { return static_cast<int>(heads.size()) * group; }
  bool queries_kept() const { return query_positions != nullptr; }
  int64_t query_position(int64_t i) const { return queries_kept() ? query_positions[i] : length - num_queries + i; }
  // How many queries are of positions before this one, which see no token at or after it.
  int64_t QueriesBefore(int64_t position) const {
    if (!queries_kept()) return std::clamp<int64_t>(position - query_position(0), 0, num_queries);
    return std::lower_bound(query_positions, query_positions + num_queries, position) - query_positions;
  }
};

// [num_kv_heads][count], finite.
using Scores = std::vector<std::vector<float>>;

// Immutable and thread-safe.
class Scorer {
 public:
  virtual ~Scorer() = default;
  virtual SumsWanted sums() const { return {}; }
  virtual bool needs_queries() const { return false; }
  virtual bool takes_profile() const { return false; }  // in place of the queries that it needs
  virtual bool needs_values() const { return false; }
  virtual bool needs_filters() const { return false; }
  // PyramidKV's window: the last positions whose tokens it puts above all others, because the queries that it looks at
  // are theirs.
  virtual int64_t observation_window() const { return 0; }
  // A sequence of at most so many positions loses nothing: the scorer puts all of them above all others.
  virtual int64_t kept_prompt() const { return observation_window(); }
  // INVALID_ARGUMENT "field: what is missing or wrong".
  virtual absl::Status Score(const ScoreInput& input, Scores* scores) const = 0;
};

// INVALID_ARGUMENT "scorer.field: what is wrong", also for an option that the named scorer does not have.
absl::StatusOr<std::shared_ptr<const Scorer>> MakeScorer(const ScorerConfig& config);

// Every name, in the order above.
const std::vector<std::string>& ScorerNames();

}  // namespace seine

#endif  // SEINE_INDEX_SCORERS_SCORER_H_
