// The decode stream: gRPC's asynchronous one, whose completion queue the caller's own thread waits for, in two ways. It
// spins (no wake-up, which costs more than all of gRPC's work), or it sleeps until the server announces the answer, and
// spins for the moment that is left.
#include <array>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/channel/channel.h"
#include "client/channel/channel_security.h"
#include "client/convert/convert.h"
#include "seine/v1/retrieval_service.grpc.pb.h"

namespace seine::client {
namespace {

// The stream ended though a step was to be sent or read: the server's error, or that it said goodbye.
absl::Status Ended(const grpc::Status& status, const std::string& endpoint) {
  if (status.ok()) return absl::UnavailableError("the server has ended the stream");
  return FromGrpc(status, endpoint);
}

using Clock = std::chrono::steady_clock;
// Longer than the server announces an answer ahead of it; one that is this late is slept for.
constexpr auto kAnnouncedSpin = std::chrono::microseconds(500);

// At most one operation of each kind is under way.
class QueueStream final : public DecodeStream {
 public:
  QueueStream(const std::shared_ptr<grpc::Channel>& channel, std::string endpoint, Transport transport,
              absl::Duration step_timeout, std::string fallback, const std::string& token)
      : endpoint_(std::move(endpoint)),
        transport_(transport),
        step_timeout_(step_timeout),
        fallback_(std::move(fallback)),
        stub_(v1::RetrievalService::NewStub(channel)) {
    AddToken(token, &context_);
    stream_ = stub_->PrepareAsyncDecode(&context_, &queue_);
    stream_->StartCall(Begin(kStart));
    Await(kStart);
  }

  ~QueueStream() override {
    if (!end_) context_.TryCancel();
    End();
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  absl::Status Write(const DecodeStep& step) override {
    if (end_) return Ended(*end_, endpoint_);
    if (!Await(kWrite)) return Ended(End(), endpoint_);
    absl::Status status = ToProto(step, &request_);
    if (!status.ok()) return status;
    request_.set_notify_early(transport_ == Transport::kBlocking);  // one that spins would gain nothing
    stream_->Write(request_, Begin(kWrite));  // serialised here; Read's wait hears of its completion
    BeginRead();
    return absl::OkStatus();
  }

  absl::Status Read(DecodeAnswer* answer) override {
    if (step_timeout_ != absl::InfiniteDuration()) {
      late_at_ = std::chrono::system_clock::now() + absl::ToChronoMicroseconds(step_timeout_);
    }
    bool announced = false;
    for (;; announced = true) {
      if (end_ || !Receive()) return Late(Ended(End(), endpoint_));
      if (!response_.answer_imminent()) break;
      spin_until_ = Clock::now() + kAnnouncedSpin;
    }
    spin_until_ = {};
    late_at_.reset();
    absl::Status status = FromProto(response_, answer);
    answer->announced = announced;
    return status;
  }

  absl::Status Finish() override {
    if (!end_ && Await(kWrite)) {
      stream_->WritesDone(Begin(kWrite));
      Await(kWrite);
    }
    return FromGrpc(End(), endpoint_);
  }

  Transport transport() const override { return transport_; }
  const std::string& fallback() const override { return fallback_; }

 private:
  enum Operation : size_t { kStart, kWrite, kRead, kFinish, kNumOperations };

  void* Begin(Operation operation) {
    under_way_[operation] = true;
    return &under_way_[operation];
  }

  // Called once a step is on its way rather than when the last answer has come: gRPC tells the server of the room that
  // an answer has left, in a message of its own unless a step takes the news along.
  void BeginRead() {
    if (!under_way_[kRead] && succeeded_[kRead] && !received_) stream_->Read(&response_, Begin(kRead));
  }

  // The next message to response_. False: none comes any more.
  bool Receive() {
    BeginRead();
    const bool received = Await(kRead);
    received_ = false;
    return received;
  }

  absl::Status Late(absl::Status status) const {
    if (!late_) return status;
    return absl::DeadlineExceededError(absl::StrCat("no answer within ", absl::ToDoubleSeconds(step_timeout_), " s"));
  }

  bool Spins() const { return transport_ == Transport::kPolling || Clock::now() < spin_until_; }

  // Waits until `operation` is done; whether its last run succeeded.
  bool Await(Operation operation) {
    while (under_way_[operation]) {
      void* tag;
      bool ok;
      // A deadline long past: look once, without sleeping. Yielding costs next to nothing where a core is free, and
      // where none is it lets the server run rather than wait for our time slice to end.
      const bool spins = Spins();
      auto deadline = spins ? gpr_inf_past(GPR_CLOCK_MONOTONIC) : gpr_inf_future(GPR_CLOCK_MONOTONIC);
      if (!spins && late_at_) deadline = grpc::TimePoint<std::chrono::system_clock::time_point>(*late_at_).raw_time();
      if (queue_.AsyncNext(&tag, &ok, deadline) != grpc::CompletionQueue::GOT_EVENT) {
        if (late_at_ && std::chrono::system_clock::now() >= *late_at_) Cancel();
        std::this_thread::yield();
        continue;
      }
      const size_t done = static_cast<bool*>(tag) - under_way_.data();
      under_way_[done] = false;
      succeeded_[done] = ok;
      if (done == kRead) received_ = ok;
    }
    return succeeded_[operation];
  }

  void Cancel() {
    late_ = true;
    late_at_.reset();
    context_.TryCancel();
  }

  const grpc::Status& End() {
    if (!end_) {
      while (Receive()) {  // gRPC hands out the status after the last message only
      }
      Await(kWrite);
      grpc::Status status;
      stream_->Finish(&status, Begin(kFinish));
      Await(kFinish);
      end_ = status;
    }
    return *end_;
  }

  const std::string endpoint_;
  const Transport transport_;
  const absl::Duration step_timeout_;
  const std::string fallback_;
  const std::unique_ptr<v1::RetrievalService::Stub> stub_;
  Clock::time_point spin_until_;  // an answer has been announced
  // When the step that is read has taken too long, by the clock that gRPC's queues wait by; whether one has.
  std::optional<std::chrono::system_clock::time_point> late_at_;
  bool late_ = false;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::DecodeRequest, v1::DecodeResponse>> stream_;
  std::array<bool, kNumOperations> under_way_ = {};
  std::array<bool, kNumOperations> succeeded_ = {true, true, true, true};
  v1::DecodeRequest request_;
  v1::DecodeResponse response_;
  bool received_ = false;  // response_ holds what Read has not taken yet
  std::optional<grpc::Status> end_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeStream>> OpenDecodeStream(const std::string& endpoint, const Options& options,
                                                               Transport transport, std::string fallback) {
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = ConnectChannel(endpoint, options);
  if (!channel.ok()) return channel.status();
  const absl::StatusOr<std::string> token = ReadToken(options.security);
  if (!token.ok()) return token.status();
  return std::make_unique<QueueStream>(*channel, endpoint, transport, options.step_timeout, std::move(fallback),
                                       *token);
}

}  // namespace seine::client
