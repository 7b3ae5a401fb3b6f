// See layer_data.h.
#include "bench/inputs/layer_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/inputs/head_profile.h"
#include "bench/inputs/synthetic.h"
#include "profile/moments.h"

namespace seine::bench {
namespace {

constexpr int64_t kOwnQueries = 512;     // of a synthetic head, for its moments
constexpr int64_t kProfileKeys = 32768;  // of a head, at most, for its moments
constexpr int64_t kMostKeys = int64_t{1} << 28;
constexpr char kSyntheticRope[] = R"({"rope_type": "default", "rope_theta": 500000.0})";  // synthetic.h

absl::Status CheckShape(const LayerDataOptions& o) {
  if (std::find(std::begin(kHeadDims), std::end(kHeadDims), o.head_dim) == std::end(kHeadDims)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--head-dim: ", o.head_dim, " is none of ", absl::StrJoin(kHeadDims, ", ")));
  }
  constexpr int kMostDense = 1 << 20;
  const struct {
    const char* flag;
    int value, least, most;
  } ranges[] = {{"layers", o.layers, 1, 1024},
                {"kv-heads", o.kv_heads, 1, 256},
                {"group", o.group, 1, kMaxGroup},
                {"sink", o.sink, 0, kMostDense},
                {"local", o.local, 0, kMostDense}};
  for (const auto& r : ranges) {
    if (r.value >= r.least && r.value <= r.most) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", r.flag, ": ", r.value, " is not in [", r.least, ", ", r.most, "]"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<LayerSource>> LayerSource::Open(const LayerDataOptions& options) {
  if (absl::Status s = CheckShape(options); !s.ok()) return s;
  auto source = std::unique_ptr<LayerSource>(new LayerSource(options));
  const absl::Status opened = options.trace.empty() ? source->OpenSynthetic() : source->OpenTrace();
  if (!opened.ok()) return opened;
  const DatasetInfo& info = source->info_;
  if (!info.rope_json.empty()) {
    auto rope = ParseRope(info.rope_json, info.head_dim, info.rope_style, info.num_tokens);
    if (!rope.ok()) return absl::Status(rope.status().code(), absl::StrCat("--trace: rope: ", rope.status().message()));
    source->rope_ = *std::move(rope);
  }
  return source;
}

absl::Status LayerSource::OpenTrace() {
  DatasetOptions data;
  data.trace = options_.trace;
  data.sink = options_.sink;
  data.local = options_.local;
  data.num_queries = kPositions;
  data.own_queries = true;
  data.values = true;
  data.dtype = "fp16";
  auto dataset = Dataset::Open(data);
  if (!dataset.ok()) return dataset.status();
  info_ = (*dataset)->info();
  if (info_.num_positions < kPositions) {
    return absl::InvalidArgumentError(absl::StrCat("--trace ", options_.trace, ": queries of ", info_.num_positions,
                                                   " of the last ", options_.local, " (--local) positions; ",
                                                   kPositions, " are needed, besides as many for the profile"));
  }
  if (options_.layers > static_cast<int>(info_.layers.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("--layers: ", options_.layers, " is more than the trace's ", info_.layers.size()));
  }
  info_.layers.resize(options_.layers);
  options_.kv_heads = info_.num_kv_heads;
  options_.group = info_.group;
  options_.head_dim = info_.head_dim;
  most_keys_ = info_.num_keys();
  trace_ = *std::move(dataset);
  return absl::OkStatus();
}

absl::Status LayerSource::OpenSynthetic() {
  auto kind = SyntheticKindOf(options_.synthetic);
  if (!kind.ok()) return kind.status();
  info_.source = options_.synthetic;
  info_.synthetic = true;
  for (int l = 0; l < options_.layers; ++l) info_.layers.push_back(l);
  info_.num_kv_heads = options_.kv_heads;
  info_.group = options_.group;
  info_.head_dim = options_.head_dim;
  info_.dtype = DType::kFloat16;
  info_.num_positions = kPositions;
  if (*kind == SyntheticKind::kRope) info_.rope_json = kSyntheticRope;
  most_keys_ = kMostKeys;
  return absl::OkStatus();
}

absl::StatusOr<Head> LayerSource::LoadHead(int layer, int kv_head, int64_t num_keys) const {
  const int64_t tokens = options_.sink + num_keys + options_.local, dim = options_.head_dim;
  const int index = layer * options_.kv_heads + kv_head;
  Head head;
  if (trace_ != nullptr) {  // its first tokens; the queries stay those of its end
    auto loaded = trace_->Load(index);
    if (!loaded.ok()) return loaded.status();
    head = *std::move(loaded);
    head.keys.resize(tokens * dim);
    head.tokens.resize(tokens * dim * sizeof(uint16_t));
    head.values.resize(tokens * dim * sizeof(uint16_t));
  } else {
    const uint64_t seed = options_.seed * 0x10001 + static_cast<uint64_t>(index);
    const SyntheticKind kind = *SyntheticKindOf(options_.synthetic);
    const int64_t asked = kPositions * options_.group;
    SyntheticHead made = MakeSynthetic({kind, tokens, asked + kOwnQueries, options_.head_dim, seed});
    head.keys = std::move(made.keys);
    head.tokens = ToDType(DType::kFloat16, &head.keys);
    head.queries.assign(made.queries.begin(), made.queries.begin() + asked * dim);
    head.own_queries.assign(made.queries.begin() + asked * dim, made.queries.end());
    for (int64_t i = 0; i < kOwnQueries; ++i) head.own_positions.push_back(tokens + asked + i);
    made = MakeSynthetic({SyntheticKind::kGaussian, tokens, 0, options_.head_dim, ~seed});
    head.values = ToDType(DType::kFloat16, &made.keys);
  }
  head.layer = layer;
  head.kv_head = kv_head;
  head.num_tokens = tokens;
  head.zone_begin = options_.sink;
  head.zone_end = options_.sink + num_keys;
  return head;
}

void LayerSource::AddTruth(Head* head, LayerData* layer) const {
  TruthOptions truth;
  truth.head_dim = options_.head_dim;
  truth.group = options_.scope == Scope::kPerKvHead ? options_.group : 1;
  truth.top_k = options_.top_k;
  truth.scope = options_.scope;
  truth.softmax_scale = 1 / std::sqrt(static_cast<float>(options_.head_dim));
  head->queries.resize(options_.truth_positions * options_.group * options_.head_dim);
  std::vector<Ask> asks = MakeAsks(*head, options_.group, truth);
  const int64_t sets = static_cast<int64_t>(asks.size()) / options_.truth_positions;
  for (size_t a = 0; a < asks.size(); ++a) layer->top[a / sets].push_back(std::move(asks[a].top));
}

absl::Status LayerSource::AddHead(Head head, LayerData* layer, LayerProfile* profile) const {
  const int64_t bytes = layer->rows.head_bytes(), dim = options_.head_dim, group = options_.group;
  std::memcpy(layer->rows.keys.data() + head.kv_head * bytes, head.tokens.data(), bytes);
  std::memcpy(layer->rows.values.data() + head.kv_head * bytes, head.values.data(), bytes);
  for (int64_t p = 0; p < kPositions; ++p) {
    std::copy_n(&head.queries[p * group * dim], group * dim,
                &layer->queries[(p * options_.kv_heads + head.kv_head) * group * dim]);
  }
  if (profile != nullptr) {
    auto own = OwnProfile(head, options_.head_dim, rope_, kProfileKeys);
    if (!own.ok()) return own.status();
    const LayerProfile& one = (*own)->layers[0];
    profile->q_mean.insert(profile->q_mean.end(), group, one.q_mean[0]);  // one head of moments for the whole group
    profile->q_moment.insert(profile->q_moment.end(), group, one.q_moment[0]);
    profile->k_mean.push_back(one.k_mean[0]);
    profile->k_moment.push_back(one.k_moment[0]);
    profile->k_residual.push_back(one.k_residual[0]);
  }
  AddTruth(&head, layer);
  return absl::OkStatus();
}

absl::StatusOr<LayerSet> LayerSource::Make(int64_t num_keys, Backend* backend,
                                           const std::function<void()>& made) const {
  LayerSet set;
  set.num_keys = num_keys;
  set.num_tokens = options_.sink + num_keys + options_.local;
  Profile profile;
  profile.model = "own";
  profile.num_q_heads = options_.kv_heads * options_.group;
  profile.num_kv_heads = options_.kv_heads;
  profile.head_dim = options_.head_dim;
  profile.layers.resize(options_.layers);
  for (int l = 0; l < options_.layers; ++l) {
    LayerData& layer = set.layers.emplace_back();
    layer.rows.num_tokens = set.num_tokens;
    layer.rows.num_kv_heads = options_.kv_heads;
    layer.rows.head_dim = options_.head_dim;
    const size_t bytes = options_.kv_heads * layer.rows.head_bytes();
    layer.rows.keys = backend->Allocate(bytes, MemorySpace::kStore);
    layer.rows.values = backend->Allocate(bytes, MemorySpace::kStore);
    if (!layer.rows.keys || !layer.rows.values) {
      return absl::ResourceExhaustedError(absl::StrCat("--num-keys: no memory for ", num_keys, " keys"));
    }
    layer.queries.resize(kPositions * profile.num_q_heads * options_.head_dim);
    layer.top.resize(options_.truth_positions);
    for (int h = 0; h < options_.kv_heads; ++h) {
      auto head = LoadHead(l, h, num_keys);
      if (!head.ok()) return head.status();
      absl::Status s = AddHead(*std::move(head), &layer, options_.profile ? &profile.layers[l] : nullptr);
      if (!s.ok()) return s;
      made();
    }
  }
  if (options_.profile) set.profile = std::make_shared<const Profile>(std::move(profile));
  return set;
}

}  // namespace seine::bench
