// Descriptions of servers, indexes and heads, from wire messages: a part of convert.h.
#include <utility>

#include "client/convert/convert.h"
#include "client/convert/eviction.h"
#include "client/convert/subspace.h"

namespace seine::client {
namespace {

template <typename Proto, typename Value>
void CopyIf(bool present, Proto value, std::optional<Value>* out) {
  if (present) *out = static_cast<Value>(value);
}

}  // namespace

IndexInfo FromProto(const v1::IndexInfo& info) {
  IndexInfo out;
  out.num_sequences = info.num_sequences();
  out.code_bytes = info.code_bytes();
  out.store_bytes = info.store_bytes();
  out.query_bytes = info.query_bytes();
  out.reencoded_layers = info.reencoded_layers();
  out.reencoded_keys = info.reencoded_keys();
  out.reencoded_unfit_layers = info.reencoded_unfit_layers();
  out.queries_not_kept = info.queries_not_kept();
  out.evictions = info.evictions();
  out.evicted_tokens = info.evicted_tokens();
  if (info.spec().has_eviction()) out.spec.eviction = FromProto(info.spec().eviction());
  if (info.spec().has_subspace()) out.spec.subspace = FromProto(info.spec().subspace());
  const v1::IndexSpec& in = info.spec();
  IndexSpec& spec = out.spec;
  spec.name = in.name();
  spec.geometry = {in.geometry().num_layers(), in.geometry().num_q_heads(), in.geometry().num_kv_heads(),
                   in.geometry().head_dim(), static_cast<DType>(in.geometry().dtype())};
  spec.model = in.model();
  const v1::Rope& rope = in.geometry().rope();
  spec.rope = {static_cast<RopeStyle>(rope.style()), {rope.inv_freq().begin(), rope.inv_freq().end()}, ""};
  CopyIf(in.zones().has_sink(), in.zones().sink(), &spec.sink);
  CopyIf(in.zones().has_local(), in.zones().local(), &spec.local);
  CopyIf(in.zones().has_update_buffer(), in.zones().update_buffer(), &spec.update_buffer);
  CopyIf(in.zones().has_dense_threshold(), in.zones().dense_threshold(), &spec.dense_threshold);
  spec.codec = in.codec().name();
  CopyIf(in.codec().has_seed(), in.codec().seed(), &spec.seed);
  spec.centre = static_cast<Centre>(in.codec().centre());
  CopyIf(in.codec().has_centre_window(), in.codec().centre_window(), &spec.centre_window);
  spec.profile = in.codec().profile();
  CopyIf(in.codec().has_horizon(), in.codec().horizon(), &spec.horizon);
  CopyIf(in.codec().has_coarse_bits(), in.codec().coarse_bits(), &spec.coarse_bits);
  CopyIf(in.codec().has_total_bits(), in.codec().total_bits(), &spec.total_bits);
  const v1::RetrievalSettings& retrieval = in.retrieval();
  CopyIf(retrieval.has_top_k(), retrieval.top_k(), &spec.top_k);
  CopyIf(retrieval.has_beta(), retrieval.beta(), &spec.beta);
  CopyIf(retrieval.has_refine(), retrieval.refine(), &spec.refine);
  spec.coarse = static_cast<Coarse>(retrieval.coarse());
  CopyIf(retrieval.has_rho(), retrieval.rho(), &spec.rho);
  spec.scope = static_cast<Scope>(retrieval.scope());
  spec.gqa_reduce = static_cast<GqaReduce>(retrieval.gqa_reduce());
  CopyIf(retrieval.has_softmax_scale(), retrieval.softmax_scale(), &spec.softmax_scale);
  spec.kv_store = static_cast<KvStore>(in.kv_store());
  spec.memory_limit_bytes = in.memory_limit_bytes();
  return out;
}

ServerInfo FromProto(const v1::GetServerInfoResponse& info) {
  std::vector<PassedOverFile> passed_over;
  for (const auto& file : info.passed_over()) {
    passed_over.push_back({file.index(), file.file(), file.bytes(), file.reason()});
  }
  return {info.version(),
          info.backend(),
          info.simd_target(),
          info.num_threads(),
          info.memory_limit_bytes(),
          info.memory_bytes(),
          info.num_indexes(),
          info.num_sequences(),
          info.uptime_seconds(),
          info.queue_capacity(),
          info.max_message_bytes(),
          {info.profiles().begin(), info.profiles().end()},
          info.device_memory_limit_bytes(),
          info.device_memory_bytes(),
          info.instance(),
          info.draining(),
          std::move(passed_over)};
}

absl::StatusOr<HeadInfo> FromProto(const v1::DescribeHeadResponse& info) {
  HeadInfo head = {info.num_tokens(),
                   info.zone_begin(),
                   info.zone_end(),
                   info.num_segments(),
                   info.code_bytes(),
                   info.store_bytes(),
                   info.bytes_per_key(),
                   info.codec(),
                   info.coarse(),
                   info.centre(),
                   info.coarse_bytes(),
                   info.fine_bytes(),
                   info.profile(),
                   {},
                   {},
                   info.coarse_bits(),
                   info.total_bits(),
                   {},
                   info.query_moments(),
                   {}};
  CopyIf(info.has_predicted_loss(), info.predicted_loss(), &head.predicted_loss);
  head.num_retained = info.num_retained();
  if (info.has_subspace()) head.subspace = FromProto(info.subspace());
  CopyIf(info.has_position(), info.position(), &head.position);
  CopyIf(info.has_horizon(), info.horizon(), &head.horizon);
  if (!info.has_lambda()) return head;
  const int64_t dims = info.lambda().shape_size() == 1 ? info.lambda().shape(0) : -1;
  absl::Status status = ReadFloats("lambda", info.lambda(), dims, &head.lambda);
  if (!status.ok()) return status;
  return head;
}

}  // namespace seine::client
