// Builds the gRPC server on its address, with limits, and takes it down in order.
#include "service/server.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "index/idle/idle_tier.h"
#include "index/memory/memory_budget.h"
#include "kernels/backend.h"
#include "kernels/stop.h"
#include "service/access/access.h"
#include "service/access/audit_log.h"
#include "service/access/guards.h"
#include "service/access/tls_credentials.h"
#include "service/access/tls_files.h"
#include "service/access/wrong_setting.h"
#include "service/access/zeroing_backend.h"
#include "service/catalog.h"
#include "service/event_log.h"
#include "service/families/sequence_families.h"
#include "service/metrics/collector.h"
#include "service/metrics/http_listener.h"
#include "service/page/page.h"
#include "service/services.h"
#include "service/snapshots/exit_snapshots.h"
#include "service/snapshots/files/exit_files.h"
#include "service/transport/channel/channel_server.h"
#include "service/transport/own_calls.h"
#include "service/transport/sockets/address.h"
#include "service/transport/sockets/connections.h"
#include "service/transport/sockets/descriptors.h"
#include "service/transport/sockets/listener.h"
#include "service/transport/sockets/read_turns.h"
#include "service/under_way/calls_under_way.h"
#include "service/under_way/open_calls.h"

namespace seine {
namespace {

constexpr absl::Duration kHandshake = absl::Seconds(10);       // of TLS, for who connects and says nothing
constexpr absl::Duration kFlush = absl::Milliseconds(300);     // for answers on their way
constexpr absl::Duration kStopping = absl::Milliseconds(600);  // calls look at their tokens every few milliseconds
constexpr int kMaxStreamsPerConnection = 256;

int Milliseconds(absl::Duration d) { return static_cast<int>(absl::ToInt64Milliseconds(d)); }

class ServerImpl final : public Server {
 public:
  ServerImpl(const ServerOptions& options, std::unique_ptr<Backend> backend)
      : core_(options.core, std::move(backend)), services_(core_, options.polling), channels_(core_, options.polling) {}
  ~ServerImpl() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Start(const ServerOptions& options) {
    if (auto s = ServeHttp(options); !s.ok()) return s;
    auto address = ParseAddress(options.listen);
    if (!address.ok()) return address.status();
    if (auto s = Guard(options, *address); !s.ok()) return s;
    if (auto s = OpenIdleTier(options.idle); !s.ok()) return s;
    if (auto s = Validate(options.fleet); !s.ok()) return s;
    if (!options.fleet.file.empty()) core_.fleet = std::make_unique<FleetWatch>(options.fleet, core_.tls);
    const std::shared_ptr<Tenant> own = core_.access == nullptr ? nullptr : core_.access->tenant("");
    for (const IndexConfig& config : options.indexes) {
      if (auto index = core_.catalog.Create(config, own.get()); !index.ok()) {
        return absl::Status(index.status().code(), absl::StrCat("index ", config.name, ": ", index.status().message()));
      } else {
        core_.log.Created(**index);
      }
    }
    if (auto s = PrepareSnapshots(options.snapshots, &core_); !s.ok()) return s;
    auto listener = Listener::Open(*address);
    if (!listener.ok()) return listener.status();
    listener_ = *std::move(listener);
    if (auto s = Build(); !s.ok()) return s;
    core_.address = listener_->address().ToString();
    core_.draining = options.draining;
    channels_.Start(listener_->address());
    services_.Start();
    descriptors_.emplace();
    listener_->Start([this](int from, int connection) { Take(from, connection); }, &*descriptors_, &core_.connections);
    started_ = true;
    return absl::OkStatus();
  }

  const std::string& address() const override { return core_.address; }
  Core& core() override { return core_; }

  bool Answers(absl::Duration within) override {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + within));
    const grpc::Slice whole_server;  // an empty request
    grpc::ByteBuffer answer;
    const auto status =
        own_calls_.Unary("/grpc.health.v1.Health/Check", grpc::ByteBuffer(&whole_server, 1), &context, &answer);
    core_.catalog.List();
    return status.ok();
  }

  void Unready() override { services_.Unready(); }

  void Shutdown(absl::Duration grace) override {
    if (grpc_ == nullptr) return;
    services_.Unready();  // before the first call is refused
    core_.under_way.Close();
    services_.Drain();
    const auto wait = [this](absl::Duration most) {
      return core_.open_calls.WaitUntilNone(std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(most));
    };
    if (wait(grace) > 0) {
      core_.open_calls.Stop(StopReason::kShutdown);
      wait(kStopping / 2);
      core_.connections.CutUnread(absl::ToChronoNanoseconds(absl::ZeroDuration()));
      wait(kStopping / 2);
    }
    own_calls_.Close();
    std::thread http;
    if (http_ != nullptr) http = std::thread([this] { http_ = nullptr; });  // it may wait for a client of its own
    channels_.Stop();
    listener_->Stop();
    // Whoever still waits for an answer, and health's watchers, are cut off.
    core_.connections.End();
    grpc_->Shutdown(absl::ToChronoTime(absl::Now() + kFlush));
    services_.Stop();
    if (http.joinable()) http.join();
    grpc_ = nullptr;
    listener_ = nullptr;
  }

