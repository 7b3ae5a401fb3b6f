// A Client over gRPC: what client.h's calls (calls.cc, layer_calls.cc) are sent by.
#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/calls/wire_calls.h"
#include "client/channel/channel.h"
#include "client/channel/deadline.h"
#include "client/channel/fork.h"
#include "client/client.h"

namespace seine::client {
namespace {

class GrpcClient final : public Client {
 public:
  GrpcClient(std::string endpoint, const Options& options, std::shared_ptr<grpc::Channel> channel)
      : endpoint_(std::move(endpoint)), options_(options), channel_(std::move(channel)) {}
  ~GrpcClient() override {
    if (!made_.here()) KeepForEver(channel_);
  }

  absl::StatusOr<bool> IsServing(const std::string& service) override;
  absl::Status Call(const google::protobuf::Message& request, google::protobuf::Message* response) override {
    if (absl::Status here = made_.Check(); !here.ok()) return here;
    return CallUnary({channel_, endpoint_, Deadline()}, request, response);
  }
  absl::StatusOr<AppendTotals> AppendStream(absl::Span<const AppendItem> items,
                                            const std::function<void(int64_t)>& progress) override {
    if (absl::Status here = made_.Check(); !here.ok()) return here;
    const absl::StatusOr<int64_t> piece_bytes = AskPieceBytes({channel_, endpoint_, Deadline()}, &piece_bytes_);
    if (!piece_bytes.ok()) return piece_bytes.status();
    return SendAppends({channel_, endpoint_}, items, *piece_bytes, progress);
  }
  absl::StatusOr<std::unique_ptr<DecodeStream>> OpenDecodeStream(Transport transport) override {
    if (absl::Status here = made_.Check(); !here.ok()) return here;
    return OpenAnyDecodeStream(channel_, endpoint_, options_, transport);
  }
  std::unique_ptr<JsonCall> OpenCall(const Method& method) override {
    auto call = made_.here() ? OpenJsonCall(channel_, endpoint_, options_.timeout, method) : nullptr;
    return OfThisProcess(std::move(call), made_);
  }

 private:
  absl::Time Deadline() const { return absl::Now() + options_.timeout; }

  const MadeHere made_;
  const std::string endpoint_;
  const Options options_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::atomic<int64_t> piece_bytes_{0};  // 0: not asked yet
};

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
  if (options_.timeout != absl::InfiniteDuration()) context.set_deadline(absl::ToChronoTime(Deadline()));
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

}  // namespace

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
