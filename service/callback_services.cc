// Serving by gRPC's callback API, and Decode on threads that sleep (decode_lanes.h). Light calls are answered on the
// thread that received them, heavy ones go through the executor.
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

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

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

// Decode streams that may work at once. A lane without a stream costs a sleeping thread.
constexpr int kDecodeLanes = 8;

template <typename Request, typename Response>
using Call = absl::Status (*)(Core&, const Request&, Response*);

template <typename Request, typename Response>
ServerUnaryReactor* Light(Core& core, const char* method, CallbackServerContext* context, Call<Request, Response> call,
                          const Request* request, Response* response) {
  ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool entered = core.under_way.Enter();
  reactor->Finish(entered ? Finished(core, method, call(core, *request, response)) : ToGrpc(ShuttingDown()));
  return reactor;
}

template <typename Request, typename Response>
ServerUnaryReactor* Heavy(Core& core, const char* method, CallbackServerContext* context, Call<Request, Response> call,
                          const Request* request, Response* response) {
  ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!core.under_way.Enter()) {
    reactor->Finish(ToGrpc(ShuttingDown()));
    return reactor;
  }
  const bool accepted = core.executor.Submit([=, &core] {
    absl::Status status = StillWanted(*context);
    if (status.ok()) status = call(core, *request, response);
    reactor->Finish(Finished(core, method, status));
  });
  if (!accepted) reactor->Finish(Finished(core, method, QueueFull(core)));
  return reactor;
}

// Turns of a stream, one at a time: reading -> working -> (writing) -> reading ... -> finished. Guards against the one
// event that comes from outside this order, Drain.
class Turns {
 public:
  // Reading is over and work begins. False: the stream is finished already.
  bool BeginWork() { return Move(kReading, kWorking); }
  // Work is over, the next read may begin. False: the stream drains, the caller finishes it.
  bool BeginRead() {
    std::lock_guard<std::mutex> lock(mutex_);
    state_ = draining_ ? kFinished : kReading;
    return !draining_;
  }
  // True for the one caller who is to finish the stream.
  bool BeginFinish() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(state_, kFinished) != kFinished;
  }
  // True if the stream waits for its client and the caller is to finish it now.
  bool BeginDrain() {
    std::lock_guard<std::mutex> lock(mutex_);
    draining_ = true;
    return MoveLocked(kReading, kFinished);
  }

 private:
  enum State { kReading, kWorking, kFinished };
  bool Move(State from, State to) {
    std::lock_guard<std::mutex> lock(mutex_);
    return MoveLocked(from, to);
  }
  bool MoveLocked(State from, State to) {
    if (state_ != from) return false;
    state_ = to;
    return true;
  }
  std::mutex mutex_;
  State state_ = kReading;  // guarded by mutex_
  bool draining_ = false;   // guarded by mutex_
};

class AppendStreamReactor final : public grpc::ServerReadReactor<v1::AppendStreamRequest>, public Stream {
 public:
  AppendStreamReactor(Core& core, StreamSet& streams, CallbackServerContext* context, v1::AppendStreamResponse* totals)
      : core_(core), streams_(streams), context_(context), totals_(totals) {
    StartRead(&request_);  // before Add: a Finish by Drain must not come first
    if (!streams_.Add(this) && turns_.BeginFinish()) Finish(Finished(core_, "AppendStream", ShuttingDown()));
  }

  void OnReadDone(bool ok) override {
    if (!turns_.BeginWork()) return;
    if (!ok) return End(context_->IsCancelled() ? absl::CancelledError("the client is gone") : absl::OkStatus());
    if (!core_.executor.Submit([this] { TakePiece(); })) End(QueueFull(core_));
  }
  void Drain() override {
    if (turns_.BeginDrain()) Finish(Finished(core_, "AppendStream", ShuttingDown()));
  }
  void OnDone() override {
    streams_.Remove(this);
    delete this;
  }

