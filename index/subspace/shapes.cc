#include "index/subspace/shapes.h"

#include <optional>
#include <utility>

#include "profile/field_error.h"
#include "profile/moments.h"
#include "profile/profile.h"

namespace seine {

namespace {

constexpr size_t kMaxProfileNameLength = 128;

LowRankOptions OptionsOf(const IndexConfig& config) {
  const SubspaceConfig& s = *config.subspace;
  LowRankOptions o;
  o.head_dim = config.geometry.head_dim;
  o.dtype = config.geometry.dtype;
  o.frame = s.frame;
  o.rope = config.geometry.rope;
  o.key_rank = s.key_rank;
  o.value_rank = s.value_rank;
  o.block_tokens = config.zones.update_buffer;
  o.version_tokens = s.version_tokens;
  o.full_rank = s.full_rank;
  o.oja = s.oja;
  return o;
}

CalibrationOptions CalibrationOf(const SubspaceConfig& s) {
  CalibrationOptions calibration;
  calibration.frame = s.frame;
  calibration.end = static_cast<double>(s.carried_to);
  calibration.key_rank = s.key_rank;
  calibration.value_rank = s.value_rank;
  calibration.energy = s.energy.value_or(0);
  return calibration;
}

absl::Status CheckEnergy(const SubspaceConfig& s) {
  if (!(*s.energy > 0 && *s.energy <= 1)) return BadField("subspace.energy", *s.energy, " is not in (0, 1]");
  if (s.profile == nullptr) return BadField("subspace.energy", "needs a profile, whose moments the ranks follow from");
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
  LowRankOptions options = OptionsOf(config);
  if (s.energy) {
    if (absl::Status bad = CheckEnergy(s); !bad.ok()) return bad;
    options.key_rank = options.value_rank = g.head_dim;  // at most; found from a valid profile
  }
  if (absl::Status bad = Validate(options); !bad.ok()) return InGroup(bad, "subspace");
  if (s.profile_name.size() > kMaxProfileNameLength) {
    return BadField("subspace.profile", s.profile_name.size(), " characters, at most ", kMaxProfileNameLength);
  }
  if (s.carried_to < 0) return BadField("subspace.carried_to", s.carried_to, " is negative");
  if (s.profile == nullptr) return absl::OkStatus();
  absl::Status bad = CheckGeometry(*s.profile, g.num_layers, g.num_q_heads, g.num_kv_heads, g.head_dim);
  if (!bad.ok()) return WithField(bad, "subspace.profile");
  for (int layer = 0; layer < g.num_layers; ++layer) {
    for (int h = 0; h < g.num_kv_heads; ++h) {
      const LayerProfile& moments = s.profile->layers[layer];
      if (moments.k_moment[h].trace() > 0 && !moments.v_moment.empty() && moments.v_moment[h].trace() > 0) continue;
      return BadField("subspace.profile", "no moments of keys or of values in layer ", layer, ", KV head ", h);
    }
  }
  if (s.profile->rope_json.empty() || g.rope.stated()) return absl::OkStatus();
  return BadField("geometry.rope", "not stated, but the profile's moments are of before RoPE");
}

absl::Status FindRanks(IndexConfig* config) {
  if (!config->subspace || !config->subspace->energy) return absl::OkStatus();
  SubspaceConfig& s = *config->subspace;
  const auto ranks = RanksForEnergy(*s.profile, config->geometry.rope, CalibrationOf(s));
  if (!ranks.ok()) return WithField(ranks.status(), "subspace.profile");
  // A description has both, and what it describes can be created anew.
  const auto take = [&](const char* name, int found, int* rank) {
    if (*rank != 0 && *rank != found) {
      return BadField("subspace.energy", *s.energy, " finds ", name, " ", found, ", not ", *rank,
                      "; give one or the other");
    }
    *rank = found;
    return absl::OkStatus();
  };
  absl::Status status = take("key_rank", ranks->keys, &s.key_rank);
  if (status.ok()) status = take("value_rank", ranks->values, &s.value_rank);
  return status;
}

absl::StatusOr<LowRankShapes> MakeLowRankShapes(const IndexConfig& config) {
  LowRankShapes shapes;
  if (!config.subspace) return shapes;
  const SubspaceConfig& s = *config.subspace;
  const Geometry& g = config.geometry;
  const CalibrationOptions calibration = CalibrationOf(s);
  for (int layer = 0; layer < g.num_layers; ++layer) {
    std::vector<LowRankShape>& heads = shapes.emplace_back(g.num_kv_heads);
    for (LowRankShape& head : heads) head.options = OptionsOf(config);
    if (s.profile == nullptr) continue;
    auto bases = CalibrateLayer(*s.profile, g.rope, layer, calibration);
    if (!bases.ok()) return BadField("subspace.profile", "layer ", layer, ": ", WhatOf(bases.status()));
    for (int h = 0; h < g.num_kv_heads; ++h) {
      const Eigen::MatrixXd queries = GroupQueryMoment(*s.profile, layer, h);
      heads[h].query_moment =
          s.frame == KeyFrame::kPreRope ? queries : CarryMoment(queries, g.rope, 0, static_cast<double>(s.carried_to));
      heads[h].key_start = std::move(bases->keys[h]);
      heads[h].value_start = std::move(bases->values[h]);
    }
  }
  return shapes;
}

}  // namespace seine
