#include "service/transport/decode_stream.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "kernels/stop.h"
#include "service/event_log.h"
#include "service/fields/error.h"
#include "service/scheduling/executor.h"
#include "service/scheduling/sharing.h"
#include "service/transport/counted_step.h"
#include "service/transport/message_bytes.h"
#include "service/transport/presented.h"
#include "service/transport/rpc.h"
#include "service/transport/rpc_methods.h"
#include "service/under_way/call_counts.h"
#include "service/under_way/calls_under_way.h"
#include "service/under_way/in_flight.h"
#include "service/under_way/open_calls.h"

namespace seine {
namespace {

using Clock = std::chrono::steady_clock;
// Processor time of the thread in a step, beside which a hand-over to another thread costs nothing. Time spent waiting
// does not count: a short step that is held up stays short.
constexpr auto kLong = kLongWork;
constexpr auto kSurelyLong = std::chrono::milliseconds(10);  // whatever else the thread had to do in it
constexpr int64_t kBytesPerMillisecond = 64 << 10;           // a guess at a stream's first step, from above
constexpr int kPatience = 10;                                // a step may wait for ten times what it takes itself

// Writes an answer. One of more than `kept` bytes is handed over; the buffers of others are used again.
absl::Status Written(v1::DecodeResponse* response, int64_t kept, grpc::ByteBuffer* bytes) {
  if (static_cast<int64_t>(response->ByteSizeLong()) <= kept) return Serialise(*response, bytes);
  try {
    return SerialiseLast(response, bytes);
  } catch (const std::bad_alloc&) {
    return absl::UnknownError("the server has no memory; whether the step was applied is not known");
  }
}

}  // namespace

DecodeStream::DecodeStream(DecodeLanes& lanes, DecodeLanes::Lane* lane)
    : lanes_(lanes),
      lane_(lane),
      core_(lanes.core_),
      session_(core_),
      request_share_(core_.in_flight),
      answer_share_(core_.in_flight) {
  context_.AsyncNotifyWhenDone(done_.tag());
  lanes.service_->Request(lanes.method_, &context_, &wire_, lane->queue.get(), &accepted_);
}

void DecodeStream::Drain() {
  const std::lock_guard<std::mutex> lock(mutex_);
  draining_ = true;
  if (reading_) Finish(ShuttingDown());
}

void DecodeStream::CutUnread(SteadyTime before) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (written_ > before) return;
  written_ = SteadyTime::max();
  core_.log.CutOff(method(), PeerInLog(PeerOf(context_), caller_.get()));
  context_.TryCancel();
}

void DecodeStream::Stop(StopReason reason) {
  token_->Stop(reason);
  CutUnread(Clock::now());
}

void DecodeStream::CutUnsent(SteadyTime before) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (reading_ && read_since_ < before) Finish(MemoryShort());
}

bool DecodeStream::AnswerWaits() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return answer_waits_;
}

bool DecodeStream::OnAccepted(bool ok, ThreadRole) {
  if (!ok) {  // the server ends; nothing else comes
    lanes_.Accepted(lane_, /*stays=*/false);
    delete this;
    return false;
  }
  lanes_.Accepted(lane_, /*stays=*/true);
  began_ = Clock::now();
  peer_ = context_.peer();
  core_.call_counts.Started(CallCounts::decode());
  token_.emplace(DeadlineOf(context_.raw_deadline()));
  const absl::Status admitted = core_.under_way.Enter();
  const bool listed = admitted.ok() && core_.open_calls.Add(this);
  const absl::Status allowed = listed ? Admit(core_, context_, kDecodeRole, &caller_) : absl::OkStatus();
  session_.SetPeer(PeerInLog(PeerOf(context_), caller_.get()));
  session_.SetCaller(caller_.get());
  std::unique_lock<std::mutex> lock(mutex_);
  --pending_;
  taken_ = true;
  entered_ = admitted.ok();
  listed_ = listed;
  if (cancelled_) token_->Stop(StopReason::kCancelled);
  if (!allowed.ok()) {
    Finish(allowed);
  } else if (listed_) {
    Read();
  } else {
    Finish(admitted.ok() ? ShuttingDown() : admitted);
  }
  Leave(&lock);
  return false;
}

void DecodeStream::Read() {
  if (draining_) return Finish(ShuttingDown());
  ++pending_;
  reading_ = true;
  read_since_ = Clock::now();
  wire_.Read(&read_bytes_, read_.tag());
}

bool DecodeStream::OnRead(bool ok, ThreadRole role) {
  std::unique_lock<std::mutex> lock(mutex_);
  --pending_;
  if (!std::exchange(reading_, false)) {  // finished meanwhile
    Leave(&lock);
    return false;
  }
  if (!ok) {
    ended_ = true;
    Finish(context_.IsCancelled() ? absl::CancelledError("the client is gone") : absl::OkStatus());
    Leave(&lock);
    return false;
  }
  ++pending_;
  received_ = true;
  lock.unlock();
  core_.call_counts.Received(CallCounts::decode());
  const std::chrono::nanoseconds expected = Expected();
  if (role == ThreadRole::kLane && expected <= kLong && !core_.sharing.IsOverFairShare(caller_.work())) {
    Step(role);
    return true;
  }
  HandOn(expected);
  return false;
}

void DecodeStream::HandOn(std::chrono::nanoseconds expected) {
  FairTask task;
  task.run = [this] { Step(ThreadRole::kFront); };
  task.drop = [this] { RefuseStep(); };
  task.tenant = caller_.work();
  task.cost = expected;
  task.is_long = expected > kLong;
  task.due = Clock::now() + kPatience * expected;
  Executor& others = task.is_long ? lanes_.long_steps_ : lanes_.short_steps_;
  if (!others.Submit(std::move(task))) RefuseStep();
}

