// Serving with a spinning thread (services.h says when and why). Decode runs wholly on that thread (decode_lanes.h);
// everything else on gRPC's synchronous threads, as many at most as ServerOptions say.
#include <grpcpp/impl/codegen/method_handler_impl.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>

#include "seine/v1/admin_service.grpc.pb.h"
#include "seine/v1/eviction_service.grpc.pb.h"
#include "seine/v1/index_service.grpc.pb.h"
#include "seine/v1/retrieval_service.grpc.pb.h"
#include "seine/v1/sequence_service.grpc.pb.h"
#include "seine/v1/subspace_service.grpc.pb.h"
#include "service/calls.h"
#include "service/decode_lanes.h"
#include "service/rpc.h"
#include "service/services.h"
#include "service/streams.h"

namespace seine {
namespace {

using grpc::ServerContext;

#define SEINE_UNARY(method)                                                                                       \
  grpc::Status method(ServerContext* context, const v1::method##Request* request, v1::method##Response* response) \
      override {                                                                                                  \
    if (!core_.under_way.Enter()) return ToGrpc(ShuttingDown());                                                  \
    absl::Status status = StillWanted(*context);                                                                  \
    if (status.ok()) status = seine::method(core_, *request, response);                                           \
    return Finished(core_, #method, status);                                                                      \
  }

class PollingIndexService final : public v1::IndexService::Service {
 public:
  explicit PollingIndexService(Core& core) : core_(core) {}
  SEINE_UNARY(CreateIndex)
  SEINE_UNARY(GetIndex)
  SEINE_UNARY(ListIndexes)
  SEINE_UNARY(DeleteIndex)

 private:
  Core& core_;
};

class PollingSequenceService final : public v1::SequenceService::Service {
 public:
  explicit PollingSequenceService(Core& core) : core_(core) {}
  SEINE_UNARY(CreateSequence)
  SEINE_UNARY(GetSequence)
  SEINE_UNARY(ListSequences)
  SEINE_UNARY(DeleteSequence)
  SEINE_UNARY(ForkSequence)
  SEINE_UNARY(TruncateSequence)

 private:
  Core& core_;
};

class PollingAdminService final : public v1::AdminService::Service {
 public:
  explicit PollingAdminService(Core& core) : core_(core) {}
  SEINE_UNARY(GetServerInfo)
  SEINE_UNARY(DescribeHead)
  SEINE_UNARY(MeasureProfile)

 private:
  Core& core_;
};

class PollingEvictionService final : public v1::EvictionService::Service {
 public:
  explicit PollingEvictionService(Core& core) : core_(core) {}
  SEINE_UNARY(Score)
  SEINE_UNARY(Evict)
  SEINE_UNARY(Diagnose)

 private:
  Core& core_;
};

class PollingSubspaceService final : public v1::SubspaceService::Service {
 public:
  explicit PollingSubspaceService(Core& core) : core_(core) {}
  SEINE_UNARY(GetBasis)
  SEINE_UNARY(LoadBasis)
  SEINE_UNARY(CalibrateBasis)
  SEINE_UNARY(Reconstruct)

 private:
  Core& core_;
};

// An AppendStream on its thread. Draining cancels it: the thread may be waiting for a client that sends nothing more.
class CancelledByDrain final : public Stream {
 public:
  CancelledByDrain(StreamSet& streams, ServerContext* context) : streams_(streams), context_(context) {
    if (!streams_.Add(this)) context_->TryCancel();
  }
  ~CancelledByDrain() override { streams_.Remove(this); }
  void Drain() override { context_->TryCancel(); }

 private:
  StreamSet& streams_;
  ServerContext* const context_;
};

class PollingRetrievalService final
    : public v1::RetrievalService::WithAsyncMethod_Decode<v1::RetrievalService::Service> {
 public:
  explicit PollingRetrievalService(Core& core) : core_(core) {}
  SEINE_UNARY(Append)
  SEINE_UNARY(Retrieve)
  SEINE_UNARY(Attend)
  SEINE_UNARY(Gather)
  grpc::Status AppendStream(ServerContext* context, grpc::ServerReader<v1::AppendStreamRequest>* reader,
                            v1::AppendStreamResponse* totals) override {
    if (!core_.under_way.Enter()) return ToGrpc(ShuttingDown());
    const CancelledByDrain stream(streams_, context);
    v1::AppendStreamRequest request;
    while (reader->Read(&request)) {
      absl::Status status = StillWanted(*context);
      if (status.ok()) status = AppendPiece(core_, request, totals);
      if (!status.ok()) return Finished(core_, "AppendStream", status);
    }
    return Finished(core_, "AppendStream",
                    context->IsCancelled() ? absl::CancelledError("the stream was cut") : absl::OkStatus());
  }
  void Drain() { streams_.Drain(); }

 private:
  Core& core_;
  StreamSet streams_;
};
#undef SEINE_UNARY

// grpc.health.v1.Health/Check. The library's own health service uses the callback API, whose threads poll; this one is
// synchronous, and its two messages are read and written as the bytes they are: {1: service} and {1: status}.
class PollingHealthService final : public grpc::Service {
 public:
  explicit PollingHealthService(const std::atomic<bool>& draining) : draining_(draining) {
    using Handler = grpc::internal::RpcMethodHandler<PollingHealthService, grpc::ByteBuffer, grpc::ByteBuffer>;
    AddMethod(new grpc::internal::RpcServiceMethod(
        "/grpc.health.v1.Health/Check", grpc::internal::RpcMethod::NORMAL_RPC,
        new Handler([](PollingHealthService* self, ServerContext*, const grpc::ByteBuffer* request,
                       grpc::ByteBuffer* response) { return self->Check(*request, response); },
                    this)));
  }

 private:
  grpc::Status Check(const grpc::ByteBuffer& request, grpc::ByteBuffer* response) const {
    grpc::Slice bytes;
    if (request.Length() > 0 && !request.DumpToSingleSlice(&bytes).ok())
      return {grpc::StatusCode::INTERNAL, "no memory"};
    const std::string text(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
    const bool named = text.size() >= 2 && text[0] == '\x0a' && static_cast<size_t>(text[1]) == text.size() - 2;
    if (!text.empty() && !named) return {grpc::StatusCode::INVALID_ARGUMENT, "service: not a name"};
    const std::string service = text.empty() ? "" : text.substr(2);
    if (!service.empty() && service != v1::IndexService::service_full_name() &&
        service != v1::SequenceService::service_full_name() && service != v1::AdminService::service_full_name() &&
        service != v1::RetrievalService::service_full_name() && service != v1::EvictionService::service_full_name() &&
        service != v1::SubspaceService::service_full_name()) {
      return {grpc::StatusCode::NOT_FOUND, "service name unknown"};
    }
    const grpc::Slice status(draining_.load() ? "\x08\x02" : "\x08\x01");  // NOT_SERVING : SERVING
    *response = grpc::ByteBuffer(&status, 1);
    return grpc::Status::OK;
  }

  const std::atomic<bool>& draining_;
};

class PollingServices final : public Services {
 public:
  explicit PollingServices(Core& core)
      : core_(core),
        index_(core),
        sequence_(core),
        admin_(core),
        eviction_(core),
        subspace_(core),
        retrieval_(core),
        health_(draining_),
        lanes_(core, 1, DecodeLanes::Wait::kSpin, [this](auto* context, auto* wire, auto* queue, void* tag) {
          retrieval_.RequestDecode(context, wire, queue, queue, tag);
        }) {}

  void Register(grpc::ServerBuilder* builder) override {
    grpc::EnableDefaultHealthCheckService(false);
    builder->RegisterService(&index_).RegisterService(&sequence_).RegisterService(&admin_).RegisterService(&retrieval_);
    builder->RegisterService(&eviction_).RegisterService(&subspace_);
    builder->RegisterService(&health_);
    builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
    // Threads stand in for the executor's queue here: beyond them gRPC answers RESOURCE_EXHAUSTED.
    builder->SetResourceQuota(grpc::ResourceQuota("seine").SetMaxThreads(core_.options.workers + kSpareThreads));
    lanes_.Register(builder);
  }
  void Start(grpc::Server*) override { lanes_.Start(); }
  void Drain() override {
    draining_.store(true);
    lanes_.Drain();
    retrieval_.Drain();
  }
  void Stop() override { lanes_.Stop(); }

 private:
  static constexpr int kSpareThreads = 8;  // gRPC's own pollers count too, and light calls never wait for heavy ones

  Core& core_;
  std::atomic<bool> draining_{false};
  PollingIndexService index_;
  PollingSequenceService sequence_;
  PollingAdminService admin_;
  PollingEvictionService eviction_;
  PollingSubspaceService subspace_;
  PollingRetrievalService retrieval_;
  PollingHealthService health_;
  DecodeLanes lanes_;
};

}  // namespace

std::unique_ptr<Services> MakePollingServices(Core& core) { return std::make_unique<PollingServices>(core); }

}  // namespace seine
