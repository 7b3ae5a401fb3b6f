// Settings of an index: geometry, zones, codec, retrieval defaults, store and memory limit. Plain values; Validate
// names the field that is wrong. Paper: ParisKV, section 4; docs/codecs.md has the codecs.
#ifndef SEINE_INDEX_CONFIG_CONFIG_H_
#define SEINE_INDEX_CONFIG_CONFIG_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "index/config/budget.h"
#include "index/config/subspace_config.h"
#include "index/layer_gate.h"
#include "index/scorers/scorer.h"
#include "kernels/codecs/code.h"
#include "kernels/codecs/codec_traits.h"
#include "kernels/ops/query/search.h"
#include "kernels/types.h"
#include "profile/filters.h"
#include "profile/rope.h"

namespace seine {

struct Profile;

// Whatever has a name has one of at most so many characters, here and on the wire: indexes, models, profiles, tenants,
// nodes, snapshots.
inline constexpr size_t kMaxNameLength = 128;

inline constexpr int kMaxLayers = 4096;  // of an index

struct Geometry {
  int num_layers = 1;
  int num_q_heads = 1;  // a multiple of num_kv_heads
  int num_kv_heads = 1;
  int head_dim = 128;             // one of kHeadDims
  DType dtype = DType::kFloat16;  // of keys and values as appended and stored
  Rope rope = {};                 // of the keys as appended; not stated: moments are used as observed
  LayerRopes layer_ropes = {};    // of layers that turn otherwise than the others, or not at all
  const Rope& RopeOf(int layer) const { return RopeOfLayer(rope, layer_ropes, layer); }
  int group() const { return num_q_heads / num_kv_heads; }
};

// Sink | retrieval zone | local + buffer. With n tokens the zone is [sink, sink + floor((n - sink - local) /
// update_buffer)
// * update_buffer): a function of n alone, so streaming token by token equals one shot. Dense tokens are always
// visible.
struct Zones {
  int sink = 128;
  int local = 512;
  int update_buffer = 512;     // a multiple of 64 and of the centre window
  int dense_threshold = 2048;  // below this many tokens the answer is all of them (path DENSE)
};

enum class KvStore : uint8_t { kNone = 0, kKeys = 1, kKeysValues = 2 };

inline constexpr int64_t kDefaultHorizon = 32768;

struct CodecConfig : CodecOptions {
  std::string name = "rsq";         // one of AllCodecs() (codec_traits.h), whose traits say what it needs
  uint64_t seed = 1;                // without a profile
  Centre centre = Centre::kWindow;  // Coarse::kCollision: none (the paper's) or global
  int centre_window = 64;           // Centre::kWindow