void DecodeStream::RefuseStep() {
  std::unique_lock<std::mutex> lock(mutex_);
  --pending_;
  Finish(QueueFull(core_));
  Leave(&lock);
}

// One step alone may have cost more than the next will: memory that is touched for the first time.
std::chrono::nanoseconds DecodeStream::Expected() const {
  if (!last_.has_value()) {
    return std::chrono::nanoseconds(1'000'000 * static_cast<int64_t>(read_bytes_.Length()) / kBytesPerMillisecond);
  }
  return *last_ > kSurelyLong ? *last_ : std::min(*last_, before_last_.value_or(std::chrono::nanoseconds(0)));
}

void DecodeStream::Step(ThreadRole role) {
  const auto begin = ProcessorTime();
  absl::Status status;
  {
    const ShortWork work(core_.sharing, role == ThreadRole::kLane ? caller_.work() : nullptr);  // else the executor's
    status = TryStep();
  }
  before_last_ = std::exchange(last_, ProcessorTime() - begin);
  if (kept_ > kKeptBytes) {
    v1::DecodeRequest().Swap(&request_);
    kept_ = 0;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  request_share_.Hold(kept_);
  if (status.ok()) status = Written(&response_, kKeptBytes, &answer_);
  if (finishing_) {
    // The client is gone, or cut off.
  } else if (!status.ok()) {
    Finish(status);
  } else if (!announcing_) {
    Answer();
  } else {
    answer_waits_ = true;
    if (role == ThreadRole::kLane) {
      lock.unlock();
      lanes_.AwaitAnnouncement(lane_, this);
      lock.lock();
    }
  }
  --pending_;
  Leave(&lock);
}

// A step that is refused as a whole says so in its answer, and the stream goes on.
absl::Status DecodeStream::TryStep() {
  const auto bytes = static_cast<int64_t>(read_bytes_.Length());
  kept_ = std::max(kept_, bytes);
  bool admitted = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    admitted = request_share_.TryHold(2 * bytes);  // as it came, and parsed
  }
  response_.Clear();
  const absl::Status refused = admitted ? StillWanted(*token_) : TooMuchInFlight();
  if (admitted) {
    if (auto s = Parse(&read_bytes_, &request_); !s.ok()) return s;
  }
  read_bytes_.Clear();
  const AnswerShare::Scope answer(&answer_share_);
  CountedStep(core_, session_, *token_, refused, admitted, request_, &response_, [this] { Announce(); });
  return absl::OkStatus();
}

void DecodeStream::Announce() {
  v1::DecodeResponse announcement;
  announcement.set_step(request_.step());
  announcement.set_answer_imminent(true);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (finishing_ || !Serialise(announcement, &announcement_).ok()) return;
  announcing_ = true;
  ++pending_;
  written_ = Clock::now();
  core_.call_counts.Sent(CallCounts::decode());
  wire_.Write(announcement_, announced_.tag());
}

bool DecodeStream::OnAnnounced(bool, ThreadRole) {
  std::unique_lock<std::mutex> lock(mutex_);
  --pending_;
  announcing_ = false;
  written_ = SteadyTime::max();
  if (std::exchange(answer_waits_, false) && !finishing_) Answer();
  Leave(&lock);
  return false;
}

void DecodeStream::Answer() {
  answer_share_.Hold(static_cast<int64_t>(answer_.Length()));  // its step may have changed something: it must be told
  ++pending_;
  written_ = Clock::now();
  core_.call_counts.Sent(CallCounts::decode());
  wire_.Write(answer_, write_.tag());
}

bool DecodeStream::OnWritten(bool ok, ThreadRole) {
  std::unique_lock<std::mutex> lock(mutex_);
  --pending_;
  written_ = SteadyTime::max();
  answer_.Clear();
  answer_share_.Hold(0);
  ok ? Read() : Finish(absl::CancelledError("the client is gone"));
  Leave(&lock);
  return false;
}

void DecodeStream::Finish(const absl::Status& status) {
  reading_ = false;
  if (std::exchange(finishing_, true)) return;
  ++pending_;
  const bool entered = std::exchange(entered_, false);
  if (!entered) core_.call_counts.Ended(CallCounts::decode(), status.code(), began_);
  wire_.Finish(entered ? Finished(core_, {method(), PeerInLog(PeerOf(context_), caller_.get()), began_}, status)
                       : ToGrpc(status),
               finished_.tag());
}

bool DecodeStream::OnFinished(bool, ThreadRole) {
  std::unique_lock<std::mutex> lock(mutex_);
  --pending_;
  Leave(&lock);
  return false;
}

bool DecodeStream::OnDone(bool, ThreadRole) {
  const bool cancelled = context_.IsCancelled();
  std::unique_lock<std::mutex> lock(mutex_);
  --pending_;
  cancelled_ = cancelled;
  if (cancelled && taken_) token_->Stop(StopReason::kCancelled);
  Leave(&lock);
  return false;
}

void DecodeStream::Leave(std::unique_lock<std::mutex>* lock) {
  const bool gone = pending_ == 0;
  lock->unlock();
  if (!gone) return;
  CountEnd(core_, peer_, EndOf(/*reset=*/(cancelled_ || ended_) && !received_, context_.raw_deadline()));
  if (listed_) core_.open_calls.Remove(this);
  DecodeLanes& lanes = lanes_;
  DecodeLanes::Lane* const lane = lane_;
  delete this;
  lanes.Gone(lane);
}

}  // namespace seine
