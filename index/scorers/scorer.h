// Scorers: how much each stored token of a head is worth keeping. Higher is kept. One small file each, chosen by name:
// profile/scorer_list.h lists them with formula, source and options.
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
#include "profile/scorer_list.h"

namespace seine {

// KeyDiff's anchor: the mean of unit keys, of keys as they are, their coordinates' (lower) medians; or no anchor but
// the mean cosine to every key (equation 7), for at most kMaxPairwise tokens.
enum class Anchor : uint8_t { kUnitMean = 0, kMean = 1, kMedian = 2, kPairwise = 3 };
enum class Similarity : uint8_t { kCosine = 0, kDot = 1, kEuclid = 2 };
enum class Metric : uint8_t { kL2 = 0, kL1 = 1, kLinf = 2 };
// CriticalKV: what scores are multiplied by (value_weight.h).
enum class ValueWeight : uint8_t { kNone = 0, kNorm = 1, kProjected = 2 };

inline constexpr int64_t kMaxPairwise = 8192;

// A name and the options of all scorers with their defaults, as profile/scorer_list.h has them.
struct ScorerConfig {
  std::string name = "keydiff";
#define SEINE_SCORER_FIELD(Type, option, usual, least, most, help) Type option = usual;
  SEINE_FOR_EACH_SCORER_OPTION(SEINE_SCORER_FIELD)
#undef SEINE_SCORER_FIELD
};

// visit(ScorerOption) for each option of ScorerConfig.
template <typename Visit>
void ForEachScorerOption(Visit visit) {
#define SEINE_SCORER_VISIT(Type, option, usual, least, most, help) \
  visit(ScorerOption<ScorerConfig, Type, Type>{#Type, #option, &ScorerConfig::option, usual, least, most, help});
  SEINE_FOR_EACH_SCORER_OPTION(SEINE_SCORER_VISIT)
#undef SEINE_SCORER_VISIT
}

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
  // h2o with accumulate: what queries before position `accumulated_to` have paid each token; empty: no sums are kept.
  std::vector<const float*> attention_sums;  // [num_kv_heads][count]
  int64_t accumulated_to = 0;
  const float* output_projection = nullptr;  // [hidden_size, num_q_heads, head_dim], value_weight projected
  int hidden_size = 0;
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

// Positions whose queries are kept for a scorer that looks at some.
inline constexpr int kDefaultKeptQueries = 128;

class ValueWeighting;

// Immutable and thread-safe.
struct TokenRange {
  int64_t begin = 0, end = 0;  // of the tokens that a head holds
};

class Scorer {
 public:
  virtual ~Scorer() = default;
  virtual SumsWanted sums() const { return {}; }
  virtual bool needs_queries() const { return false; }
  // How many of the last positions' queries an index keeps by itself, where it is not told how many.
  virtual int64_t default_query_window() const { return needs_queries() ? kDefaultKeptQueries : 0; }
  virtual bool takes_profile() const { return false; }  // in place of the queries that it needs
  // The option by which it reads values; nullptr: it does not.
  virtual const char* values_option() const { return nullptr; }
  virtual bool needs_filters() const { return false; }
  virtual bool needs_scores() const { return false; }  // that come with a call
  // Whether it reads running sums of attention, where no queries come with the call.
  virtual bool accumulates() const { return false; }
  // What its scores are to be multiplied by before they are used; nullptr: nothing.
  virtual const ValueWeighting* weighting() const { return nullptr; }
  // PyramidKV's window: the last positions whose tokens it puts above all others, because the queries that it looks at
  // are theirs.
  virtual int64_t observation_window() const { return 0; }
  // A sequence of at most so many positions loses nothing: the scorer puts all of them above all others.
  virtual int64_t kept_prompt() const { return observation_window(); }
  // The option that states it.
  virtual const char* kept_prompt_option() const { return ""; }
  // Which of a head's tokens its scores are of. The others stand above all of them, to be kept in any case.
  virtual TokenRange Scored(const ScoreInput& input, int head) const { return {0, input.heads[head].count}; }
  // Before any weighting. INVALID_ARGUMENT "field: what is missing or wrong".
  virtual absl::Status Score(const ScoreInput& input, Scores* scores) const = 0;
};

// INVALID_ARGUMENT "scorer.field: what is wrong", also for an option that the named scorer does not have.
absl::StatusOr<std::shared_ptr<const Scorer>> MakeScorer(const ScorerConfig& config);

}  // namespace seine

#endif  // SEINE_INDEX_SCORERS_SCORER_H_
