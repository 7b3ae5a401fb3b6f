// The calls of client.h over gRPC, but for the decode stream (decode_stream.cc) and those on what a layer keeps
// (layer_calls.cc).
#include "client/client.h"

#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/channel.h"
#include "client/convert/convert.h"
#include "client/convert/eviction.h"
#include "client/convert/pieces.h"
#include "client/convert/subspace.h"
#include "client/deadline.h"
#include "client/grpc_client.h"
#include "google/protobuf/arena.h"
#include "profile/profile.h"

namespace seine::client {

// Debian ships no generated code of grpc.health.v1, and its two messages are one field each, so they are written here:
// HealthCheckRequest {string service = 1}, HealthCheckResponse {ServingStatus status = 1} where SERVING is 1.
absl::StatusOr<bool> GrpcClient::IsServing(const std::string& service) {
  if (absl::Status here = made_.Check(); !here.ok()) return here;
  if (service.size() > 127) return absl::InvalidArgumentError("service: longer than 127 bytes");
  std::string request;
  if (!service.empty()) request = absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service);
  const grpc::Slice slice(request);
  const grpc::ByteBuffer message(&slice, 1);

  grpc::ClientContext context;
  SetDeadline(&context);
  grpc::GenericStub stub(channel_);
  grpc::CompletionQueue queue;
  grpc::ByteBuffer reply;
  grpc::Status ended;
  void* tag;
  bool ok;
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", message, &queue);
  call->StartCall();
  call->Finish(&reply, &ended, nullptr);
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }

  if (ended.error_code() == grpc::StatusCode::NOT_FOUND) {
    return absl::NotFoundError(absl::StrCat("service: the server has no ", service));
  }
  std::vector<grpc::Slice> slices;
  if (ended.ok() && !reply.Dump(&slices).ok()) return absl::InternalError("the server's health answer is unreadable");
  if (!ended.ok()) return FromGrpc(ended, endpoint_);
  std::string bytes;
  for (const grpc::Slice& part : slices) bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  return bytes == "\x08\x01";
}

