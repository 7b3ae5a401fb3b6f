#include "client/calls/wire_calls.h"

#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/channel/channel.h"
#include "client/convert/convert.h"
#include "client/convert/eviction.h"
#include "client/convert/pieces.h"
#include "client/methods.h"
#include "seine/v1/retrieval_service.grpc.pb.h"

namespace seine::client {
namespace {

using google::protobuf::Message;
using google::protobuf::MessageLite;

void SetDeadline(absl::Time deadline, grpc::ClientContext* context) {
  if (deadline != absl::InfiniteFuture()) context->set_deadline(absl::ToChronoTime(deadline));
}

}  // namespace

absl::Status CallUnary(const CallTarget& target, const Message& request, Message* response) {
  const std::string& type = request.GetDescriptor()->full_name();
  const auto method =
      std::find_if(Methods().begin(), Methods().end(), [&](const Method& m) { return m.request == type; });
  if (method == Methods().end() || method->streams_responses ||
      method->response != response->GetDescriptor()->full_name()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no call takes a ", type, " and answers by a ", response->GetDescriptor()->full_name()));
  }
  grpc::ClientContext context;
  SetDeadline(target.deadline, &context);
  const std::string path = absl::StrCat("/", method->name);
  const grpc::internal::RpcMethod rpc(path.c_str(), nullptr, grpc::internal::RpcMethod::NORMAL_RPC);
  // BlockingUnaryCall is what generated stubs call; here it takes the messages' common type.
  return FromGrpc(grpc::internal::BlockingUnaryCall<Message, Message, MessageLite, MessageLite>(
                      target.channel.get(), rpc, &context, request, response),
                  target.endpoint);
}

absl::StatusOr<int64_t> AskPieceBytes(const CallTarget& target, std::atomic<int64_t>* known) {
  if (*known == 0) {
    v1::GetServerInfoResponse info;
    if (auto s = CallUnary(target, v1::GetServerInfoRequest(), &info); !s.ok()) return s;
    *known = PieceBytes(info.max_message_bytes());
  }
  return known->load();
}

absl::StatusOr<AppendTotals> SendAppends(const CallTarget& target, absl::Span<const AppendItem> items,
                                         int64_t piece_bytes, const std::function<void(int64_t)>& progress) {
  grpc::ClientContext context;
  SetDeadline(target.deadline, &context);
  v1::AppendStreamResponse response;
  const auto stub = v1::RetrievalService::NewStub(target.channel);
  const auto writer = stub->AppendStream(&context, &response);
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
    status.Update(ForEachPiece(items[i], piece_bytes, send));
  if (!status.ok()) context.TryCancel();
  if (open && status.ok()) writer->WritesDone();
  const grpc::Status ended = writer->Finish();
  if (!status.ok()) return status;
  if (!ended.ok()) return FromGrpc(ended, target.endpoint);
  AppendTotals totals;
  if (auto s = FromProto(response, &totals); !s.ok()) return s;
  return totals;
}

}  // namespace seine::client
