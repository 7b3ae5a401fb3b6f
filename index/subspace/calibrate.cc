#include "index/subspace/calibrate.h"

#include <algorithm>

#include "index/stop_status.h"
#include "profile/field_error.h"
#include "profile/moments.h"

namespace seine {

namespace {

using Eigen::MatrixXd;

// An error of one moment of `side`, keys or values, as the profile's that holds it.
absl::Status OfProfile(const absl::Status& status, absl::string_view side) {
  return FieldOf(status) == "moment" ? BadField("profile", "a moment of ", side, " ", WhatOf(status)) : status;
}

// The smallest that holds `energy` of each moment.
absl::StatusOr<int> LargestRank(const std::vector<MatrixXd>& moments, double energy, absl::string_view side) {
  int rank = 0;
  for (const MatrixXd& moment : moments) {
    if (absl::Status s = StopStatus(); !s.ok()) return s;
    const absl::StatusOr<int> needed = RankForEnergy(moment, energy);
    if (!needed.ok()) return OfProfile(needed.status(), side);
    rank = std::max(rank, *needed);
  }
  return rank;
}

// Bases of equal rank, one a moment. `rank_field` is the rank's name.
absl::StatusOr<std::vector<Basis>> BasesOf(const std::vector<MatrixXd>& moments, int rank, double energy,
                                           absl::string_view side, absl::string_view rank_field) {
  if (rank == 0) {
    const absl::StatusOr<int> needed = LargestRank(moments, energy, side);
    if (!needed.ok()) return needed.status();
    rank = *needed;
  }
  std::vector<Basis> bases;
  for (const MatrixXd& moment : moments) {
    if (absl::Status s = StopStatus(); !s.ok()) return s;
    absl::StatusOr<Basis> basis = BasisOfMoment(moment, rank);
    if (FieldOf(basis.status()) == "rank") return WithField(basis.status(), rank_field);
    if (!basis.ok()) return OfProfile(basis.status(), side);
    bases.push_back(*std::move(basis));
  }
  return bases;
}

// Returns a moment a head, of keys as a basis of the layer would hold them.
absl::StatusOr<std::vector<MatrixXd>> KeyMoments(const Profile& profile, const Rope& rope, int layer,
                                                 const CalibrationOptions& options) {
  if (layer < 0 || layer >= profile.num_layers()) {
    return BadField("layer", layer, " is not among the profile's ", profile.num_layers());
  }
  if (options.frame == KeyFrame::kPreRope && !rope.stated()) {
    return BadField("frame", "pre_rope needs the model's RoPE stated");
  }
  std::vector<MatrixXd> keys;
  for (int h = 0; h < profile.num_kv_heads; ++h) {
    if (absl::Status s = StopStatus(); !s.ok()) return s;
    MatrixXd moment = profile.layers[layer].k_moment[h];
    // A.3: the rows of every query head of the group below those of the keys, as many each.
    if (options.stack_queries)
      moment += profile.num_q_heads / profile.num_kv_heads * GroupQueryMoment(profile, layer, h);
    keys.push_back(options.frame == KeyFrame::kPreRope ? moment
                                                       : CarryMoment(moment, rope, options.begin, options.end));
  }
  return keys;
}

// Row i by position(i).
template <typename Turn, typename Position>
void TurnRows(const Rope& rope, int64_t count, float* rows, Turn turn, Position position) {
  const int dim = rope.head_dim();
  std::vector<double> row(dim);
  for (int64_t i = 0; i < count; ++i, rows += dim) {
    std::copy(rows, rows + dim, row.begin());
    turn(rope, position(i), row.data());
    for (int j = 0; j < dim; ++j) rows[j] = static_cast<float>(row[j]);
  }
}

}  // namespace

const char* Name(KeyFrame frame) { return frame == KeyFrame::kPreRope ? "pre_rope" : "post_rope"; }

absl::StatusOr<KeyFrame> KeyFrameOf(absl::string_view name) {
  for (const KeyFrame frame : {KeyFrame::kPostRope, KeyFrame::kPreRope}) {
    if (name == Name(frame)) return frame;
  }
  return BadField("frame", "\"", name, "\" is neither post_rope nor pre_rope");
}

absl::StatusOr<LayerBases> CalibrateLayer(const Profile& profile, const Rope& rope, int layer,
                                          const CalibrationOptions& options) {
  const auto keys = KeyMoments(profile, rope, layer, options);
  if (!keys.ok()) return keys.status();
  absl::StatusOr<std::vector<Basis>> key_bases = BasesOf(*keys, options.key_rank, options.energy, "keys", "key_rank");
  if (!key_bases.ok()) return key_bases.status();
  if (profile.layers[layer].v_moment.empty()) return BadField("profile", "has no moments of values");
  absl::StatusOr<std::vector<Basis>> value_bases =
      BasesOf(profile.layers[layer].v_moment, options.value_rank, options.energy, "values", "value_rank");
  if (!value_bases.ok()) return value_bases.status();
  return LayerBases{*std::move(key_bases), *std::move(value_bases)};
}

absl::StatusOr<std::vector<SubspaceRanks>> RanksForEnergy(const Profile& profile, const Rope& rope,
                                                          const LayerRopes& layer_ropes,
                                                          const CalibrationOptions& options) {
  std::vector<SubspaceRanks> ranks;
  for (int layer = 0; layer < profile.num_layers(); ++layer) {
    const auto moments = KeyMoments(profile, RopeOfLayer(rope, layer_ropes, layer), layer, options);
    if (!moments.ok()) return moments.status();
    const absl::StatusOr<int> keys = LargestRank(*moments, options.energy, "keys");
    if (!keys.ok()) return keys.status();
    const absl::StatusOr<int> values = LargestRank(profile.layers[layer].v_moment, options.energy, "values");
    if (!values.ok()) return values.status();
    ranks.push_back({*keys, *values});
  }
  return ranks;
}

void UndoRopeOfRows(const Rope& rope, int64_t first_position, int64_t count, float* rows) {
  TurnRows(rope, count, rows, UndoRope, [=](int64_t i) { return first_position + i; });
}

void ApplyRopeToRows(const Rope& rope, int64_t first_position, int64_t count, float* rows) {
  TurnRows(rope, count, rows, ApplyRope, [=](int64_t i) { return first_position + i; });
}

void UndoRopeOfRows(const Rope& rope, const int32_t* positions, int64_t count, float* rows) {
  TurnRows(rope, count, rows, UndoRope, [=](int64_t i) { return int64_t{positions[i]}; });
}

void ApplyRopeToRows(const Rope& rope, const int32_t* positions, int64_t count, float* rows) {
  TurnRows(rope, count, rows, ApplyRope, [=](int64_t i) { return int64_t{positions[i]}; });
}

}  // namespace seine