 private:
  // Before the indexes are made, so that probes hear why calls are not served yet.
  absl::Status ServeHttp(const ServerOptions& options) {
    if (options.metrics_listen.empty()) return absl::OkStatus();
    HttpListener::Answers answers{[this] { return collector_.Text(); }, [this] { return WhyNotReady(); }};
    if (options.metrics_page) answers.page = [this](const HttpRequest& asked) { return page_.Answer(asked); };
    auto http = HttpListener::Open(options.metrics_listen, std::move(answers));
    if (!http.ok()) return http.status();
    http_ = *std::move(http);
    core_.metrics_address = http_->address();
    if (options.metrics_page) core_.page = absl::StrCat("http://", core_.metrics_address, "/page/");
    return absl::OkStatus();
  }
  std::string WhyNotReady() const {
    if (!started_) return "the server is starting: its indexes are being made";
    if (const std::string loss = core_.backend->loss(); !loss.empty())
      return absl::StrCat("the device is lost: ", loss);
    if (core_.under_way.closed()) return "the server is shutting down";
    return services_.ready() ? "" : "the server is draining, or its workers are stuck";
  }

  // Opens what says who may call.
  absl::Status Guard(const ServerOptions& options, const Address& address) {
    if (auto s = CheckGuards(address, options.tls, options.access); !s.ok()) return s;
    if (options.tls.enabled()) {
      auto tls = TlsFiles::Open(options.tls, [this](const absl::Status& why) {
        core_.log.Failed("new files of TLS are not taken, the old ones count", why);
      });
      if (!tls.ok()) return tls.status();
      core_.tls = *std::move(tls);
    }
    if (options.access.enabled()) {
      auto access = Access::Open(options.access, core_.budget);
      if (!access.ok()) return access.status();
      core_.access = *std::move(access);
      if (auto s = CheckCredentials(address, options.tls, *core_.access); !s.ok()) return s;
    }
    if (options.audit_file.empty()) return absl::OkStatus();
    auto audit =
        AuditLog::Open(options.audit_file, [this](const absl::Status& why) { core_.log.Failed("audit.file", why); });
    if (!audit.ok()) return audit.status();
    core_.audit = *std::move(audit);
    return absl::OkStatus();
  }

  absl::Status OpenIdleTier(const IdleOptions& options) {
    if (options.folder.empty()) return absl::OkStatus();
    if (core_.backend->codes_on_device()) {
      return WrongSetting("idle.dir", "needs backend cpu: codes in a device's memory are not written");
    }
    IdleHooks hooks;
    hooks.failed = [this](const absl::Status& why) { core_.log.Failed("idle tier", why); };
    hooks.hold = [this](const FamilyNames& family) -> std::shared_ptr<void> {
      auto changes = core_.families.BeginChanges(family.tenant, family.index, family.ids);
      if (changes.empty()) return nullptr;
      return std::make_shared<std::vector<SequenceFamilies::Change>>(std::move(changes));
    };
    auto idle = IdleTier::Open(options, std::move(hooks));
    if (!idle.ok()) return WrongSetting("idle.dir", idle.status().message());
    core_.idle = *std::move(idle);
    core_.catalog.SetIdleTier(core_.idle);
    return absl::OkStatus();
  }

  absl::Status Build() {
    grpc::ServerBuilder builder;
    services_.Register(&builder);
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        core_.tls == nullptr ? grpc::InsecureServerCredentials() : std::make_shared<TlsCredentials>(core_.tls));
    const int64_t limit = std::min<int64_t>(core_.options.max_message_bytes, std::numeric_limits<int>::max());
    builder.SetMaxReceiveMessageSize(static_cast<int>(limit));
    // A small message may inflate to a thousand times its size: none is inflated, and who compresses is told.
    builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
    builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
    builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    // gRPC 1.51 would end a connection that pings often, but only once it has written what waits; until then each PING
    // adds an error of some 2.5 KB to those that it keeps. So it counts none: what waits to be answered is bounded.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    if (core_.tls != nullptr)
      builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Milliseconds(kHandshake));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
    grpc_ = builder.BuildAndStart();
    return grpc_ != nullptr ? absl::OkStatus() : absl::UnavailableError("listen: gRPC did not start");
  }
  // gRPC names all connections of a Unix socket alike, but not those that it is given by their descriptors.
  void Take(int from, int connection) {
    TakeTurns(connection);
    if (!listener_->address().unix_path.empty()) return grpc::AddInsecureChannelFromFd(grpc_.get(), connection);
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters taken;
    taken.listener_fd = from;
    taken.fd = connection;
    acceptor_->HandleNewConnection(&taken);
  }

  Core core_;
  Services services_;
  std::unique_ptr<Listener> listener_;
  ChannelServer channels_;
  std::optional<DescriptorLimit> descriptors_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> grpc_;
  std::atomic<bool> started_{false};
  const Collector collector_{core_};
  OwnCalls own_calls_{[this]() -> std::shared_ptr<grpc::Channel> {
    return started_ ? grpc_->InProcessChannel(grpc::ChannelArguments()) : nullptr;
  }};
  const Page page_{&own_calls_};
  std::unique_ptr<HttpListener> http_;  // ends first: it tells of the rest
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  // gRPC's own end, when the last of its objects goes, would wait for a poller that a large message may have started:
  // up to 10 s (gRPC 1.51). So it is kept for the life of the process.
  [[maybe_unused]] static const bool kept = (grpc_init(), true);
  std::string why;
  std::unique_ptr<Backend> backend = MakeBackend(options.core.backend, options.core.threads, &why);
  if (backend == nullptr) return absl::FailedPreconditionError(absl::StrCat("backend: ", why));
  if (options.access.enabled()) backend = WithZeroedMemory(std::move(backend));  // there may be several tenants
  try {
    auto server = std::make_unique<ServerImpl>(options, std::move(backend));
    server->core().why_cpu = std::move(why);
    if (auto s = server->Start(options); !s.ok()) return s;
    return server;
  } catch (const std::system_error& error) {  // threads
    return absl::ResourceExhaustedError(absl::StrCat("the system has no thread for the server: ", error.what()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the system has no memory for the server");
  }
}

}  // namespace seine
