// The calls of client.h, each made of its request and answer, but for those on what a layer keeps (layer_calls.cc).
#include <utility>

#include "client/client.h"
#include "client/convert/convert.h"
#include "client/convert/eviction.h"
#include "google/protobuf/arena.h"
#include "profile/profile.h"

namespace seine::client {
namespace {

// Sends a request that has a selector and items, and reads a response that has an answer an item.
template <typename Result, typename Response, typename Request>
absl::StatusOr<Result> Answered(Client* client, absl::Span<const RetrieveItem> items, const v1::Selector& selector,
                                Request* request, google::protobuf::Arena* arena) {
  auto* response = google::protobuf::Arena::CreateMessage<Response>(arena);
  *request->mutable_selector() = selector;
  absl::Status status;
  for (const RetrieveItem& item : items) status.Update(ToProto(item, request->add_items()));
  if (!status.ok()) return status;
  status = client->Call(*request, response);
  if (!status.ok()) return status;
  Result out;
  out.server_us = response->server_us();
  out.answers.resize(response->answers_size());
  for (int i = 0; i < response->answers_size(); ++i) {
    status = FromProto(response->answers(i), &out.answers[i]);
    if (!status.ok()) return status;
  }
  return out;
}

}  // namespace

absl::StatusOr<v1::GetServerInfoResponse> Client::GetServerInfo() {
  v1::GetServerInfoResponse response;
  const absl::Status status = Call(v1::GetServerInfoRequest(), &response);
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<HeadInfo> Client::DescribeHead(const Sequence& sequence, int layer, int kv_head) {
  v1::DescribeHeadRequest request;
  ToProto(sequence, request.mutable_handle());
  request.set_layer(layer);
  request.set_kv_head(kv_head);
  v1::DescribeHeadResponse response;
  const absl::Status status = Call(request, &response);
  if (!status.ok()) return status;
  return FromProto(response);
}

absl::StatusOr<Profile> Client::MeasureProfile(absl::Span<const Sequence> sequences, int layer) {
  v1::MeasureProfileRequest request;
  for (const Sequence& sequence : sequences) ToProto(sequence, request.add_sequences());
  request.set_layer(layer);
  v1::MeasureProfileResponse response;
  const absl::Status status = Call(request, &response);
  if (!status.ok()) return status;
  return FromProto(response);
}

absl::StatusOr<v1::IndexInfo> Client::CreateIndex(const v1::IndexSpec& spec) {
  v1::CreateIndexRequest request;
  *request.mutable_spec() = spec;
  v1::CreateIndexResponse response;
  const absl::Status status = Call(request, &response);
  if (!status.ok()) return status;
  return std::move(*response.mutable_index());
}

absl::StatusOr<v1::IndexInfo> Client::GetIndex(const std::string& name) {
  v1::GetIndexRequest request;
  request.set_name(name);
  v1::GetIndexResponse response;
  const absl::Status status = Call(request, &response);
  if (!status.ok()) return status;
  return std::move(*response.mutable_index());
}

absl::StatusOr<std::vector<v1::IndexInfo>> Client::ListIndexes() {
  v1::ListIndexesResponse response;
  const absl::Status status = Call(v1::ListIndexesRequest(), &response);
  if (!status.ok()) return status;
  return std::vector<v1::IndexInfo>(response.indexes().begin(), response.indexes().end());
}

absl::Status Client::DeleteIndex(const std::string& name) {
  v1::DeleteIndexRequest request;
  request.set_name(name);
  v1::DeleteIndexResponse response;
  return Call(request, &response);
}

absl::StatusOr<Sequence> Client::CreateSequence(const std::string& index, const std::string& id) {
  v1::CreateSequenceRequest request;
  request.set_index(index);
  request.set_id(id);
  v1::CreateSequenceResponse response;
  const absl::Status status = Call(request, &response);
  if (!status.ok()) return status;
  return FromProto(response.handle());
}

absl::StatusOr<SequenceInfo> Client::GetSequence(const Sequence& sequence) {
  v1::GetSequenceRequest request;
  ToProto(sequence, request.mutable_handle());
  v1::GetSequenceResponse response;
  const absl::Status status = Call(request, &response);
  if (!status.ok()) return status;
  return FromProto(response.sequence());
}

absl::StatusOr<std::vector<SequenceInfo>> Client::ListSequences(const std::string& index) {
  constexpr int kPage = 1000;
  v1::ListSequencesRequest request;
  request.set_index(index);
  request.set_page_size(kPage);
  v1::ListSequencesResponse response;
  std::vector<SequenceInfo> out;
  do {
    const absl::Status status = Call(request, &response);
    if (!status.ok()) return status;
    for (const v1::SequenceInfo& info : response.sequences()) out.push_back(FromProto(info));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return out;
}

absl::Status Client::DeleteSequence(const Sequence& sequence) {
  v1::DeleteSequenceRequest request;
  ToProto(sequence, request.mutable_handle());
  v1::DeleteSequenceResponse response;
  return Call(request, &response);
}

absl::StatusOr<Sequence> Client::ForkSequence(const Sequence& source, const std::string& new_id,
                                              std::optional<int64_t> position) {
  v1::ForkSequenceRequest request;
  ToProto(source, request.mutable_source());
  request.set_new_id(new_id);
  if (position) request.set_position(*position);
  v1::ForkSequenceResponse response;
  const absl::Status status = Call(request, &response);
  if (!status.ok()) return status;
  return FromProto(response.handle());
}

absl::StatusOr<SequenceInfo> Client::TruncateSequence(const Sequence& sequence, int64_t position) {
  v1::TruncateSequenceRequest request;
  ToProto(sequence, request.mutable_handle());
  request.set_position(position);
  v1::TruncateSequenceResponse response;
  const absl::Status status = Call(request, &response);
  if (!status.ok()) return status;
  return FromProto(response.sequence());
}

absl::StatusOr<SnapshotResult> Client::Snapshot(const Sequence& sequence, const std::string& file,
                                                const SnapshotParams& params) {
  v1::SnapshotRequest request;
  ToProto(sequence, request.mutable_handle());
  request.set_file(file);
  request.set_scope(static_cast<v1::SnapshotScope>(params.scope));
  request.set_base(params.base);
  request.set_keep_seconds(params.keep_seconds);
  v1::SnapshotResponse response;
  const absl::Status status = Call(request, &response);
  if (!status.ok()) return status;
  return SnapshotFrom(response);
}

absl::StatusOr<SnapshotResult> Client::Restore(const std::string& index, const std::string& file,
                                               const RestoreParams& params) {
  v1::RestoreRequest request;
  request.set_index(index);
  request.set_file(file);
  request.set_id(params.id);
  request.set_generation(params.generation);
  request.set_base(params.base);
  request.set_hold_seconds(params.hold_seconds);
  v1::RestoreResponse response;
  const absl::Status status = Call(request, &response);
  if (!status.ok()) return status;
  return SnapshotFrom(response);
}

absl::StatusOr<int64_t> Client::Append(const AppendItem& item, Retained* retained) {
  google::protobuf::Arena arena;
  auto* request = google::protobuf::Arena::CreateMessage<v1::AppendRequest>(&arena);
  absl::Status status = ToProto(item, request->mutable_item());
  if (!status.ok()) return status;
  v1::AppendResponse response;
  status = Call(*request, &response);
  if (status.ok() && retained != nullptr) status = FromProto(response.retained(), retained);
  if (!status.ok()) return status;
  return response.num_tokens();
}

absl::StatusOr<RetrieveResult> Client::Retrieve(absl::Span<const RetrieveItem> items, const v1::Selector& selector) {
  google::protobuf::Arena arena;
  auto* request = google::protobuf::Arena::CreateMessage<v1::RetrieveRequest>(&arena);
  return Answered<RetrieveResult, v1::RetrieveResponse>(this, items, selector, request, &arena);
}

absl::StatusOr<AttendResult> Client::Attend(absl::Span<const RetrieveItem> items, const v1::Selector& selector,
                                            const v1::Attention& attention) {
  google::protobuf::Arena arena;
  auto* request = google::protobuf::Arena::CreateMessage<v1::AttendRequest>(&arena);
  *request->mutable_attention() = attention;
  return Answered<AttendResult, v1::AttendResponse>(this, items, selector, request, &arena);
}

absl::StatusOr<Gathered> Client::Gather(const Sequence& sequence, int layer, int kv_head,
                                        absl::Span<const int32_t> positions, bool keys, bool values) {
  v1::GatherRequest request;
  ToProto(sequence, request.mutable_handle());
  request.set_layer(layer);
  request.set_kv_head(kv_head);
  v1::Tensor* tensor = request.mutable_positions();
  tensor->set_dtype(v1::D_TYPE_INT32);
  tensor->add_shape(positions.size());
  tensor->mutable_raw()->assign(reinterpret_cast<const char*>(positions.data()), positions.size() * sizeof(int32_t));
  request.set_keys(keys);
  request.set_values(values);
  google::protobuf::Arena arena;
  auto* response = google::protobuf::Arena::CreateMessage<v1::GatherResponse>(&arena);
  absl::Status status = Call(request, response);
  if (!status.ok()) return status;
  Gathered out;
  status = FromProto(*response, positions.size(), &out);
  if (!status.ok()) return status;
  return out;
}

}  // namespace seine::client
