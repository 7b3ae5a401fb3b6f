#include "index/subspace/shapes.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "index/types.h"
#include "profile/field_error.h"
#include "profile/moments.h"
#include "profile/profile.h"

namespace seine {

namespace {

LowRankOptions OptionsOf(const IndexConfig& config, int layer) {
  const SubspaceConfig& s = *config.subspace;
  LowRankOptions o;
  o.head_dim = config.geometry.head_dim;
  o.dtype = config.geometry.dtype;
  o.frame = s.frame;
  o.rope = config.geometry.RopeOf(layer);
  o.key_rank = s.key_rank_of(layer);
  o.value_rank = s.value_rank_of(layer);
  o.block_tokens = config.zones.update_buffer;
  o.version_tokens = s.version_tokens;
  o.prompt = s.prompt;
  o.full_rank = s.full_rank;
  o.choice = s.choice;
  o.oja = s.oja;
  return o;
}

CalibrationOptions CalibrationOf(const SubspaceConfig& s, int layer) {
  CalibrationOptions calibration;
  calibration.frame = s.frame;
  calibration.end = static_cast<double>(s.carried_to);
  calibration.stack_queries = s.stack_queries;
  calibration.key_rank = s.key_rank_of(layer);
  calibration.value_rank = s.value_rank_of(layer);
  calibration.energy = s.energy.value_or(0);
  return calibration;
}

absl::Status CheckEnergy(const SubspaceConfig& s) {
  if (!(*s.energy > 0 && *s.energy <= 1)) return BadField("subspace.energy", *s.energy, " is not in (0, 1]");
  if (s.profile == nullptr) return BadField("subspace.energy", "needs a profile, whose moments the ranks follow from");
  return absl::OkStatus();
}

// Ranks of layers, of the field `name` + "s". One rank for all is `one`.
absl::Status CheckLayerRanks(const std::string& name, const std::vector<int>& ranks, int one, const Geometry& g) {
  if (ranks.empty()) return absl::OkStatus();
  const std::string field = absl::StrCat("subspace.", name, "s");
  if (static_cast<int>(ranks.size()) != g.num_layers) {
    return BadField(field, ranks.size(), " ranks for ", g.num_layers, " layers");
  }
  for (size_t l = 0; l < ranks.size(); ++l) {
    if (ranks[l] >= 1 && ranks[l] <= g.head_dim) continue;
    return BadField(absl::StrCat(field, "[", l, "]"), ranks[l], " is not in [1, ", g.head_dim, "]");
  }
  if (one == 0) return absl::OkStatus();
  return BadField(absl::StrCat("subspace.", name), one, " given beside ", name, "s; give one or the other");
}

// What needs something else of the same settings.
absl::Status CheckNeeds(const SubspaceConfig& s) {
  if (s.energy_by_layer && !s.energy) return BadField("subspace.energy_by_layer", "needs energy, which it divides");
  if (s.energy && !s.energy_by_layer && !(s.key_ranks.empty() && s.value_ranks.empty())) {
    return BadField("subspace.energy", "finds one rank for all layers; key_ranks and value_ranks are given");
  }
  if (s.stack_queries && s.profile == nullptr) {
    return BadField("subspace.stack_queries", "needs a profile, which has the moments of queries");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSubspace(const IndexConfig& config) {
  if (!config.subspace) return absl::OkStatus();
  const SubspaceConfig& s = *config.subspace;
  const Geometry& g = config.geometry;
  if (config.kv_store != KvStore::kKeysValues) {
    return BadField("kv_store", "subspaces need keys_values");
  }
  if (config.zones.update_buffer > kMaxBlockTokens) {
    return BadField("zones.update_buffer", config.zones.update_buffer, ", with subspaces at most ", kMaxBlockTokens);
  }
  absl::Status bad = CheckLayerRanks("key_rank", s.key_ranks, s.key_rank, g);
  if (bad.ok()) bad = CheckLayerRanks("value_rank", s.value_ranks, s.value_rank, g);
  if (bad.ok()) bad = CheckNeeds(s);
  if (!bad.ok()) return bad;
  LowRankOptions options = OptionsOf(config, 0);  // layers differ in their ranks alone
  if (s.energy) {
    if (bad = CheckEnergy(s); !bad.ok()) return bad;
    options.key_rank = options.value_rank = g.head_dim;  // at most; found from a valid profile
  }
  if (bad = Validate(options); !bad.ok()) return InGroup(bad, "subspace");
  const Rope& rope = g.rope;
  if (s.frame == KeyFrame::kPreRope && rope.style == Rope::Style::kHalfSplit && rope.half() < g.head_dim / 2) {
    return BadField("subspace.frame", "pre_rope: keys of which RoPE turns ", rope.rotary_dim, " of ", g.head_dim,
                    " coordinates go by post_rope alone");
  }
  if (s.profile_name.size() > kMaxNameLength) {
    return BadField("subspace.profile", s.profile_name.size(), " characters, at most ", kMaxNameLength);
  }
  if (s.carried_to < 0) return BadField("subspace.carried_to", s.carried_to, " is negative");
  if (s.profile == nullptr) return absl::OkStatus();
  bad = CheckGeometry(*s.profile, g.num_layers, g.num_q_heads, g.num_kv_heads, g.head_dim);
  if (!bad.ok()) return WithField(bad, "subspace.profile");
  for (int layer = 0; layer < g.num_layers; ++layer) {
    for (int h = 0; h < g.num_kv_heads; ++h) {
      const LayerProfile& moments = s.profile->layers[layer];
      if (moments.k_moment[h].trace() > 0 && !moments.v_moment.empty() && moments.v_moment[h].trace() > 0) continue;
      return BadField("subspace.profile", "no moments of keys or of values in layer ", layer, ", KV head ", h);
    }
  }
  return CheckProfileRope(*s.profile, g);
}

absl::Status FindRanks(IndexConfig* config) {
  if (!config->subspace || !config->subspace->energy) return absl::OkStatus();
  SubspaceConfig& s = *config->subspace;
  SubspaceConfig open = s;  // without ranks, as the search for them wants it
  open.key_rank = open.value_rank = 0;
  open.key_ranks.clear(), open.value_ranks.clear();
  const auto found =
      RanksForEnergy(*s.profile, config->geometry.rope, config->geometry.layer_ropes, CalibrationOf(open, 0));
  if (!found.ok()) return WithField(found.status(), "subspace.profile");
  const auto take = [&](const char* name, int SubspaceRanks::*side, int* one, std::vector<int>* each) {
    std::vector<int> ranks;
    for (const SubspaceRanks& layer : *found) ranks.push_back(layer.*side);
    const int largest = *std::max_element(ranks.begin(), ranks.end());
    // A description has what was found beside the share, and what it describes can be created anew.
    if (s.energy_by_layer && !each->empty() && *each != ranks) {
      return BadField("subspace.energy", *s.energy, " finds other ", name, "s; give one or the other");
    }
    if (*one != 0 && (s.energy_by_layer || *one != largest)) {
      return BadField("subspace.energy", *s.energy, " finds ", name, s.energy_by_layer ? "s of layers, up to " : " ",
                      largest, ", not ", *one, "; give one or the other");
    }
    if (s.energy_by_layer) {
      *each = std::move(ranks);
    } else {
      *one = largest;
    }
    return absl::OkStatus();
  };
  absl::Status status = take("key_rank", &SubspaceRanks::keys, &s.key_rank, &s.key_ranks);
  if (status.ok()) status = take("value_rank", &SubspaceRanks::values, &s.value_rank, &s.value_ranks);
  return status;
}

absl::StatusOr<LowRankShapes> MakeLowRankShapes(const IndexConfig& config) {
  LowRankShapes shapes;
  if (!config.subspace) return shapes;
  const SubspaceConfig& s = *config.subspace;
  const Geometry& g = config.geometry;
  for (int layer = 0; layer < g.num_layers; ++layer) {
    std::vector<LowRankShape>& heads = shapes.emplace_back(g.num_kv_heads);
    for (LowRankShape& head : heads) head.options = OptionsOf(config, layer);
    if (s.profile == nullptr) continue;
    const Rope& rope = g.RopeOf(layer);
    auto bases = CalibrateLayer(*s.profile, rope, layer, CalibrationOf(s, layer));
    if (!bases.ok()) return BadField("subspace.profile", "layer ", layer, ": ", WhatOf(bases.status()));
    for (int h = 0; h < g.num_kv_heads; ++h) {
      const Eigen::MatrixXd queries = GroupQueryMoment(*s.profile, layer, h);
      heads[h].query_moment =
          s.frame == KeyFrame::kPreRope ? queries : CarryMoment(queries, rope, 0, static_cast<double>(s.carried_to));
      heads[h].key_start = std::move(bases->keys[h]);
      heads[h].value_start = std::move(bases->values[h]);
    }
  }
  return shapes;
}

}  // namespace seine