  // What follows is of codecs that need a profile: the balanced code (docs/codecs.md, "balanced").
  std::shared_ptr<const Profile> profile;  // of the geometry's shape
  std::string profile_name;                // as descriptions give it
  // Queries are expected at positions [p, p + horizon], p following from the length when a layer's first keys are
  // encoded (SealingPosition). Nothing but the default where RoPE is not stated, for it has no effect there.
  int64_t horizon = kDefaultHorizon;
  // p for whoever knows it better than the length tells, as where recorded queries are replayed.
  std::optional<int64_t> query_position;
};

// Eviction that an index does by itself as tokens are appended: a layer that holds budget + interval tokens a head is
// cut back to its budget, and a longer append is taken in parts so that no more are ever held. With interval B that is
// KeyDiff's block prompt processing (section 2.4) during prefill and eviction every B tokens during decoding.
//
// Where the scorer looks at queries, these are the ones kept: those that items of Retrieve and Attend asked and those
// that Append carried. A full layer is then cut back as soon as the last token's are there, at the latest before the
// next token is taken; if none of the last `interval` positions' has been seen by then, that append is refused. The
// same holds of a scorer that accumulates: it needs those of Attend or Append, and keeps none.
struct EvictionConfig {
  ScorerConfig scorer;  // any but client
  BudgetConfig budget;  // in tokens
  KeepConfig keep;      // without positions
  int64_t interval = 128;
  std::shared_ptr<const Profile> profile;  // qfilters, expected_attention; the codec's if absent
  std::string profile_name;                // as descriptions give it
  std::vector<Filters> filters;            // qfilters, [num_layers], in place of a profile
  std::string filters_file;                // as descriptions give it
  // qfilters from a profile: its moments are carried to queries at positions [0, horizon], which should be about as
  // long as sequences grow. Absent: the balanced codec's horizon, under another codec kDefaultHorizon.
  std::optional<int64_t> horizon = {};
  // Positions whose queries each layer of a sequence keeps, the last ones seen, for scorers that look at queries:
  // num_q_heads * head_dim * 4 bytes each. Absent: what the scorer needs (QueriesKept).
  std::optional<int> keep_queries = {};
};

// Settings that an index's evictions depend on, as snapshots state them: visit(name, value). What scorers look at comes
// beside.
template <typename Visit>
void ForEachStored(const EvictionConfig& e, Visit visit) {
  visit("budget.tokens", e.budget.tokens);
  visit("budget.ratio", e.budget.ratio);
  visit("budget.heads", e.budget.heads);
  visit("budget.safeguard", e.budget.safeguard);
  visit("budget.beta", e.budget.pyramid_ratio);  // as snapshots of before spell it
  visit("keep.sinks", e.keep.sinks);
  visit("keep.recent", e.keep.recent);
  visit("keep.recent_share", e.keep.recent_share);
  visit("interval", e.interval);
}

struct IndexConfig {
  std::string name;
  std::string tenant;  // for whom a server holds it; the index itself only carries it. Empty: the server's own
  std::string model;   // as descriptions give it
  Geometry geometry;
  Zones zones;
  CodecConfig codec;
  SearchParams search;  // defaults of Retrieve; `search.coarse` is fixed for the index's life
  // Share of attention that answers of a layer may lose before Attend attends it exactly (index/layer_gate.h), in
  // [0, 1]; 0: any. Nothing is watched without a monitor, without stored values, under eviction and low-rank rows.
  double gate = kGateBound;
  KvStore kv_store = KvStore::kKeys;
  std::optional<EvictionConfig> eviction;
  std::optional<SubspaceConfig> subspace;
  int64_t memory_limit_bytes = 0;  // 0: none. Codes + stores of all sequences.
  // 0: none. Codes where they lie in a device's own memory; they do not count against memory_limit_bytes there.
  int64_t device_memory_limit_bytes = 0;
};

// How Attend attends what is found.
struct AttentionParams {
  // Whether every window of 64 tokens of a searched zone is counted in for those of its tokens that were not selected,
  // by the means of its keys and values (kernels/ops/attend/attention.h). Absent: where each query head has a set of
  // its own and the search is not exact; measured worse where heads share a set, whose own best are then still in the
  // tail.
  std::optional<bool> tail = {};
  float scale = 0;  // of the logits <q, k>, also where they choose; 0: SearchParams::softmax_scale
  // Soft cap: logits become softcap tanh(scale <q, k> / softcap), the tail's too (Gemma 2, arXiv 2408.00118, 2). The
  // same tokens are chosen; mass_p and the softmax reductions count logits without it. In [0, 10000]; 0: none.
  float softcap = 0;
  bool with_positions = false;  // AttendAnswer::selected is filled
  // The share of its attention that a prompt's token keeps (PromptParams::mass in index/prompt/prompt_attention.h), in
  // (0, 1]; 1: exact.
  double prompt_mass = 1;
};

// eviction.keep_queries, or where it is absent what the scorer needs (Scorer::default_query_window): none where a
// profile stands in for them.
int QueriesKept(const IndexConfig& config);

// eviction.horizon, or where it is absent what stands in for it.
int64_t FilterHorizon(const IndexConfig& config);

// What an index's codecs are made of.
CodecSpec SpecOf(const CodecConfig& codec, int head_dim);

// OK, or INVALID_ARGUMENT "field: what is wrong with it".
absl::Status Validate(const IndexConfig& config);
absl::Status Validate(const SearchParams& params);
// The same, and whether an index of these settings can do it: what the coarse plane and codec are for is fixed for its
// life. Also FAILED_PRECONDITION, where keys would have to be stored.
absl::Status Validate(const SearchParams& params, const IndexConfig& config);
// INVALID_ARGUMENT naming the layer unless each turns as many pairs of coordinates as the profile's, and the same ones.
// Frequencies may differ, as those of a context that is stretched.
absl::Status CheckProfileRope(const Profile& profile, const Geometry& g);
// Checks config.subspace, the rest being valid.
absl::Status CheckSubspace(const IndexConfig& config);
// A logit's scale is at most so much: larger ones would make finite products infinite.
inline constexpr float kMaxSoftmaxScale = 1e4f;
// INVALID_ARGUMENT "field: ..." where it is not in [0, kMaxSoftmaxScale].
absl::Status CheckSoftmaxScale(absl::string_view field, float scale);
// Also FAILED_PRECONDITION, where values would have to be stored. Fields open with "attention.".
absl::Status Validate(const AttentionParams& params, const IndexConfig& config);
// A codec's own options alone, for whoever has no profile yet.
absl::Status ValidateOptions(const CodecConfig& codec, int head_dim);

// As settings and descriptions spell them: "sign_ip", "collision"; "none", "global", "window".
const char* Name(Coarse coarse);
const char* Name(Centre centre);

}  // namespace seine

#endif  // SEINE_INDEX_CONFIG_CONFIG_H_
