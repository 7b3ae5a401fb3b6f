// Serving with a spinning thread (services.h says when and why). Decode runs wholly on that thread, by gRPC's
// asynchronous API; everything else on gRPC's synchronous threads, as many at most as ServerOptions say.
#include <grpcpp/impl/codegen/method_handler_impl.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <thread>
#include <unordered_set>
#include <utility>

#include "seine/v1/admin_service.grpc.pb.h"
#include "seine/v1/index_service.grpc.pb.h"
#include "seine/v1/retrieval_service.grpc.pb.h"
#include "seine/v1/sequence_service.grpc.pb.h"
#include "service/calls.h"
#include "service/rpc.h"
#include "service/services.h"
#include "service/streams.h"

namespace seine {
namespace {

using grpc::ServerContext;

// While no Decode stream is open the thread sleeps in the queue, this long at a time.
constexpr absl::Duration kIdleWait = absl::Milliseconds(50);

#define SEINE_UNARY(method)                                                                                       \
  grpc::Status method(ServerContext* context, const v1::method##Request* request, v1::method##Response* response) \
      override {                                                                                                  \
    if (!core_.under_way.Enter()) return ToGrpc(ShuttingDown());                                                  \
    absl::Status status = StillWanted(*context);                                                                  \
    if (status.ok()) status = seine::method(core_, *request, response);                                           \
    return Finished(core_, status);                                                                               \
  }

class IndexServiceImpl final : public v1::IndexService::Service {
 public:
  explicit IndexServiceImpl(Core& core) : core_(core) {}
  SEINE_UNARY(CreateIndex)
  SEINE_UNARY(GetIndex)
  SEINE_UNARY(ListIndexes)
  SEINE_UNARY(DeleteIndex)

 private:
  Core& core_;
};

class SequenceServiceImpl final : public v1::SequenceService::Service {
 public:
  explicit SequenceServiceImpl(Core& core) : core_(core) {}
  SEINE_UNARY(CreateSequence)
  SEINE_UNARY(GetSequence)
  SEINE_UNARY(ListSequences)
  SEINE_UNARY(DeleteSequence)
  SEINE_UNARY(ForkSequence)
  SEINE_UNARY(TruncateSequence)

 private:
  Core& core_;
};

class AdminServiceImpl final : public v1::AdminService::Service {
 public:
  explicit AdminServiceImpl(Core& core) : core_(core) {}
  SEINE_UNARY(GetServerInfo)
  SEINE_UNARY(DescribeHead)

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

class RetrievalServiceImpl final : public v1::RetrievalService::WithAsyncMethod_Decode<v1::RetrievalService::Service> {
 public:
  explicit RetrievalServiceImpl(Core& core) : core_(core) {}
  SEINE_UNARY(Append)
  SEINE_UNARY(Retrieve)
  SEINE_UNARY(Gather)
  grpc::Status AppendStream(ServerContext* context, grpc::ServerReader<v1::AppendStreamRequest>* reader,
                            v1::AppendStreamResponse* totals) override {
    if (!core_.under_way.Enter()) return ToGrpc(ShuttingDown());
    const CancelledByDrain stream(streams_, context);
    v1::AppendStreamRequest request;
    while (reader->Read(&request)) {
      absl::Status status = StillWanted(*context);
      if (status.ok()) status = AppendPiece(core_, request, totals);
      if (!status.ok()) return Finished(core_, status);
    }
    return Finished(core_, context->IsCancelled() ? absl::CancelledError("the stream was cut") : absl::OkStatus());
  }
  void Drain() { streams_.Drain(); }

 private:
  Core& core_;
  StreamSet streams_;
};
#undef SEINE_UNARY

// grpc.health.v1.Health/Check. The library's own health service uses the callback API, whose threads poll; this one is
// synchronous, and its two messages are read and written as the bytes they are: {1: service} and {1: status}.
class HealthServiceImpl final : public grpc::Service {
 public:
  explicit HealthServiceImpl(const std::atomic<bool>& draining) : draining_(draining) {
    using Handler = grpc::internal::RpcMethodHandler<HealthServiceImpl, grpc::ByteBuffer, grpc::ByteBuffer>;
    AddMethod(new grpc::internal::RpcServiceMethod(
        "/grpc.health.v1.Health/Check", grpc::internal::RpcMethod::NORMAL_RPC,
        new Handler([](HealthServiceImpl* self, ServerContext*, const grpc::ByteBuffer* request,
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
        service != v1::RetrievalService::service_full_name()) {
      return {grpc::StatusCode::NOT_FOUND, "service name unknown"};
    }
    const grpc::Slice status(draining_.load() ? "\x08\x02" : "\x08\x01");  // NOT_SERVING : SERVING
    *response = grpc::ByteBuffer(&status, 1);
    return grpc::Status::OK;
  }

  const std::atomic<bool>& draining_;
};

// One Decode stream, driven by the spinning thread alone: accept -> read -> (step, write) -> read ... -> finish.
// Each operation in flight is a tag; the stream goes when the last has come back.
class DecodeStream {
 public:
  struct Tag {
    DecodeStream* stream;
    void (DecodeStream::*done)(bool ok);
  };

  explicit DecodeStream(Core& core) : core_(core), session_(core) {}

  void Accept(RetrievalServiceImpl* service, grpc::ServerCompletionQueue* queue) {
    pending_ = 1;
    service->RequestDecode(&context_, &stream_, queue, queue, &accept_tag_);
  }
  bool accepted() const { return accepted_; }
  bool gone() const { return pending_ == 0; }
  // Waiting for its client, so it may be ended now.
  void Drain() {
    draining_ = true;
    if (reading_) Finish(ShuttingDown());
  }

 private:
  void OnAccepted(bool ok) {
    --pending_;
    if (!ok) return;  // the server shuts down
    accepted_ = true;
    if (core_.under_way.Enter()) return Next();
    ++pending_;
    stream_.Finish(ToGrpc(ShuttingDown()), &finish_tag_);
  }
  void Next() {
    if (draining_) return Finish(ShuttingDown());
    ++pending_;
    reading_ = true;
    stream_.Read(&request_, &read_tag_);
  }
  void OnRead(bool ok) {
    --pending_;
    if (!std::exchange(reading_, false)) return;  // finished by Drain meanwhile
    if (!ok) return Finish(absl::OkStatus());
    session_.Step(request_, &response_);
    core_.calls.fetch_add(1, std::memory_order_relaxed);
    if (response_.has_status()) core_.errors.fetch_add(1, std::memory_order_relaxed);
    ++pending_;
    stream_.Write(response_, &write_tag_);
  }
  void OnWritten(bool ok) {
    --pending_;
    ok ? Next() : Finish(absl::CancelledError("the client is gone"));
  }
  void Finish(const absl::Status& status) {
    reading_ = false;
    ++pending_;
    stream_.Finish(Finished(core_, status), &finish_tag_);
  }
  void OnFinished(bool) { --pending_; }

  Core& core_;
  DecodeSession session_;
  ServerContext context_;
  grpc::ServerAsyncReaderWriter<v1::DecodeResponse, v1::DecodeRequest> stream_{&context_};
  v1::DecodeRequest request_;
  v1::DecodeResponse response_;
  Tag accept_tag_{this, &DecodeStream::OnAccepted}, read_tag_{this, &DecodeStream::OnRead};
  Tag write_tag_{this, &DecodeStream::OnWritten}, finish_tag_{this, &DecodeStream::OnFinished};
  int pending_ = 0;
  bool accepted_ = false, reading_ = false, draining_ = false;
};

class PollingServices final : public Services {
 public:
  explicit PollingServices(Core& core)
      : core_(core), index_(core), sequence_(core), admin_(core), retrieval_(core), health_(draining_) {}
  ~PollingServices() override { Stop(); }

  void Register(grpc::ServerBuilder* builder) override {
    grpc::EnableDefaultHealthCheckService(false);
    builder->RegisterService(&index_).RegisterService(&sequence_).RegisterService(&admin_).RegisterService(&retrieval_);
    builder->RegisterService(&health_);
    builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
    // Threads stand in for the executor's queue here: beyond them gRPC answers RESOURCE_EXHAUSTED.
    builder->SetResourceQuota(grpc::ResourceQuota("seine").SetMaxThreads(core_.options.workers + kSpareThreads));
    queue_ = builder->AddCompletionQueue();
  }
  void Start(grpc::Server*) override {
    Offer();
    thread_ = std::thread([this] { Spin(); });
  }
  void Drain() override {
    draining_.store(true);  // the spinning thread ends the Decode streams
    retrieval_.Drain();
  }
  void Stop() override {
    if (!thread_.joinable()) return;
    queue_->Shutdown();
    thread_.join();
  }

 private:
  static constexpr int kSpareThreads = 8;  // gRPC's own pollers count too, and light calls never wait for heavy ones

  // One stream waits to be accepted at any time.
  void Offer() {
    auto* stream = new DecodeStream(core_);
    streams_.insert(stream);
    stream->Accept(&retrieval_, queue_.get());
  }

  void Spin() {
    bool drained = false;
    void* tag = nullptr;
    bool ok = false;
    while (true) {
      if (draining_.load(std::memory_order_relaxed) && !std::exchange(drained, true)) {
        for (DecodeStream* stream : streams_) stream->Drain();
      }
      // A deadline in the past polls once. The one stream that waits to be accepted does not count as open.
      const bool open = streams_.size() > 1;
      const auto deadline =
          open ? gpr_time_0(GPR_CLOCK_MONOTONIC)
               : gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                              gpr_time_from_millis(absl::ToInt64Milliseconds(kIdleWait), GPR_TIMESPAN));
      switch (queue_->AsyncNext(&tag, &ok, deadline)) {
        case grpc::CompletionQueue::TIMEOUT:
          break;
        case grpc::CompletionQueue::SHUTDOWN:
          return;
        case grpc::CompletionQueue::GOT_EVENT:
          Handle(static_cast<DecodeStream::Tag*>(tag), ok, drained);
      }
    }
  }

  void Handle(DecodeStream::Tag* tag, bool ok, bool drained) {
    DecodeStream* stream = tag->stream;
    const bool was_accepted = stream->accepted();
    if (drained) stream->Drain();  // what is accepted from now on ends at once
    (stream->*tag->done)(ok);
    if (!was_accepted && stream->accepted()) Offer();
    if (!stream->gone()) return;
    streams_.erase(stream);
    delete stream;
  }

  Core& core_;
  std::atomic<bool> draining_{false};
  IndexServiceImpl index_;
  SequenceServiceImpl sequence_;
  AdminServiceImpl admin_;
  RetrievalServiceImpl retrieval_;
  HealthServiceImpl health_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::thread thread_;
  std::unordered_set<DecodeStream*> streams_;  // of the spinning thread alone, after Start
};

}  // namespace

std::unique_ptr<Services> MakePollingServices(Core& core) { return std::make_unique<PollingServices>(core); }

}  // namespace seine