 private:
  // The next piece is read when this one is in the index: a fast sender waits in its own buffers.
  void TakePiece() {
    absl::Status status = StillWanted(*context_);
    if (status.ok()) status = AppendPiece(core_, request_, totals_);
    if (!status.ok()) return End(status);
    if (!turns_.BeginRead()) return Finish(Finished(core_, "AppendStream", ShuttingDown()));
    StartRead(&request_);
  }
  void End(const absl::Status& status) {
    if (turns_.BeginFinish()) Finish(Finished(core_, "AppendStream", status));
  }

  Core& core_;
  StreamSet& streams_;
  CallbackServerContext* const context_;
  v1::AppendStreamResponse* const totals_;
  Turns turns_;
  v1::AppendStreamRequest request_;
};

// A stream that came while the server ends.
class Refusal final : public grpc::ServerReadReactor<v1::AppendStreamRequest> {
 public:
  Refusal() { Finish(ToGrpc(ShuttingDown())); }
  void OnDone() override { delete this; }
};

// One method: its handler calls `function` of the same name by `weight` (Light or Heavy).
#define SEINE_UNARY(method, weight)                                                              \
  ServerUnaryReactor* method(CallbackServerContext* context, const v1::method##Request* request, \
                             v1::method##Response* response) override {                          \
    return weight(core_, #method, context, &seine::method, request, response);                   \
  }

class CallbackIndexService final : public v1::IndexService::CallbackService {
 public:
  explicit CallbackIndexService(Core& core) : core_(core) {}
  SEINE_UNARY(CreateIndex, Heavy)  // may read a profile
  SEINE_UNARY(GetIndex, Light)
  SEINE_UNARY(ListIndexes, Light)
  SEINE_UNARY(DeleteIndex, Heavy)  // gives back what may be gigabytes

 private:
  Core& core_;
};

class CallbackSequenceService final : public v1::SequenceService::CallbackService {
 public:
  explicit CallbackSequenceService(Core& core) : core_(core) {}
  SEINE_UNARY(CreateSequence, Light)
  SEINE_UNARY(GetSequence, Light)
  SEINE_UNARY(ListSequences, Heavy)
  SEINE_UNARY(DeleteSequence, Heavy)
  SEINE_UNARY(ForkSequence, Heavy)
  SEINE_UNARY(TruncateSequence, Heavy)

 private:
  Core& core_;
};

class CallbackAdminService final : public v1::AdminService::CallbackService {
 public:
  explicit CallbackAdminService(Core& core) : core_(core) {}
  SEINE_UNARY(GetServerInfo, Light)
  SEINE_UNARY(DescribeHead, Light)
  SEINE_UNARY(MeasureProfile, Heavy)

 private:
  Core& core_;
};

class CallbackEvictionService final : public v1::EvictionService::CallbackService {
 public:
  explicit CallbackEvictionService(Core& core) : core_(core) {}
  SEINE_UNARY(Score, Heavy)
  SEINE_UNARY(Evict, Heavy)
  SEINE_UNARY(Diagnose, Heavy)

 private:
  Core& core_;
};

class CallbackSubspaceService final : public v1::SubspaceService::CallbackService {
 public:
  explicit CallbackSubspaceService(Core& core) : core_(core) {}
  SEINE_UNARY(GetBasis, Light)
  SEINE_UNARY(LoadBasis, Light)
  SEINE_UNARY(CalibrateBasis, Heavy)
  SEINE_UNARY(Reconstruct, Heavy)

 private:
  Core& core_;
};

// All by callbacks but Decode.
template <typename Base>
using ByCallbacks = v1::RetrievalService::WithCallbackMethod_Append<
    v1::RetrievalService::WithCallbackMethod_AppendStream<v1::RetrievalService::WithCallbackMethod_Retrieve<
        v1::RetrievalService::WithCallbackMethod_Attend<v1::RetrievalService::WithCallbackMethod_Gather<Base>>>>>;

class CallbackRetrievalService final
    : public v1::RetrievalService::WithAsyncMethod_Decode<ByCallbacks<v1::RetrievalService::Service>> {
 public:
  explicit CallbackRetrievalService(Core& core) : core_(core) {}
  SEINE_UNARY(Append, Heavy)
  SEINE_UNARY(Retrieve, Heavy)
  SEINE_UNARY(Attend, Heavy)
  SEINE_UNARY(Gather, Heavy)
  grpc::ServerReadReactor<v1::AppendStreamRequest>* AppendStream(CallbackServerContext* context,
                                                                 v1::AppendStreamResponse* response) override {
    if (!core_.under_way.Enter()) return new Refusal;
    return new AppendStreamReactor(core_, streams_, context, response);
  }
  void Drain() { streams_.Drain(); }

 private:
  Core& core_;
  StreamSet streams_;
};
#undef SEINE_UNARY

// gRPC 1.51 serves callbacks from a few threads, each of which sleeps 100 ms, deaf, after a second without an event.
// All may sleep at once: the first call after a pause then waits. A call to ourselves, often enough, keeps one of them
// listening.
class Heartbeat {
 public:
  void Start(const std::shared_ptr<grpc::Channel>& channel) {
    thread_ = std::thread([this, channel] {
      std::unique_lock<std::mutex> lock(mutex_);
      while (!ended_.wait_for(lock, kPeriod, [this] { return stopping_; })) Beat(channel);
    });
  }
  ~Heartbeat() { Stop(); }
  void Stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    ended_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

 private:
  static constexpr std::chrono::milliseconds kPeriod{400};

  static void Beat(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPeriod);
    const grpc::internal::RpcMethod check("/grpc.health.v1.Health/Check", grpc::internal::RpcMethod::NORMAL_RPC,
                                          channel);
    const grpc::Slice whole_server;  // the empty name
    const grpc::ByteBuffer request(&whole_server, 1);
    grpc::ByteBuffer response;
    // Its answer does not matter; a server too busy to give one is awake.
    (void)grpc::internal::BlockingUnaryCall(channel.get(), check, &context, request, &response);
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

class CallbackServices final : public Services {
 public:
  explicit CallbackServices(Core& core)
      : index_(core),
        sequence_(core),
        admin_(core),
        eviction_(core),
        subspace_(core),
        retrieval_(core),
        lanes_(core, kDecodeLanes, DecodeLanes::Wait::kLinger,
               [this](auto* context, auto* wire, auto* queue, void* tag) {
                 retrieval_.RequestDecode(context, wire, queue, queue, tag);
               }) {}

  void Register(grpc::ServerBuilder* builder) override {
    grpc::EnableDefaultHealthCheckService(true);
    builder->RegisterService(&index_).RegisterService(&sequence_).RegisterService(&admin_).RegisterService(&retrieval_);
    builder->RegisterService(&eviction_).RegisterService(&subspace_);
    lanes_.Register(builder);
  }
  void Start(grpc::Server* server) override {
    lanes_.Start();
    health_ = server->GetHealthCheckService();
    for (const char* name : {v1::IndexService::service_full_name(), v1::SequenceService::service_full_name(),
                             v1::AdminService::service_full_name(), v1::RetrievalService::service_full_name(),
                             v1::EvictionService::service_full_name(), v1::SubspaceService::service_full_name()}) {
      health_->SetServingStatus(name, true);
    }
    heartbeat_.Start(server->InProcessChannel(grpc::ChannelArguments()));
  }
  void Drain() override {
    heartbeat_.Stop();
    health_->SetServingStatus(false);
    lanes_.Drain();
    retrieval_.Drain();
  }
  void Stop() override { lanes_.Stop(); }

 private:
  CallbackIndexService index_;
  CallbackSequenceService sequence_;
  CallbackAdminService admin_;
  CallbackEvictionService eviction_;
  CallbackSubspaceService subspace_;
  CallbackRetrievalService retrieval_;
  DecodeLanes lanes_;
  grpc::HealthCheckServiceInterface* health_ = nullptr;
  Heartbeat heartbeat_;
};

}  // namespace

std::unique_ptr<Services> MakeCallbackServices(Core& core) { return std::make_unique<CallbackServices>(core); }

}  // namespace seine
