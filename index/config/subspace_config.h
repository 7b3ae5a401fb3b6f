// Settings of subspaces that need no matrices to be stated.
#ifndef SEINE_INDEX_CONFIG_SUBSPACE_CONFIG_H_
#define SEINE_INDEX_CONFIG_SUBSPACE_CONFIG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/ops/learn/oja.h"

namespace seine {

struct Profile;

// Where the key basis lives. kPostRope is the paper's, and low-rank attention needs it; kPreRope (ours) projects keys
// whose RoPE was undone, which fewer dimensions hold, and reads turn them back by their positions.
enum class KeyFrame : uint8_t { kPostRope = 0, kPreRope = 1 };
const char* Name(KeyFrame frame);  // "post_rope", "pre_rope"
absl::StatusOr<KeyFrame> KeyFrameOf(absl::string_view name);

absl::Status Validate(const OjaOptions& options);  // INVALID_ARGUMENT naming the field
inline constexpr double kMaxOjaStep = 1e3;  // a learning rate far above what learns, and far below what overflows

// The paper's prefill (5.2): what a prompt brings makes one step with the moment of its rows, averaged over neighbours,
// before the first of them is projected; updates every T rows begin after it.
struct PromptUpdate {
  int pool = 0;  // neighbours that are averaged, to kMaxPromptPool; 0: a prompt is learnt from every T rows
  double learning_rate = .1;  // as OjaOptions::relative takes it
};
inline constexpr int kMaxPromptPool = 4096;

// Which tokens stay full-rank (5.1): those that lose most to attention.
struct FullRankChoice {
  // By the queries of the last so many positions that can see the token, |q^T r| / sqrt(D) on average; 0 to
  // kMaxChoiceQueries. 0, and blocks that no kept query sees: by the profile's moment of queries, without one by |r|.
  int queries = 0;
  int pool = 1;  // errors are averaged over so many neighbours: odd, 1 to kMaxChoicePool
};
inline constexpr int kMaxChoiceQueries = 1024, kMaxChoicePool = 63;

// INVALID_ARGUMENT naming the wire's field: prompt_pool, prompt_learning_rate; full_rank_queries, full_rank_pool.
absl::Status Validate(const PromptUpdate& prompt);
absl::Status Validate(const FullRankChoice& choice);

inline constexpr double kPaperLearningRate = .1;  // eta of Table 9, where OjaOptions::relative is false

// Settings of an index that keeps its zone low-rank (low_rank_store.h). Tokens are stored so once the zone's end has
// passed them, an update buffer at a time; the sink and what is newer stay as they came. Needs KvStore::kKeysValues.
struct SubspaceConfig {
  int key_rank = 0, value_rank = 0;  // of every head, 1 to head_dim
  // [num_layers], in place of the rank of that name, which is then 0. Empty: every layer has that.
  std::vector<int> key_ranks, value_ranks;
  // In (0, 1], in place of both ranks: each becomes the smallest that holds this share of the energy of the profile's
  // moments in every layer and head (OjaKV, A.3). Index::Create finds them; Index::config() has them beside this.
  std::optional<double> energy;
  bool energy_by_layer = false;          // it finds key_ranks and value_ranks, each layer's own: A.3 to the letter
  KeyFrame frame = KeyFrame::kPostRope;  // kPreRope needs geometry.rope
  OjaOptions oja;                        // error_threshold 1: the bases stay as they began
  PromptUpdate prompt;
  double full_rank = .02;  // share of the tokens that stay full-rank, in [0, 1)
  FullRankChoice choice;
  int64_t version_tokens = 16384;          // that share a basis
  std::shared_ptr<const Profile> profile;  // what the bases begin with; nullptr: a sequence's first tokens
  std::string profile_name;                // as descriptions give it
  int64_t carried_to = 32768;              // kPostRope: positions that a profile's moments are carried to
  bool stack_queries = false;              // keys' bases are the profile's of queries and keys stacked (A.3)

  int key_rank_of(int layer) const { return key_ranks.empty() ? key_rank : key_ranks[layer]; }
  int value_rank_of(int layer) const { return value_ranks.empty() ? value_rank : value_ranks[layer]; }
};

// Settings that stored rows depend on, as snapshots state them: visit(name, value). Ranks, and what belongs to a
// profile, come beside.
template <typename Visit>
void ForEachStored(const SubspaceConfig& s, Visit visit) {
  visit("frame", Name(s.frame));
  visit("interval", s.oja.interval);
  visit("learning_rate", s.oja.learning_rate);
  visit("relative", s.oja.relative);
  visit("max_gain", s.oja.max_gain);
  visit("error_threshold", s.oja.error_threshold);
  visit("min_spacing", s.oja.min_spacing);
  visit("prompt_pool", s.prompt.pool);
  visit("prompt_learning_rate", s.prompt.learning_rate);
  visit("full_rank", s.full_rank);
  visit("full_rank_queries", s.choice.queries);
  visit("full_rank_pool", s.choice.pool);
  visit("version_tokens", s.version_tokens);
}

int LargestRanks(const SubspaceConfig& config);  // of a layer's keys and values together

// Positions whose queries each layer of a sequence keeps for the choice, num_q_heads * head_dim * 4 bytes each; 0:
// none.
int QueriesKept(const SubspaceConfig& config);

}  // namespace seine

#endif  // SEINE_INDEX_CONFIG_SUBSPACE_CONFIG_H_
