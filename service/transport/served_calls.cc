#include "service/transport/served_calls.h"

#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "kernels/stop.h"
#include "service/access/access.h"
#include "service/access/caller.h"
#include "service/event_log.h"
#include "service/fields/error.h"
#include "service/scheduling/executor.h"
#include "service/scheduling/long_work.h"
#include "service/transport/presented.h"
#include "service/transport/rpc.h"
#include "service/under_way/call_counts.h"
#include "service/under_way/calls_under_way.h"
#include "service/under_way/in_flight.h"
#include "service/under_way/open_calls.h"

namespace seine {
namespace {

constexpr size_t kLightBytes = 64 << 10;  // a larger message of a light call is parsed by the executor

absl::Status NoMessage() { return FieldError("EMPTY", "request", "no message was sent"); }

}  // namespace

// One call: accept -> read -> work -> (read -> work ...) -> answer. It goes when all that is under way has come back.
class ServedCall final : public OpenCall {
 public:
  ServedCall(ServedCalls& served, const ServedCalls::Entry& entry)
      : alive_(served.alive_),
        served_(served),
        core_(served.core_),
        entry_(entry),
        handler_(entry.method->open(core_)),
        number_(CallCounts::NumberOf(entry.method->name)),
        request_share_(core_.in_flight),
        answer_share_(core_.in_flight) {
    context_.AsyncNotifyWhenDone(done_.tag());
    entry.service->Request(entry.number, &context_, &wire_, served.queue_, &accepted_);
  }

