// A server's Seine, over gRPC, connected when it is first needed.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/channel.h"
#include "client/convert/convert.h"
#include "client/convert/eviction.h"
#include "client/convert/pieces.h"
#include "client/endpoint.h"
#include "engines/python/connection.h"
#include "seine/v1/admin_service.grpc.pb.h"
#include "seine/v1/retrieval_service.grpc.pb.h"

namespace seine::python {
namespace {

constexpr std::pair<client::Transport, const char*> kTransports[] = {
    {client::Transport::kAuto, "auto"},
    {client::Transport::kBlocking, "stream"},
    {client::Transport::kPolling, "polling stream"},
    {client::Transport::kSharedMemory, "shared memory"},
    {client::Transport::kSharedMemoryPolling, "polling shared memory"},
};

using Message = google::protobuf::Message;

// What a caller may do about a server that is not there.
absl::Status WithHint(const absl::Status& status) {
  if (!absl::IsUnavailable(status) || !absl::StartsWith(status.message(), "no server at ")) return status;
  return absl::UnavailableError(
      absl::StrCat(status.message(), "; start one with seined, or say where it is: Client(address) or SEINE_SERVER"));
}

absl::StatusOr<grpc::ByteBuffer> MessageBytes(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own = false;
  const auto written = grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own);
  if (!written.ok()) return absl::ResourceExhaustedError("the request is too large for a message");
  return bytes;
}

class Remote final : public Connection {
 public:
  Remote(std::string endpoint, absl::Duration timeout, client::Security security)
      : endpoint_(std::move(endpoint)), timeout_(timeout), security_(std::move(security)) {}

  const std::string& endpoint() const override { return endpoint_; }
  absl::Duration timeout() const override { return timeout_; }

  absl::Status Call(const client::Method& method, const Message& request, Message* response,
                    absl::Duration timeout) override {
    const absl::Time deadline = absl::Now() + timeout;
    const auto channel = Connected(timeout);
    if (!channel.ok()) return channel.status();
    const auto bytes = MessageBytes(request);
    if (!bytes.ok()) return bytes.status();
    grpc::ClientContext context;
    SetDeadline(deadline, &context);
    grpc::GenericStub stub(*channel);
    grpc::CompletionQueue queue;
    grpc::ByteBuffer answer;
    grpc::Status ended;
    void* tag = nullptr;
    bool ok = false;
    const auto call = stub.PrepareUnaryCall(&context, absl::StrCat("/", method.name), *bytes, &queue);
    call->StartCall();
    call->Finish(&answer, &ended, &answer);
    queue.Next(&tag, &ok);
    if (!ended.ok()) return client::FromGrpc(ended, endpoint_);
    if (grpc::SerializationTraits<Message>::Deserialize(&answer, response).ok()) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the answer of ", endpoint_, " is no ", method.response));
  }

  absl::StatusOr<client::AppendTotals> Append(const client::AppendItem& item, absl::Duration timeout) override {
    const absl::Time deadline = absl::Now() + timeout;
    const auto channel = Connected(timeout);
    if (!channel.ok()) return channel.status();
    auto piece_bytes = PieceBytes(*channel, deadline);
    if (!piece_bytes.ok()) return piece_bytes.status();
    const auto stub = v1::RetrievalService::NewStub(*channel);
    grpc::ClientContext context;
    SetDeadline(deadline, &context);
    v1::AppendStreamResponse response;
    const auto writer = stub->AppendStream(&context, &response);
    v1::AppendStreamRequest request;  // one message for all pieces: its strings keep their capacity
    absl::Status sent;
    bool open = true;
    sent.Update(client::ForEachPiece(item, *piece_bytes, [&](const client::AppendItem& piece) {
      sent = client::ToProto(piece, request.mutable_item());
      open = sent.ok() && writer->Write(request);
      return open;
    }));
    if (!sent.ok()) context.TryCancel();
    if (open && sent.ok()) writer->WritesDone();
    const grpc::Status ended = writer->Finish();
    if (!sent.ok()) return sent;
    if (!ended.ok()) return client::FromGrpc(ended, endpoint_);
    client::AppendTotals totals;
    if (auto s = client::FromProto(response, &totals); !s.ok()) return s;
    return totals;
  }

  absl::StatusOr<Opened> OpenStream(absl::Duration step_timeout, const std::string& transport) override {
    const auto wanted = std::find_if(std::begin(kTransports), std::end(kTransports),
                                     [&](const auto& known) { return transport == known.second; });
    if (wanted == std::end(kTransports)) {
      const auto names = absl::StrJoin(kTransports, ", ", [](auto* out, auto& known) { *out += known.second; });
      return absl::InvalidArgumentError(absl::StrCat("transport: must be one of ", names, ", not ", transport));
    }
    client::Options options;
    options.step_timeout = step_timeout;
    options.security = security_;
    const auto channel = Connected(options.connect_timeout);
    if (!channel.ok()) return channel.status();
    auto stream = client::OpenAnyDecodeStream(*channel, endpoint_, options, wanted->first);
    if (!stream.ok()) return WithHint(stream.status());
    const auto taken = std::find_if(std::begin(kTransports), std::end(kTransports),
                                    [&](const auto& known) { return known.first == (*stream)->transport(); });
    return Opened{*std::move(stream), taken->second};
  }

  absl::StatusOr<std::string> AddProfile(const std::string&) override {
    return absl::UnimplementedError("profile: a server has profiles of its own (seined --profiles)");
  }

 private:
  // The channel of the calls before, or, where it has lost its server, a new one: a channel that failed would wait
  // before it tries again, and only while somebody waits for it.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Connected(absl::Duration timeout) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (channel_ != nullptr && channel_->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY) return channel_;
    }
    client::Options options;
    options.connect_timeout = timeout;
    options.security = security_;
    auto channel = client::ConnectChannel(endpoint_, options);
    if (!channel.ok()) return WithHint(channel.status());
    const std::lock_guard<std::mutex> lock(mutex_);
    return channel_ = *channel;
  }

  static void SetDeadline(absl::Time deadline, grpc::ClientContext* context) {
    if (deadline != absl::InfiniteFuture()) context->set_deadline(absl::ToChronoTime(deadline));
  }

  // Asked once: what a server takes does not change.
  absl::StatusOr<int64_t> PieceBytes(const std::shared_ptr<grpc::Channel>& channel, absl::Time deadline) {
    if (piece_bytes_ == 0) {
      grpc::ClientContext context;
      SetDeadline(deadline, &context);
      v1::GetServerInfoResponse info;
      const auto asked = v1::AdminService::NewStub(channel)->GetServerInfo(&context, {}, &info);
      if (!asked.ok()) return client::FromGrpc(asked, endpoint_);
      piece_bytes_ = client::PieceBytes(info.max_message_bytes());
    }
    return piece_bytes_.load();
  }

  const std::string endpoint_;
  const absl::Duration timeout_;
  const client::Security security_;
  std::mutex mutex_;
  std::shared_ptr<grpc::Channel> channel_;  // nullptr before the first call; guarded by mutex_
  std::atomic<int64_t> piece_bytes_{0};     // 0: not asked yet
};

}  // namespace

absl::StatusOr<std::shared_ptr<Connection>> OpenRemote(const std::string& endpoint, absl::Duration timeout,
                                                       const client::Security& security) {
  if (auto s = client::CheckEndpoint(endpoint); !s.ok()) return s;
  return std::make_shared<Remote>(endpoint, timeout, security);
}

}  // namespace seine::python
