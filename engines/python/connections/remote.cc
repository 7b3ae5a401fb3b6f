// A server's Seine, over gRPC, connected when it is first needed.

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/calls/wire_calls.h"
#include "client/channel/channel.h"
#include "engines/python/connections/connection.h"
#include "profile/io/endpoint.h"

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

class Remote final : public Connection {
 public:
  Remote(std::string endpoint, absl::Duration timeout, client::Security security)
      : endpoint_(std::move(endpoint)), timeout_(timeout), security_(std::move(security)) {}

  const std::string& endpoint() const override { return endpoint_; }
  absl::Duration timeout() const override { return timeout_; }

  absl::Status Call(const client::Method&, const Message& request, Message* response, absl::Duration timeout) override {
    const absl::Time deadline = absl::Now() + timeout;
    const auto channel = Connected(timeout);
    if (!channel.ok()) return channel.status();
    return client::CallUnary({*channel, endpoint_, deadline}, request, response);
  }

  absl::StatusOr<client::AppendTotals> Append(const client::AppendItem& item, absl::Duration timeout) override {
    const absl::Time deadline = absl::Now() + timeout;
    const auto channel = Connected(timeout);
    if (!channel.ok()) return channel.status();
    const client::CallTarget target = {*channel, endpoint_, deadline};
    const auto piece_bytes = client::AskPieceBytes(target, &piece_bytes_);
    if (!piece_bytes.ok()) return piece_bytes.status();
    return client::SendAppends(target, {&item, 1}, *piece_bytes, {});
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
  if (auto s = CheckEndpoint(endpoint); !s.ok()) return s;
  return std::make_shared<Remote>(endpoint, timeout, security);
}

}  // namespace seine::python
