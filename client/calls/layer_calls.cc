// Calls on what a layer keeps: eviction and subspaces.
#include <limits>
#include <utility>

#include "client/client.h"
#include "client/convert/convert.h"
#include "client/convert/eviction.h"
#include "client/convert/subspace.h"

namespace seine::client {

absl::StatusOr<Evicted> Client::Evict(const EvictRequest& in) {
  v1::EvictRequest request;
  ToProto(in.sequence, request.mutable_handle());
  request.set_layer(in.layer);
  *request.mutable_scorer() = in.scorer;
  *request.mutable_budget() = in.budget;
  *request.mutable_keep() = in.keep;
  request.set_dry_run(in.dry_run);
  request.set_report(static_cast<v1::RetainedReport>(in.report));
  absl::Status status = ToProto(in.given, request.mutable_given());
  v1::EvictResponse response;
  if (status.ok()) status = Call(request, &response);
  Evicted out;
  if (status.ok()) status = FromProto(response, &out);
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<Retained> Client::GetRetained(const Sequence& sequence, int layer) {
  EvictRequest request = {.sequence = sequence, .layer = layer};
  request.budget.set_tokens(std::numeric_limits<int32_t>::max());
  request.dry_run = true;
  request.report = RetainedReport::kKept;
  absl::StatusOr<Evicted> answer = Evict(request);
  if (!answer.ok()) return answer.status();
  return std::move(answer->retained);
}

absl::StatusOr<std::vector<HeadScores>> Client::Score(const Sequence& sequence, int layer,
                                                      const v1::ScorerSettings& scorer, const ScorerInputs& given) {
  v1::ScoreRequest request;
  ToProto(sequence, request.mutable_handle());
  request.set_layer(layer);
  *request.mutable_scorer() = scorer;
  absl::Status status = ToProto(given, request.mutable_given());
  v1::ScoreResponse response;
  if (status.ok()) status = Call(request, &response);
  std::vector<HeadScores> out;
  if (status.ok()) status = FromProto(response, &out);
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<std::vector<HeadDiagnosis>> Client::Diagnose(const DiagnoseRequest& in) {
  v1::DiagnoseRequest request;
  ToProto(in.sequence, request.mutable_handle());
  request.set_layer(in.layer);
  for (const v1::ScorerSettings& scorer : in.scorers) *request.add_scorers() = scorer;
  *request.mutable_budget() = in.budget;
  if (in.window) request.set_window(*in.window);
  absl::Status status = ToProto(in.given, request.mutable_given());
  v1::DiagnoseResponse response;
  if (status.ok()) status = Call(request, &response);
  std::vector<HeadDiagnosis> out;
  if (status.ok()) status = FromProto(response, &out);
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<LayerSubspace> Client::GetBasis(const Sequence& sequence, int layer) {
  v1::GetBasisRequest request;
  ToProto(sequence, request.mutable_handle());
  request.set_layer(layer);
  v1::GetBasisResponse response;
  absl::Status status = Call(request, &response);
  LayerSubspace out;
  if (status.ok()) status = FromProto(response.bases(), response.frame(), &out.bases);
  if (!status.ok()) return status;
  for (const v1::SubspaceMetrics& head : response.heads()) out.heads.push_back(FromProto(head));
  return out;
}

absl::Status Client::LoadBasis(const Sequence& sequence, int layer, const LayerBases& bases) {
  v1::LoadBasisRequest request;
  ToProto(sequence, request.mutable_handle());
  request.set_layer(layer);
  request.set_frame(static_cast<v1::KeyFrame>(bases.frame));
  absl::Status status = ToProto(bases, request.mutable_bases());
  v1::LoadBasisResponse response;
  if (status.ok()) status = Call(request, &response);
  return status;
}

absl::StatusOr<LayerBases> Client::CalibrateBasis(const CalibrateRequest& in) {
  v1::CalibrateBasisRequest request;
  request.set_index(in.index);
  request.set_layer(in.layer);
  request.set_profile(in.profile);
  request.set_key_rank(in.key_rank);
  request.set_value_rank(in.value_rank);
  request.set_energy(in.energy);
  request.set_carried_to(in.carried_to);
  request.set_stack_queries(in.stack_queries);
  v1::CalibrateBasisResponse response;
  absl::Status status = Call(request, &response);
  LayerBases out;
  if (status.ok()) status = FromProto(response.bases(), response.frame(), &out);
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<Reconstructed> Client::Reconstruct(const Sequence& sequence, int layer, int kv_head, int64_t begin,
                                                  int64_t end) {
  v1::ReconstructRequest request;
  ToProto(sequence, request.mutable_handle());
  request.set_layer(layer);
  request.set_kv_head(kv_head);
  request.set_begin(begin);
  request.set_end(end);
  v1::ReconstructResponse response;
  absl::Status status = Call(request, &response);
  Reconstructed out;
  if (status.ok()) status = ReadVector(response.positions(), &out.positions);
  if (!status.ok()) return status;
  v1::GatherResponse rows;  // the same two tensors
  rows.mutable_keys()->Swap(response.mutable_keys());
  rows.mutable_values()->Swap(response.mutable_values());
  status = FromProto(rows, static_cast<int64_t>(out.positions.size()), &out.rows);
  if (!status.ok()) return status;
  return out;
}

}  // namespace seine::client
