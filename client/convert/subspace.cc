#include "client/convert/subspace.h"

#include "absl/strings/str_cat.h"
#include "client/convert/eviction.h"

namespace seine::client {
namespace {

SubspaceMetrics::Learning FromProto(const v1::SubspaceLearning& in) {
  return {in.rows(), in.updates(), in.residual(), in.last_residual()};
}

absl::Status SetBases(const char* name, const LayerBases& bases, int rank, const std::vector<float>& numbers,
                      v1::Tensor* out) {
  const int64_t shape[] = {bases.num_kv_heads, bases.head_dim, rank};
  if (static_cast<int64_t>(numbers.size()) != shape[0] * shape[1] * shape[2]) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", numbers.size(), " numbers for [", shape[0], ", ", shape[1], ", ", shape[2], "]"));
  }
  out->set_dtype(v1::D_TYPE_FLOAT32);
  for (const int64_t dim : shape) out->add_shape(dim);
  out->set_raw(numbers.data(), numbers.size() * sizeof(float));
  return absl::OkStatus();
}

}  // namespace

void ToProto(const Subspace& subspace, v1::SubspaceSettings* out) {
  out->set_key_rank(subspace.key_rank);
  out->set_value_rank(subspace.value_rank);
  out->set_frame(static_cast<v1::KeyFrame>(subspace.frame));
  for (const int rank : subspace.key_ranks) out->add_key_ranks(rank);
  for (const int rank : subspace.value_ranks) out->add_value_ranks(rank);
  out->set_energy_by_layer(subspace.energy_by_layer);
  out->set_absolute_rate(subspace.absolute_rate);
  out->set_stack_queries(subspace.stack_queries);
  if (subspace.prompt_pool) out->set_prompt_pool(*subspace.prompt_pool);
  if (subspace.prompt_learning_rate) out->set_prompt_learning_rate(*subspace.prompt_learning_rate);
  if (subspace.full_rank_queries) out->set_full_rank_queries(*subspace.full_rank_queries);
  if (subspace.full_rank_pool) out->set_full_rank_pool(*subspace.full_rank_pool);
  if (subspace.interval) out->set_interval(*subspace.interval);
  if (subspace.learning_rate) out->set_learning_rate(*subspace.learning_rate);
  if (subspace.max_gain) out->set_max_gain(*subspace.max_gain);
  if (subspace.error_threshold) out->set_error_threshold(*subspace.error_threshold);
  if (subspace.min_spacing) out->set_min_spacing(*subspace.min_spacing);
  if (subspace.full_rank) out->set_full_rank(*subspace.full_rank);
  if (subspace.version_tokens) out->set_version_tokens(*subspace.version_tokens);
  out->set_profile(subspace.profile);
  if (subspace.carried_to) out->set_carried_to(*subspace.carried_to);
  if (subspace.energy) out->set_energy(*subspace.energy);
}

Subspace FromProto(const v1::SubspaceSettings& in) {
  Subspace out;
  out.key_rank = in.key_rank();
  out.value_rank = in.value_rank();
  out.frame = static_cast<KeyFrame>(in.frame());
  out.key_ranks.assign(in.key_ranks().begin(), in.key_ranks().end());
  out.value_ranks.assign(in.value_ranks().begin(), in.value_ranks().end());
  out.energy_by_layer = in.energy_by_layer();
  out.absolute_rate = in.absolute_rate();
  out.stack_queries = in.stack_queries();
  if (in.has_prompt_pool()) out.prompt_pool = in.prompt_pool();
  if (in.has_prompt_learning_rate()) out.prompt_learning_rate = in.prompt_learning_rate();
  if (in.has_full_rank_queries()) out.full_rank_queries = in.full_rank_queries();
  if (in.has_full_rank_pool()) out.full_rank_pool = in.full_rank_pool();
  if (in.has_interval()) out.interval = in.interval();
  if (in.has_learning_rate()) out.learning_rate = in.learning_rate();
  if (in.has_max_gain()) out.max_gain = in.max_gain();
  if (in.has_error_threshold()) out.error_threshold = in.error_threshold();
  if (in.has_min_spacing()) out.min_spacing = in.min_spacing();
  if (in.has_full_rank()) out.full_rank = in.full_rank();
  if (in.has_version_tokens()) out.version_tokens = in.version_tokens();
  out.profile = in.profile();
  if (in.has_carried_to()) out.carried_to = in.carried_to();
  if (in.has_energy()) out.energy = in.energy();
  return out;
}

SubspaceMetrics FromProto(const v1::SubspaceMetrics& in) {
  SubspaceMetrics out;
  out.low_rank_tokens = in.low_rank_tokens();
  out.full_rank_tokens = in.full_rank_tokens();
  out.code_bytes = in.code_bytes();
  out.full_rank_bytes = in.full_rank_bytes();
  out.basis_bytes = in.basis_bytes();
  out.versions = in.versions();
  out.keys = FromProto(in.keys());
  out.values = FromProto(in.values());
  out.angle = in.angle();
  out.overlap = in.overlap();
  out.blocks_without_queries = in.blocks_without_queries();
  return out;
}

absl::Status ToProto(const LayerBases& bases, v1::LayerBases* out) {
  absl::Status status = SetBases("keys", bases, bases.key_rank, bases.keys, out->mutable_keys());
  status.Update(SetBases("values", bases, bases.value_rank, bases.values, out->mutable_values()));
  return status;
}

absl::Status FromProto(const v1::LayerBases& in, v1::KeyFrame frame, LayerBases* out) {
  absl::Status status = ReadVector(in.keys(), &out->keys);
  status.Update(ReadVector(in.values(), &out->values));
  if (status.ok() && (in.keys().shape_size() != 3 || in.values().shape_size() != 3)) {
    status = absl::InternalError("the server's answer is malformed: bases are not of three dimensions");
  }
  if (!status.ok()) return status;
  out->frame = static_cast<KeyFrame>(frame);
  out->num_kv_heads = static_cast<int>(in.keys().shape(0));
  out->head_dim = static_cast<int>(in.keys().shape(1));
  out->key_rank = static_cast<int>(in.keys().shape(2));
  out->value_rank = static_cast<int>(in.values().shape(2));
  return absl::OkStatus();
}

}  // namespace seine::client