absl::StatusOr<v1::GetServerInfoResponse> GrpcClient::GetServerInfo() {
  v1::GetServerInfoResponse response;
  const absl::Status status =
      Call(admin_, &v1::AdminService::Stub::GetServerInfo, v1::GetServerInfoRequest(), &response);
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<HeadInfo> GrpcClient::DescribeHead(const Sequence& sequence, int layer, int kv_head) {
  v1::DescribeHeadRequest request;
  ToProto(sequence, request.mutable_handle());
  request.set_layer(layer);
  request.set_kv_head(kv_head);
  v1::DescribeHeadResponse response;
  const absl::Status status = Call(admin_, &v1::AdminService::Stub::DescribeHead, request, &response);
  if (!status.ok()) return status;
  return FromProto(response);
}

absl::StatusOr<Profile> GrpcClient::MeasureProfile(absl::Span<const Sequence> sequences, int layer) {
  v1::MeasureProfileRequest request;
  for (const Sequence& sequence : sequences) ToProto(sequence, request.add_sequences());
  request.set_layer(layer);
  v1::MeasureProfileResponse response;
  const absl::Status status = Call(admin_, &v1::AdminService::Stub::MeasureProfile, request, &response);
  if (!status.ok()) return status;
  return FromProto(response);
}

absl::StatusOr<v1::IndexInfo> GrpcClient::CreateIndex(const v1::IndexSpec& spec) {
  v1::CreateIndexRequest request;
  *request.mutable_spec() = spec;
  v1::CreateIndexResponse response;
  const absl::Status status = Call(indexes_, &v1::IndexService::Stub::CreateIndex, request, &response);
  if (!status.ok()) return status;
  return std::move(*response.mutable_index());
}

absl::StatusOr<v1::IndexInfo> GrpcClient::GetIndex(const std::string& name) {
  v1::GetIndexRequest request;
  request.set_name(name);
  v1::GetIndexResponse response;
  const absl::Status status = Call(indexes_, &v1::IndexService::Stub::GetIndex, request, &response);
  if (!status.ok()) return status;
  return std::move(*response.mutable_index());
}

absl::StatusOr<std::vector<v1::IndexInfo>> GrpcClient::ListIndexes() {
  v1::ListIndexesResponse response;
  const absl::Status status = Call(indexes_, &v1::IndexService::Stub::ListIndexes, v1::ListIndexesRequest(), &response);
  if (!status.ok()) return status;
  return std::vector<v1::IndexInfo>(response.indexes().begin(), response.indexes().end());
}

absl::Status GrpcClient::DeleteIndex(const std::string& name) {
  v1::DeleteIndexRequest request;
  request.set_name(name);
  v1::DeleteIndexResponse response;
  return Call(indexes_, &v1::IndexService::Stub::DeleteIndex, request, &response);
}

absl::StatusOr<Sequence> GrpcClient::CreateSequence(const std::string& index, const std::string& id) {
  v1::CreateSequenceRequest request;
  request.set_index(index);
  request.set_id(id);
  v1::CreateSequenceResponse response;
  const absl::Status status = Call(sequences_, &v1::SequenceService::Stub::CreateSequence, request, &response);
  if (!status.ok()) return status;
  return FromProto(response.handle());
}

absl::StatusOr<SequenceInfo> GrpcClient::GetSequence(const Sequence& sequence) {
  v1::GetSequenceRequest request;
  ToProto(sequence, request.mutable_handle());
  v1::GetSequenceResponse response;
  const absl::Status status = Call(sequences_, &v1::SequenceService::Stub::GetSequence, request, &response);
  if (!status.ok()) return status;
  return FromProto(response.sequence());
}

absl::StatusOr<std::vector<SequenceInfo>> GrpcClient::ListSequences(const std::string& index) {
  constexpr int kPage = 1000;
  v1::ListSequencesRequest request;
  request.set_index(index);
  request.set_page_size(kPage);
  v1::ListSequencesResponse response;
  std::vector<SequenceInfo> out;
  do {
    const absl::Status status = Call(sequences_, &v1::SequenceService::Stub::ListSequences, request, &response);
    if (!status.ok()) return status;
    for (const v1::SequenceInfo& info : response.sequences()) out.push_back(FromProto(info));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return out;
}

absl::Status GrpcClient::DeleteSequence(const Sequence& sequence) {
  v1::DeleteSequenceRequest request;
  ToProto(sequence, request.mutable_handle());
  v1::DeleteSequenceResponse response;
  return Call(sequences_, &v1::SequenceService::Stub::DeleteSequence, request, &response);
}

absl::StatusOr<Sequence> GrpcClient::ForkSequence(const Sequence& source, const std::string& new_id,
                                                  std::optional<int64_t> position) {
  v1::ForkSequenceRequest request;
  ToProto(source, request.mutable_source());
  request.set_new_id(new_id);
  if (position) request.set_position(*position);
  v1::ForkSequenceResponse response;
  const absl::Status status = Call(sequences_, &v1::SequenceService::Stub::ForkSequence, request, &response);
  if (!status.ok()) return status;
  return FromProto(response.handle());
}

absl::StatusOr<SequenceInfo> GrpcClient::TruncateSequence(const Sequence& sequence, int64_t position) {
  v1::TruncateSequenceRequest request;
  ToProto(sequence, request.mutable_handle());
  request.set_position(position);
  v1::TruncateSequenceResponse response;
  const absl::Status status = Call(sequences_, &v1::SequenceService::Stub::TruncateSequence, request, &response);
  if (!status.ok()) return status;
  return FromProto(response.sequence());
}

absl::StatusOr<SnapshotResult> GrpcClient::Snapshot(const Sequence& sequence, const std::string& file,
                                                    const SnapshotParams& params) {
  v1::SnapshotRequest request;
  ToProto(sequence, request.mutable_handle());
  request.set_file(file);
  request.set_scope(static_cast<v1::SnapshotScope>(params.scope));
  request.set_base(params.base);
  request.set_keep_seconds(params.keep_seconds);
  v1::SnapshotResponse response;
  const absl::Status status = Call(sequences_, &v1::SequenceService::Stub::Snapshot, request, &response);
  if (!status.ok()) return status;
  return SnapshotFrom(response);
}

absl::StatusOr<SnapshotResult> GrpcClient::Restore(const std::string& index, const std::string& file,
                                                   const RestoreParams& params) {
  v1::RestoreRequest request;
  request.set_index(index);
  request.set_file(file);
  request.set_id(params.id);
  request.set_generation(params.generation);
  request.set_base(params.base);
  request.set_hold_seconds(params.hold_seconds);
  v1::RestoreResponse response;
  const absl::Status status = Call(sequences_, &v1::SequenceService::Stub::Restore, request, &response);
  if (!status.ok()) return status;
  return SnapshotFrom(response);
}

absl::StatusOr<int64_t> GrpcClient::Append(const AppendItem& item, Retained* retained) {
  google::protobuf::Arena arena;
  auto* request = google::protobuf::Arena::CreateMessage<v1::AppendRequest>(&arena);
  absl::Status status = ToProto(item, request->mutable_item());
  if (!status.ok()) return status;
  v1::AppendResponse response;
  status = Call(retrieval_, &v1::RetrievalService::Stub::Append, *request, &response);
  if (status.ok() && retained != nullptr) status = FromProto(response.retained(), retained);
  if (!status.ok()) return status;
  return response.num_tokens();
}

absl::StatusOr<int64_t> GrpcClient::PieceBytes() {
  if (piece_bytes_ == 0) {
    const absl::StatusOr<v1::GetServerInfoResponse> info = GetServerInfo();
    if (!info.ok()) return info.status();
    piece_bytes_ = seine::client::PieceBytes(info->max_message_bytes());
  }
  return piece_bytes_.load();
}

absl::StatusOr<AppendTotals> GrpcClient::AppendStream(absl::Span<const AppendItem> items,
                                                      const std::function<void(int64_t)>& progress) {
  if (absl::Status here = made_.Check(); !here.ok()) return here;
  const absl::StatusOr<int64_t> piece_bytes = PieceBytes();
  if (!piece_bytes.ok()) return piece_bytes.status();
  grpc::ClientContext context;
  v1::AppendStreamResponse response;
  auto writer = retrieval_->AppendStream(&context, &response);
  v1::AppendStreamRequest request;  // one message for all pieces: its strings keep their capacity
  int64_t sent = 0;
  bool open = true;
  absl::Status status;  // of our own checks
  const auto send = [&](const AppendItem& piece) {
    status = ToProto(piece, request.mutable_item());
    open = status.ok() && writer->Write(request);
    if (open) sent += piece.keys.shape[0];
    if (open && progress) progress(sent);
    return open;
  };
  for (size_t i = 0; i < items.size() && open && status.ok(); ++i)
    status.Update(ForEachPiece(items[i], *piece_bytes, send));
  if (!status.ok()) context.TryCancel();
  if (open && status.ok()) writer->WritesDone();
  const grpc::Status ended = writer->Finish();
  if (!status.ok()) return status;
  if (!ended.ok()) return FromGrpc(ended, endpoint_);
  AppendTotals totals;
  status = FromProto(response, &totals);
  if (!status.ok()) return status;
  return totals;
}

// Sends a request that has a selector and items, and reads a response that has an answer an item.
template <typename Result, typename Request, typename Response>
absl::StatusOr<Result> GrpcClient::CallWithItems(
    grpc::Status (v1::RetrievalService::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
    absl::Span<const RetrieveItem> items, const v1::Selector& selector,
    const std::function<void(Request*)>& add) const {
  google::protobuf::Arena arena;
  auto* request = google::protobuf::Arena::CreateMessage<Request>(&arena);
  auto* response = google::protobuf::Arena::CreateMessage<Response>(&arena);
  *request->mutable_selector() = selector;
  absl::Status status;
  for (const RetrieveItem& item : items) status.Update(ToProto(item, request->add_items()));
  if (!status.ok()) return status;
  add(request);
  status = Call(retrieval_, method, *request, response);
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

absl::StatusOr<RetrieveResult> GrpcClient::Retrieve(absl::Span<const RetrieveItem> items,
                                                    const v1::Selector& selector) {
  return CallWithItems<RetrieveResult, v1::RetrieveRequest>(&v1::RetrievalService::Stub::Retrieve, items, selector,
                                                            [](v1::RetrieveRequest*) {});
}

absl::StatusOr<AttendResult> GrpcClient::Attend(absl::Span<const RetrieveItem> items, const v1::Selector& selector,
                                                const v1::Attention& attention) {
  return CallWithItems<AttendResult, v1::AttendRequest>(
      &v1::RetrievalService::Stub::Attend, items, selector,
      [&](v1::AttendRequest* request) { *request->mutable_attention() = attention; });
}

absl::StatusOr<Gathered> GrpcClient::Gather(const Sequence& sequence, int layer, int kv_head,
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
  absl::Status status = Call(retrieval_, &v1::RetrievalService::Stub::Gather, request, response);
  if (!status.ok()) return status;
  Gathered out;
  status = FromProto(*response, positions.size(), &out);
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& endpoint, const Options& given) {
  Options options = given;
  for (absl::Duration* wait : {&options.connect_timeout, &options.timeout, &options.step_timeout}) {
    *wait = WithoutEndIfHuge(*wait);
  }
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = ConnectChannel(endpoint, options);
  if (!channel.ok()) return channel.status();
  return std::make_unique<GrpcClient>(endpoint, options, *std::move(channel));
}

}  // namespace seine::client