  void Drain() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    draining_ = true;
    if (state_ == State::kReading) Finish(ShuttingDown());
  }
  void Stop(StopReason reason) override {
    token_->Stop(reason);
    CutUnread(std::chrono::steady_clock::now());
  }
  void CutUnread(SteadyTime before) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state_ != State::kAnswering || answered_ > before) return;
    answered_ = SteadyTime::max();
    core_.log.CutOff(method(), PeerInLog(PeerOf(context_), caller_.get()));
    context_.TryCancel();
  }
  void CutUnsent(SteadyTime before) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state_ == State::kReading && reading_ < before) Finish(MemoryShort());
  }
  const char* method() const override { return entry_.method->name; }

 private:
  enum class State : uint8_t { kAccepting, kReading, kWorking, kAnswering };

  bool OnAccepted(bool ok, ThreadRole) {
    if (!ok) {  // the server ends; nothing else comes
      delete this;
      return false;
    }
    served_.Offer(entry_);
    peer_ = context_.peer();
    began_ = std::chrono::steady_clock::now();
    core_.call_counts.Started(number_);
    token_.emplace(DeadlineOf(context_.raw_deadline()));
    const absl::Status admitted = core_.under_way.Enter();
    const bool listed = admitted.ok() && core_.open_calls.Add(this);
    const absl::Status allowed = listed ? Admit(core_, context_, entry_.method->role, &caller_) : absl::OkStatus();
    std::unique_lock<std::mutex> lock(mutex_);
    --pending_;
    entered_ = admitted.ok();
    listed_ = listed;
    if (cancelled_) token_->Stop(StopReason::kCancelled);
    if (!allowed.ok()) {
      Finish(allowed);
    } else if (listed_ && !draining_) {
      Read();
    } else {
      Finish(admitted.ok() ? ShuttingDown() : admitted);
    }
    return Leave(&lock);
  }
  void Read() {
    if (entry_.method->weight == Weight::kHeavy && core_.memory_short.load(std::memory_order_relaxed)) {
      return Finish(MemoryShort());
    }
    state_ = State::kReading;
    reading_ = std::chrono::steady_clock::now();
    ++pending_;
    receiving_ = true;
    wire_.Read(&request_, read_.tag());
  }
  bool OnRead(bool ok, ThreadRole) {
    std::unique_lock<std::mutex> lock(mutex_);
    --pending_;
    receiving_ = false;
    if (state_ != State::kReading) return Leave(&lock);  // finished meanwhile
    if (!ok) {
      ended_ = true;
      if (context_.IsCancelled()) {
        Finish(absl::CancelledError("the client is gone"));
      } else {
        entry_.method->pieces ? Answer() : Finish(NoMessage());
      }
      return Leave(&lock);
    }
    core_.call_counts.Received(number_);
    received_ = true;
    const size_t bytes = request_.Length();
    if (!request_share_.TryHold(static_cast<int64_t>(bytes))) {
      Finish(TooMuchInFlight());
      return Leave(&lock);
    }
    state_ = State::kWorking;
    ++pending_;
    lock.unlock();
    if (entry_.method->weight == Weight::kLight && bytes <= kLightBytes) {
      Work();
    } else if (!Submit(Task(static_cast<int64_t>(bytes)))) {
      Refuse();
    }
    return false;
  }
  bool Submit(FairTask task) { return (task.is_long ? core_.long_calls : core_.executor).Submit(std::move(task)); }
  FairTask Task(int64_t bytes) {
    FairTask task;
    task.run = [this] { Work(); };
    task.drop = [this] { Refuse(); };
    task.tenant = caller_.work();
    if (task.tenant == nullptr) return task;
    const CostKind kind = CostKindOf(*entry_.method);
    task.cost = task.tenant->costs.Estimate(number_, kind, bytes);
    task.is_long = IsLongWork(kind, bytes, task.cost);
    return task;
  }
  // Its place in the queue is lost.
  void Refuse() {
    std::unique_lock<std::mutex> lock(mutex_);
    --pending_;
    Finish(QueueFull(core_));
    Leave(&lock);
  }
  void Work() {
    absl::Status status = StillWanted(*token_);
    {
      // Parsed, a message takes about as much again. It is given back before the next one of a stream is read.
      InFlightShare parsed(core_.in_flight);
      if (status.ok() && !parsed.TryHold(static_cast<int64_t>(request_.Length()))) status = TooMuchInFlight();
      if (status.ok()) status = Handle();
    }
    request_.Clear();
    std::unique_lock<std::mutex> lock(mutex_);
    --pending_;
    request_share_.Hold(0);
    if (!status.ok()) {
      Finish(status);
    } else if (!entry_.method->pieces) {
      Answer();
    } else if (draining_) {
      Finish(ShuttingDown());
    } else {
      answer_share_.Hold(static_cast<int64_t>(response_.Length()));  // the totals, which may grow
      Read();  // a fast sender waits in its own buffers until this piece is in the index
    }
    Leave(&lock);
  }
  absl::Status Handle() {
    const StopScope scope(&*token_);
    const CallerScope caller(caller_.get());
    const AnswerShare::Scope answer(&answer_share_);
    if (caller_.get() != nullptr) {
      if (caller_.get()->revoked()) return Unauthenticated();
      if (auto s = IsStep(*entry_.method) ? caller_.get()->tenant->TakeStep() : absl::OkStatus(); !s.ok()) return s;
    }
    if (caller_.work() == nullptr) return handler_(&request_, &response_);
    const auto bytes = static_cast<int64_t>(request_.Length());
    const auto before = ProcessorTime();
    const absl::Status status = handler_(&request_, &response_);
    if (status.ok()) {
      caller_.work()->costs.Took(number_, CostKindOf(*entry_.method), bytes, ProcessorTime() - before);
    }
    return status;
  }
  // The methods below need mutex_.
  void Answer() {
    const auto bytes = static_cast<int64_t>(response_.Length());
    if (entry_.method->changes) {
      answer_share_.Hold(bytes);
    } else if (!answer_share_.TryHold(bytes)) {
      return Finish(TooMuchInFlight());
    }
    state_ = State::kAnswering;
    answered_ = std::chrono::steady_clock::now();
    ++pending_;
    core_.call_counts.Sent(number_);
    wire_.WriteAndFinish(response_, grpc::WriteOptions(), End(absl::OkStatus()), finished_.tag());
  }
  void Finish(const absl::Status& status) {
    if (!receiving_) request_.Clear();  // the status may be long under way
    response_.Clear();
    request_share_.Hold(0);
    answer_share_.Hold(0);
    state_ = State::kAnswering;
    answered_ = std::chrono::steady_clock::now();
    ++pending_;
    wire_.Finish(End(status), finished_.tag());
  }
  grpc::Status End(const absl::Status& status) {
    if (!std::exchange(entered_, false)) {
      core_.call_counts.Ended(number_, status.code(), began_);
      return ToGrpc(status);
    }
    return Finished(core_, {method(), PeerInLog(PeerOf(context_), caller_.get()), began_}, status);
  }
  bool OnFinished(bool, ThreadRole) {
    std::unique_lock<std::mutex> lock(mutex_);
    --pending_;
    answered_ = SteadyTime::max();
    return Leave(&lock);
  }
  // The call is over, however it ended; a client that went away is known by it.
  bool OnDone(bool, ThreadRole) {
    const bool cancelled = context_.IsCancelled();
    std::unique_lock<std::mutex> lock(mutex_);
    --pending_;
    cancelled_ = cancelled;
    if (cancelled && state_ != State::kAccepting) token_->Stop(StopReason::kCancelled);
    return Leave(&lock);
  }
  bool Leave(std::unique_lock<std::mutex>* lock) {
    const bool gone = pending_ == 0;
    lock->unlock();
    if (!gone) return false;
    CountEnd(core_, peer_, EndOf(/*reset=*/(cancelled_ || ended_) && !received_, context_.raw_deadline()));
    if (listed_) core_.open_calls.Remove(this);
    delete this;
    return false;
  }

  const AliveCount::One alive_;
  ServedCalls& served_;
  Core& core_;
  const ServedCalls::Entry entry_;
  const MessageHandler handler_;
  const int number_;  // of the method, in the counts
  grpc::ServerContext context_;
  Wire wire_{&context_};
  std::optional<StopToken> token_;  // once accepted
  SteadyTime began_;
  std::string peer_;       // once accepted, as gRPC names it
  AdmittedCaller caller_;  // once accepted

  std::mutex mutex_;  // guards what follows
  State state_ = State::kAccepting;
  int pending_ = 2;      // operations, and work, under way: accepted_ and done_, which may come in any order
  bool listed_ = false;  // in open_calls
  bool entered_ = false, draining_ = false, cancelled_ = false, receiving_ = false;
  bool received_ = false, ended_ = false;              // a message; what the client sends
  SteadyTime reading_, answered_ = SteadyTime::max();  // since when
  grpc::ByteBuffer request_, response_ = EmptyMessage();
  InFlightShare request_share_;
  AnswerShare answer_share_;

  EventOf<ServedCall> accepted_{this, &ServedCall::OnAccepted}, read_{this, &ServedCall::OnRead};
  EventOf<ServedCall> finished_{this, &ServedCall::OnFinished}, done_{this, &ServedCall::OnDone};
};

void ServedCalls::Register(WireService* service) {
  for (const RpcMethod& method : RpcMethods()) {
    if (strcmp(method.service, service->full_name()) == 0) {
      entries_.push_back({&method, service, service->Add(method.name)});
    }
  }
}

void ServedCalls::Start(grpc::ServerCompletionQueue* queue) {
  queue_ = queue;
  for (const Entry& entry : entries_) Offer(entry);
}

void ServedCalls::Offer(const Entry& entry) { new ServedCall(*this, entry); }  // it deletes itself

}  // namespace seine
