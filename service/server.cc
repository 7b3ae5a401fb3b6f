// Builds the gRPC server on its address, with limits and keepalive, and takes it down in order.
#include "service/server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/address.h"
#include "service/services.h"

namespace seine {
namespace {

// A peer that went silent is noticed within their sum.
constexpr absl::Duration kKeepaliveTime = absl::Seconds(12), kKeepaliveTimeout = absl::Seconds(6);
constexpr absl::Duration kMinClientPing = absl::Seconds(5);
constexpr absl::Duration kFlush = absl::Milliseconds(300);
constexpr int kMaxStreamsPerConnection = 256;

int Milliseconds(absl::Duration d) { return static_cast<int>(absl::ToInt64Milliseconds(d)); }

// Only the owner may connect. The mask is the process's, so servers of one process bind one after another.
class OwnerOnly {
 public:
  OwnerOnly() : lock_(mutex_), before_(umask(0177)) {}
  ~OwnerOnly() { umask(before_); }

 private:
  static inline std::mutex mutex_;
  std::lock_guard<std::mutex> lock_;
  mode_t before_;
};

class ServerImpl final : public Server {
 public:
  ServerImpl(const ServerOptions& options, std::unique_ptr<Backend> backend)
      : core_(options.core, std::move(backend)),
        services_(options.polling ? MakePollingServices(core_) : MakeCallbackServices(core_)) {}
  ~ServerImpl() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Start(const ServerOptions& options) {
    for (const IndexConfig& config : options.indexes) {
      if (auto index = core_.catalog.Create(config); !index.ok()) {
        return absl::Status(index.status().code(), absl::StrCat("index ", config.name, ": ", index.status().message()));
      } else {
        core_.log.Created(**index);
      }
    }
    auto address = ParseAddress(options.listen);
    if (!address.ok()) return address.status();
    if (auto s = Claim(*address); !s.ok()) return s;
    if (auto s = Listen(*address); !s.ok()) return s;
    services_->Start(grpc_.get());
    return absl::OkStatus();
  }

  const std::string& address() const override { return address_; }
  Core& core() override { return core_; }

  void Shutdown(absl::Duration grace) override {
    if (grpc_ == nullptr) return;
    core_.under_way.Close();
    services_->Drain();
    core_.under_way.WaitUntilNone(std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(grace));
    // What is left beyond the grace, and health's watchers, is cut; answers on their way get a moment.
    grpc_->Shutdown(absl::ToChronoTime(absl::Now() + kFlush));
    services_->Stop();
    grpc_ = nullptr;
  }

 private:
  absl::Status Listen(Address address) {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    services_->Register(&builder);
    int port = 0;
    builder.AddListeningPort(address.ToString(), grpc::InsecureServerCredentials(), &port);
    const int64_t limit = std::min<int64_t>(core_.options.max_message_bytes, std::numeric_limits<int>::max());
    builder.SetMaxReceiveMessageSize(static_cast<int>(limit));
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a second server on the port is an error, not a twin
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(kKeepaliveTime));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(kKeepaliveTimeout));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, Milliseconds(kMinClientPing));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
    {
      const OwnerOnly mask;
      grpc_ = builder.BuildAndStart();
    }
    if (grpc_ == nullptr || port == 0) {
      return absl::UnavailableError(absl::StrCat("listen: cannot listen on ", address.ToString()));
    }
    if (address.unix_path.empty()) address.port = port;
    address_ = address.ToString();
    return absl::OkStatus();
  }

  Core core_;
  std::unique_ptr<Services> services_;
  std::unique_ptr<grpc::Server> grpc_;
  std::string address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  // gRPC's own end, when the last of its objects goes, would wait for a poller that a large message may have started:
  // up to 10 s (gRPC 1.51). So it is kept for the life of the process.
  [[maybe_unused]] static const bool kept = (grpc_init(), true);
  std::string why;
  std::unique_ptr<Backend> backend = MakeBackend(options.core.backend, options.core.threads, &why);
  if (backend == nullptr) return absl::FailedPreconditionError(absl::StrCat("backend: ", why));
  auto server = std::make_unique<ServerImpl>(options, std::move(backend));
  server->core().why_cpu = std::move(why);
  if (auto s = server->Start(options); !s.ok()) return s;
  return server;
}

}  // namespace seine
