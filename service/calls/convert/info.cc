// Descriptions of indexes, sequences, heads and profiles as wire messages: a part of convert.h.
#include "index/index.h"
#include "profile/moments.h"
#include "profile/profile.h"
#include "service/calls/convert/convert.h"
#include "service/calls/convert/subspace.h"

namespace seine {
void ToProto(const Index& index, v1::IndexInfo* info) {
  const IndexStats stats = index.stats();
  ToProto(index.config(), info->mutable_spec());
  info->set_num_sequences(stats.num_sequences);
  info->set_code_bytes(stats.code_bytes);
  info->set_store_bytes(stats.store_bytes);
  info->set_query_bytes(stats.query_bytes);
  info->set_reencoded_layers(stats.reencoded_layers);
  info->set_reencoded_keys(stats.reencoded_keys);
  info->set_reencoded_unfit_layers(stats.reencoded_unfit_layers);
  info->set_dropped_queries(stats.dropped_queries);
  info->set_evictions(stats.evictions);
  info->set_evicted_tokens(stats.evicted_tokens);
  v1::GateInfo* const gate = info->mutable_gate();
  gate->set_checks(stats.gate_checks);
  if (stats.gate_checks > 0) gate->set_mean_lost(stats.gate_lost / static_cast<double>(stats.gate_checks));
  gate->set_exact_answers(stats.gate_answers);
  for (const auto& [layer, lost] : stats.gate_layers) {
    v1::GateLayer* const of_layer = gate->add_layers();
    of_layer->set_layer(layer);
    of_layer->set_lost(lost);
  }
}

void ToProto(const SequenceInfo& sequence, const std::string& index_name, v1::SequenceInfo* info) {
  info->mutable_handle()->set_index(index_name);
  info->mutable_handle()->set_id(sequence.handle.id);
  info->mutable_handle()->set_generation(sequence.handle.generation);
  info->mutable_layer_tokens()->Assign(sequence.layer_tokens.begin(), sequence.layer_tokens.end());
  info->set_code_bytes(sequence.code_bytes);
  info->set_store_bytes(sequence.store_bytes);
  info->set_on_disk(sequence.on_disk);
}

void ToProto(const HeadInfo& head, v1::DescribeHeadResponse* out) {
  out->set_num_tokens(head.num_tokens);
  out->set_num_retained(head.num_retained);
  out->set_zone_begin(head.zone_begin);
  out->set_zone_end(head.zone_end);
  out->set_num_segments(head.num_segments);
  out->set_code_bytes(head.code_bytes);
  out->set_store_bytes(head.store_bytes);
  out->set_bytes_per_key(head.bytes_per_key);
  out->set_codec(head.codec);
  out->set_coarse(head.coarse);
  out->set_centre(head.centre);
  out->set_coarse_bytes(head.layout.coarse_bytes);
  out->set_fine_bytes(head.layout.fine_bytes);
  out->set_profile(head.profile);
  out->set_coarse_bits(head.coarse_bits);
  out->set_total_bits(head.total_bits);
  if (head.horizon > 0) out->set_horizon(head.horizon);
  if (head.position >= 0) out->set_position(head.position);
  out->set_query_moments(head.query_moments);
  if (head.predicted_loss) out->set_predicted_loss(*head.predicted_loss);
  if (head.subspace) ToProto(*head.subspace, out->mutable_subspace());
  if (head.lambda.empty()) return;
  SetTensor(v1::D_TYPE_FLOAT32, {static_cast<int64_t>(head.lambda.size())}, out->mutable_lambda());
  out->mutable_lambda()->set_raw(head.lambda.data(), head.lambda.size() * sizeof(float));
}

void ToProto(const Profile& profile, v1::MeasureProfileResponse* out) {
  const LayerProfile& layer = profile.layers[0];
  out->set_key_tokens(profile.key_tokens);
  out->set_query_tokens(profile.query_tokens);
  const auto set = [out](const auto& heads, auto mutable_tensor) {
    if (heads.empty()) return;  // values that are not kept
    const std::vector<double> values = Flatten(heads);
    const std::vector<float> singles(values.begin(), values.end());
    const auto count = static_cast<int64_t>(heads.size());
    v1::Tensor* tensor = (out->*mutable_tensor)();
    SetTensor(v1::D_TYPE_FLOAT32, {count, static_cast<int64_t>(singles.size()) / count}, tensor);
    tensor->set_raw(singles.data(), singles.size() * sizeof(float));
  };
  using Response = v1::MeasureProfileResponse;
  set(layer.q_mean, &Response::mutable_q_mean);
  set(layer.q_moment, &Response::mutable_q_moment);
  set(layer.k_mean, &Response::mutable_k_mean);
  set(layer.k_moment, &Response::mutable_k_moment);
  set(layer.k_residual, &Response::mutable_k_residual);
  set(layer.v_mean, &Response::mutable_v_mean);
  set(layer.v_moment, &Response::mutable_v_moment);
}

}  // namespace seine
