#include "service/transport/reflection/reflection_calls.h"

#include <chrono>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/stop.h"
#include "service/event_log.h"
#include "service/fields/error.h"
#include "service/transport/presented.h"
#include "service/transport/reflection/descriptor_answers.h"
#include "service/transport/rpc.h"
#include "service/transport/rpc_methods.h"
#include "service/under_way/calls_under_way.h"
#include "service/under_way/in_flight.h"
#include "service/under_way/open_calls.h"

namespace seine {

// One call: accept -> read -> answer -> read ... until the client sends no more. Answers take the front some hundred
// microseconds at most.
class ReflectionCall final : public OpenCall {
 public:
  ReflectionCall(ReflectionCalls& calls, ReflectionCalls::Version* version)
      : alive_(calls.alive_),
        calls_(calls),
        core_(calls.core_),
        version_(version),
        answers_(calls.services_),
        answer_share_(core_.in_flight) {
    context_.AsyncNotifyWhenDone(done_.tag());
    version->service.Request(version->method, &context_, &wire_, calls.queue_, &accepted_);
  }

  void Drain() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    draining_ = true;
    if (reading_) Finish(ShuttingDown());
  }
  void Stop(StopReason) override { CutUnread(std::chrono::steady_clock::now()); }
  void CutUnread(SteadyTime before) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (written_ > before) return;
    written_ = SteadyTime::max();
    core_.log.CutOff(method(), PeerName(peer_));
    context_.TryCancel();
  }
  void CutUnsent(SteadyTime before) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (reading_ && read_since_ < before) Finish(MemoryShort());
  }
  const char* method() const override { return "ServerReflectionInfo"; }

 private:
  bool OnAccepted(bool ok, ThreadRole) {
    if (!ok) {  // the server ends; nothing else comes
      delete this;
      return false;
    }
    calls_.Offer(version_);
    peer_ = context_.peer();
    CountEnd(core_, peer_, EndOf(/*reset=*/true, context_.raw_deadline()));
    const absl::Status admitted = core_.under_way.Enter();
    const bool listed = admitted.ok() && core_.open_calls.Add(this);
    std::unique_lock<std::mutex> lock(mutex_);
    --pending_;
    entered_ = admitted.ok();
    listed_ = listed;
    if (listed && !draining_) {
      Read();
    } else {
      Finish(admitted.ok() ? ShuttingDown() : admitted);
    }
    return Leave(&lock);
  }
  bool OnRead(bool ok, ThreadRole) {
    std::unique_lock<std::mutex> lock(mutex_);
    --pending_;
    if (!std::exchange(reading_, false)) return Leave(&lock);  // finished meanwhile
    if (!ok) {
      Finish(context_.IsCancelled() ? absl::CancelledError("the client is gone") : absl::OkStatus());
      return Leave(&lock);
    }
    ++pending_;
    lock.unlock();
    const absl::Status status = Answer();
    lock.lock();
    --pending_;
    status.ok() ? Write() : Finish(status);
    return Leave(&lock);
  }
  absl::Status Answer() {
    if (auto s = answers_.Answer(&request_, &answer_); !s.ok()) return s;
    return answer_share_.TryHold(static_cast<int64_t>(answer_.Length())) ? absl::OkStatus() : TooMuchInFlight();
  }
  bool OnWritten(bool ok, ThreadRole) {
    std::unique_lock<std::mutex> lock(mutex_);
    --pending_;
    LetGoOfAnswer();
    if (!ok) {
      Finish(absl::CancelledError("the client is gone"));
    } else if (draining_) {
      Finish(ShuttingDown());
    } else {
      Read();
    }
    return Leave(&lock);
  }
  bool OnFinished(bool, ThreadRole) {
    std::unique_lock<std::mutex> lock(mutex_);
    --pending_;
    written_ = SteadyTime::max();
    return Leave(&lock);
  }
  bool OnDone(bool, ThreadRole) {
    std::unique_lock<std::mutex> lock(mutex_);
    --pending_;
    return Leave(&lock);
  }
  // The methods below need mutex_.
  void Read() {
    reading_ = true;
    read_since_ = std::chrono::steady_clock::now();
    ++pending_;
    wire_.Read(&request_, read_.tag());
  }
  void Write() {
    written_ = std::chrono::steady_clock::now();
    ++pending_;
    wire_.Write(answer_, write_.tag());
  }
  void Finish(const absl::Status& status) {
    reading_ = false;
    LetGoOfAnswer();
    written_ = std::chrono::steady_clock::now();
    ++pending_;
    wire_.Finish(ToGrpc(status), finished_.tag());
  }
  void LetGoOfAnswer() {
    written_ = SteadyTime::max();
    answer_.Clear();
    answer_share_.Hold(0);
  }
  bool Leave(std::unique_lock<std::mutex>* lock) {
    const bool gone = pending_ == 0;
    lock->unlock();
    if (!gone) return false;
    if (listed_) core_.open_calls.Remove(this);
    if (entered_) core_.under_way.Leave();
    delete this;
    return false;
  }

  const AliveCount::One alive_;
  ReflectionCalls& calls_;
  Core& core_;
  ReflectionCalls::Version* const version_;
  DescriptorAnswers answers_;
  grpc::ServerContext context_;
  Wire wire_{&context_};
  std::string peer_;  // once accepted, as gRPC names it

  std::mutex mutex_;  // guards what follows
  int pending_ = 2;   // operations, and work, under way: accepted_ and done_, which may come in any order
  bool entered_ = false, listed_ = false, reading_ = false, draining_ = false;
  SteadyTime read_since_, written_ = SteadyTime::max();
  grpc::ByteBuffer request_, answer_;
  InFlightShare answer_share_;

  EventOf<ReflectionCall> accepted_{this, &ReflectionCall::OnAccepted}, read_{this, &ReflectionCall::OnRead};
  EventOf<ReflectionCall> write_{this, &ReflectionCall::OnWritten}, finished_{this, &ReflectionCall::OnFinished};
  EventOf<ReflectionCall> done_{this, &ReflectionCall::OnDone};
};

ReflectionCalls::ReflectionCalls(Core& core, AliveCount& alive)
    : core_(core), alive_(alive), services_(ServiceNames()) {
  services_.insert(services_.end(), {"grpc.health.v1.Health", v1_.service.full_name(), v1alpha_.service.full_name()});
  DescriptorAnswers(services_).Build();
}

void ReflectionCalls::Register(grpc::ServerBuilder* builder) {
  builder->RegisterService(&v1_.service);
  builder->RegisterService(&v1alpha_.service);
}

void ReflectionCalls::Start(grpc::ServerCompletionQueue* queue) {
  queue_ = queue;
  Offer(&v1_);
  Offer(&v1alpha_);
}

void ReflectionCalls::Offer(Version* version) { new ReflectionCall(*this, version); }  // it deletes itself

}  // namespace seine
