#include "service/calls/convert/subspace.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/calls/convert/validate.h"
#include "service/calls/convert/wire_enum.h"
#include "service/fields/error.h"

namespace seine {
namespace {

static_assert(Shifted(v1::KEY_FRAME_POST_ROPE, KeyFrame::kPostRope) &&
              Shifted(v1::KEY_FRAME_PRE_ROPE, KeyFrame::kPreRope));

absl::StatusOr<std::vector<Basis>> HeadsFrom(const v1::Tensor& wire, const Geometry& g, const std::string& field) {
  std::vector<float> scratch;
  auto rows = FloatsView(wire, {g.num_kv_heads, g.head_dim, kAnyDim}, field, &scratch);
  if (!rows.ok()) return rows.status();
  if (wire.shape(2) > g.head_dim) return FieldError("SHAPE_MISMATCH", field + ".shape", "more columns than rows");
  std::vector<Basis> heads(g.num_kv_heads);
  const float* row = *rows;
  for (Basis& basis : heads) {
    basis.head_dim = g.head_dim;
    basis.rank = static_cast<int>(wire.shape(2));
    basis.u.assign(static_cast<size_t>(g.head_dim) * basis.stride(), 0.0f);
    for (int i = 0; i < g.head_dim; ++i, row += basis.rank) {
      std::copy_n(row, basis.rank, &basis.u[static_cast<size_t>(i) * basis.stride()]);
    }
  }
  return heads;
}

void SetHeads(const std::vector<Basis>& heads, v1::Tensor* out) {
  out->set_dtype(v1::D_TYPE_FLOAT32);
  for (const int64_t dim : {static_cast<int64_t>(heads.size()), int64_t{heads[0].head_dim}, int64_t{heads[0].rank}}) {
    out->add_shape(dim);
  }
  for (const Basis& basis : heads) {
    for (int i = 0; i < basis.head_dim; ++i) {
      out->mutable_raw()->append(reinterpret_cast<const char*>(&basis.u[static_cast<size_t>(i) * basis.stride()]),
                                 basis.rank * sizeof(float));
    }
  }
}

// What only the wire can tell: whether a setting was given that another one leaves without effect.
absl::Status CheckGiven(const v1::SubspaceSettings& wire, const std::string& field) {
  const auto idle = [&](const char* name, const char* why) {
    return FieldError("CONFLICT", absl::StrCat(field, ".", name), why);
  };
  if (wire.absolute_rate() && wire.has_max_gain()) return idle("max_gain", "given, but absolute_rate is not bounded");
  if (wire.has_prompt_learning_rate() && wire.prompt_pool() == 0) {
    return idle("prompt_learning_rate", "given, but prompt_pool is 0: no prompt makes a step of its own");
  }
  if (!wire.has_full_rank() || wire.full_rank() > 0) return absl::OkStatus();
  if (wire.full_rank_queries() > 0) return idle("full_rank_queries", "given, but full_rank keeps no token");
  if (wire.has_full_rank_pool()) return idle("full_rank_pool", "given, but full_rank keeps no token");
  return absl::OkStatus();
}

void ToProto(const SubspaceInfo::Learning& learning, v1::SubspaceLearning* out) {
  out->set_rows(learning.rows);
  out->set_updates(learning.updates);
  out->set_residual(learning.residual);
  out->set_last_residual(learning.last_residual);
}

}  // namespace

absl::Status SubspaceFrom(const v1::SubspaceSettings& wire, const std::string& field, Profiles* profiles,
                          SubspaceConfig* subspace) {
  subspace->key_rank = wire.key_rank();
  subspace->value_rank = wire.value_rank();
  if (auto s = FromWire(wire.frame(), v1::KeyFrame_IsValid, field + ".frame", &subspace->frame); !s.ok()) return s;
  if (auto s = CheckGiven(wire, field); !s.ok()) return s;
  subspace->key_ranks.assign(wire.key_ranks().begin(), wire.key_ranks().end());
  subspace->value_ranks.assign(wire.value_ranks().begin(), wire.value_ranks().end());
  if (wire.has_interval()) subspace->oja.interval = wire.interval();
  if (wire.absolute_rate()) subspace->oja.relative = false, subspace->oja.learning_rate = kPaperLearningRate;
  if (wire.has_learning_rate()) subspace->oja.learning_rate = wire.learning_rate();
  if (wire.has_max_gain()) subspace->oja.max_gain = wire.max_gain();
  if (wire.has_error_threshold()) subspace->oja.error_threshold = wire.error_threshold();
  if (wire.has_min_spacing()) subspace->oja.min_spacing = wire.min_spacing();
  if (wire.has_prompt_pool()) subspace->prompt.pool = wire.prompt_pool();
  if (wire.has_prompt_learning_rate()) subspace->prompt.learning_rate = wire.prompt_learning_rate();
  if (wire.has_full_rank()) subspace->full_rank = wire.full_rank();
  if (wire.has_full_rank_queries()) subspace->choice.queries = wire.full_rank_queries();
  if (wire.has_full_rank_pool()) subspace->choice.pool = wire.full_rank_pool();
  if (wire.has_version_tokens()) subspace->version_tokens = wire.version_tokens();
  if (wire.has_energy()) subspace->energy = wire.energy();
  subspace->energy_by_layer = wire.energy_by_layer();
  subspace->stack_queries = wire.stack_queries();
  if (wire.has_carried_to()) subspace->carried_to = wire.carried_to();
  subspace->profile_name = wire.profile();
  if (wire.profile().empty()) return absl::OkStatus();
  auto profile = profiles->Find(wire.profile(), field + ".profile");
  if (!profile.ok()) return profile.status();
  subspace->profile = *std::move(profile);
  return absl::OkStatus();
}

void ToProto(const SubspaceConfig& subspace, v1::SubspaceSettings* out) {
  out->set_key_rank(subspace.key_rank);
  out->set_value_rank(subspace.value_rank);
  out->set_frame(ToProto(subspace.frame));
  out->set_interval(subspace.oja.interval);
  out->set_learning_rate(subspace.oja.learning_rate);
  out->set_absolute_rate(!subspace.oja.relative);
  if (subspace.oja.relative) out->set_max_gain(subspace.oja.max_gain);
  out->set_error_threshold(subspace.oja.error_threshold);
  out->set_min_spacing(subspace.oja.min_spacing);
  out->set_prompt_pool(subspace.prompt.pool);
  if (subspace.prompt.pool > 0) out->set_prompt_learning_rate(subspace.prompt.learning_rate);
  out->set_full_rank(subspace.full_rank);
  out->set_full_rank_queries(QueriesKept(subspace));
  if (subspace.full_rank > 0) out->set_full_rank_pool(subspace.choice.pool);
  out->set_version_tokens(subspace.version_tokens);
  out->set_profile(subspace.profile_name);
  out->set_carried_to(subspace.carried_to);
  if (subspace.energy) out->set_energy(*subspace.energy);
  out->set_energy_by_layer(subspace.energy_by_layer);
  out->set_stack_queries(subspace.stack_queries);
  for (const int rank : subspace.key_ranks) out->add_key_ranks(rank);
  for (const int rank : subspace.value_ranks) out->add_value_ranks(rank);
}

absl::StatusOr<LayerBases> BasesFrom(const v1::LayerBases& wire, const Geometry& geometry, const std::string& field) {
  auto keys = HeadsFrom(wire.keys(), geometry, field + ".keys");
  if (!keys.ok()) return keys.status();
  auto values = HeadsFrom(wire.values(), geometry, field + ".values");
  if (!values.ok()) return values.status();
  return LayerBases{*std::move(keys), *std::move(values)};
}

void ToProto(const LayerBases& bases, v1::LayerBases* out) {
  SetHeads(bases.keys, out->mutable_keys());
  SetHeads(bases.values, out->mutable_values());
}

v1::KeyFrame ToProto(KeyFrame frame) { return ToWire<v1::KeyFrame>(frame); }

void ToProto(const SubspaceInfo& info, v1::SubspaceMetrics* out) {
  out->set_low_rank_tokens(info.low_rank_tokens);
  out->set_full_rank_tokens(info.full_rank_tokens);
  out->set_code_bytes(info.code_bytes);
  out->set_full_rank_bytes(info.full_rank_bytes);
  out->set_basis_bytes(info.basis_bytes);
  out->set_versions(info.versions);
  ToProto(info.keys, out->mutable_keys());
  ToProto(info.values, out->mutable_values());
  out->set_angle(info.angle);
  out->set_overlap(info.overlap);
  out->set_blocks_without_queries(info.blocks_without_queries);
}

}  // namespace seine
