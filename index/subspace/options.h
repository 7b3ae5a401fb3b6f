// Settings of subspaces that need no matrices to be stated.
#ifndef SEINE_INDEX_SUBSPACE_OPTIONS_H_
#define SEINE_INDEX_SUBSPACE_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

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

// Settings of an index that keeps its zone low-rank (low_rank_store.h). Tokens are stored so once the zone's end has
// passed them, an update buffer at a time; the sink and what is newer stay as they came. Needs KvStore::kKeysValues.
struct SubspaceConfig {
  int key_rank = 0, value_rank = 0;  // of every head, 1 to head_dim
  // In (0, 1], in place of both ranks: each becomes the smallest that holds this share of the energy of the profile's
  // moments in every layer and head (OjaKV, A.3). Index::Create finds them; Index::config() has them beside this.
  std::optional<double> energy;
  KeyFrame frame = KeyFrame::kPostRope;    // kPreRope needs geometry.rope
  OjaOptions oja;                          // error_threshold 1: the bases stay as they began
  double full_rank = 0;                    // share of the tokens that stay full-rank, in [0, 1)
  int64_t version_tokens = 16384;          // that share a basis
  std::shared_ptr<const Profile> profile;  // what the bases begin with; nullptr: a sequence's first tokens
  std::string profile_name;                // as descriptions give it
  int64_t carried_to = 32768;              // kPostRope: positions that a profile's moments are carried to
};

}  // namespace seine

#endif  // SEINE_INDEX_SUBSPACE_OPTIONS_H_
