#include "service/transport/channel/shared_channel.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/thread_name.h"
#include "proto/channel/tensors.h"
#include "proto/channel/wait.h"
#include "service/access/caller.h"
#include "service/event_log.h"
#include "service/fields/error.h"
#include "service/scheduling/executor.h"
#include "service/scheduling/sharing.h"
#include "service/scheduling/tenant_work.h"
#include "service/transport/counted_step.h"
#include "service/transport/presented.h"
#include "service/transport/rpc.h"
#include "service/under_way/calls_under_way.h"
#include "service/under_way/in_flight.h"
#include "service/under_way/open_calls.h"

namespace seine {
namespace {

using channel::FrameKind;
using channel::Progress;
using Clock = std::chrono::steady_clock;

constexpr auto kChannelLook = std::chrono::milliseconds(1);  // one that spins looks so often whether it is to end
// It is woken, but for a client that moves it to another futex (FUTEX_REQUEUE).
constexpr std::chrono::nanoseconds kChannelSleep = std::chrono::milliseconds(500);
constexpr int64_t kChannelKept = 1 << 20;   // as DecodeStream's
constexpr size_t kChannelLong = 128 << 10;  // a step of so many bytes is long work

Clock::rep SinceEpoch(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

SharedChannel::SharedChannel(Core& core, ChannelMemory memory, std::string peer, bool polling,
                             std::function<void()> on_change)
    : core_(core),
      memory_(std::move(memory)),
      peer_(std::move(peer)),
      polling_(polling),
      on_change_(std::move(on_change)),
      began_(Clock::now()),
      session_(core),
      reader_({&memory_.header().requests, memory_.requests(), memory_.ring_bytes()},
              static_cast<uint32_t>(core.options.max_message_bytes)),
      writer_({&memory_.header().answers, memory_.answers(), memory_.ring_bytes()}),
      request_share_(core.in_flight),
      answer_share_(core.in_flight) {
  session_.SetPeer(peer_);
}

SharedChannel::~SharedChannel() {
  if (thread_.joinable()) thread_.join();
}

absl::Status SharedChannel::SetCaller(std::shared_ptr<const Caller> caller) {
  if (auto s = caller_.Enter(std::move(caller)); !s.ok()) return s;
  peer_ = PeerInLog(peer_, caller_.get());
  session_.SetPeer(peer_);
  session_.SetCaller(caller_.get());
  return absl::OkStatus();
}

void SharedChannel::Start() {
  thread_ = std::thread([this] { Run(); });
}

void SharedChannel::Wake() {
  channel::Wake(reader_.ring().word());
  channel::Wake(writer_.ring().word());
}

void SharedChannel::Cut(End end) {
  End none = End::kNone;
  end_.compare_exchange_strong(none, end);
  if (end == End::kGone) token_.Stop(StopReason::kCancelled);
  on_change_();
}

void SharedChannel::Drain() {
  draining_.store(true);
  on_change_();
}

void SharedChannel::Stop(StopReason reason) {
  token_.Stop(reason);
  Cut(End::kShutdown);
}

void SharedChannel::CutUnread(SteadyTime before) {
  if (unread_since_.load() > SinceEpoch(before) || end_.load() != End::kNone) return;
  core_.log.CutOff(method(), peer_);
  Cut(End::kUnread);
}

void SharedChannel::CutUnsent(SteadyTime before) {
  if (midway_since_.load() < SinceEpoch(before)) Cut(End::kUnsent);
}

absl::Status SharedChannel::StatusOf(End end) const {
  switch (end) {
    case End::kNone:
      return absl::OkStatus();
    case End::kGone:
      return absl::CancelledError("the client is gone");
    case End::kUnread:
      return absl::CancelledError("the client has not read its answer in time");
    case End::kUnsent:
      return MemoryShort();
    case End::kShutdown:
      break;
  }
  return ShuttingDown();
}

absl::Status SharedChannel::Broken() const {
  return FieldError("MALFORMED", "request", "the channel's memory holds what no client writes there");
}

void SharedChannel::Run() {
  NameThread("channel");
  absl::Status status = core_.under_way.Enter();
  const bool entered = status.ok();
  const bool listed = entered && core_.open_calls.Add(this);
  if (entered && !listed) status = ShuttingDown();
  if (listed) {
    try {
      status = Serve();
    } catch (const std::bad_alloc&) {  // for a message
      status = absl::UnknownError("the server has no memory; whether the step was applied is not known");
    }
  }
  v1::Status last;
  if (!status.ok()) ToProto(status, &last);
  writer_.TryWrite(FrameKind::kEnd, last.SerializeAsString());
  if (entered) Finished(core_, {method(), peer_, began_}, status);
  if (listed) core_.open_calls.Remove(this);
  ended_.store(true);
  on_change_();
}

absl::Status SharedChannel::Serve() {
  for (;;) {
    if (auto s = Receive(); !s.ok()) return s;
    if (reader_.kind() == FrameKind::kEnd) return absl::OkStatus();
    if (auto s = Step(); !s.ok()) return s;
    if (auto s = Send(); !s.ok()) return s;
    GiveBack();
  }
}

absl::Status SharedChannel::Receive() {
  const auto end = [this] { return draining_.load() ? ShuttingDown() : StatusOf(end_.load()); };
  for (absl::Status status = end();; status = end()) {
    if (!status.ok()) return status;
    const Progress progress = reader_.Read();
    midway_since_.store(reader_.midway() ? std::min(midway_since_.load(), SinceEpoch(Clock::now())) : kNever,
                        std::memory_order_relaxed);
    switch (progress) {
      case Progress::kDone:
        return absl::OkStatus();
      case Progress::kBroken:
        return Broken();
      case Progress::kTooLarge:
        return absl::ResourceExhaustedError(absl::StrCat("a step of ", reader_.announced_bytes(),
                                                         " bytes is larger than the message limit, ",
                                                         core_.options.max_message_bytes));
      case Progress::kWait:
        Await(reader_.ring().word(), reader_.ring().seen(), reader_.ring().sleeps());
    }
  }
}

void SharedChannel::Await(std::atomic<uint32_t>& word, uint32_t seen, std::atomic<uint32_t>& sleeps) {
  const Clock::time_point now = Clock::now();
  if (polling_) {
    channel::SpinWhileEqual(word, seen, now + kChannelLook);
    return;
  }
  const auto spin = core_.options.channel_spin;
  if (brisk_ && channel::SpinWhileEqual(word, seen, std::min(answered_, now) + spin)) return;
  if (end_.load() != End::kNone) return;
  channel::SleepWhileEqual(word, seen, sleeps,
                           draining_.load() ? std::chrono::nanoseconds(kChannelLook) : kChannelSleep);
}

// A step that is refused as a whole says so in its answer, and the channel goes on.
absl::Status SharedChannel::Step() {
  const Clock::time_point now = Clock::now();
  brisk_ = now < answered_ + 2 * core_.options.channel_spin;  // twice: it may have had to wake us
  const auto bytes = static_cast<int64_t>(reader_.bytes()), message = static_cast<int64_t>(reader_.message().size());
  const bool admitted = request_share_.TryHold(bytes + message);  // as it came, and parsed
  if (admitted && !request_->ParseFromString(reader_.message())) {
    return FieldError("MALFORMED", "request", absl::StrCat("the bytes are no message ", request_->GetTypeName()));
  }
  if (admitted && !channel::PutTensors(reader_.tensors(), request_.get())) {
    return FieldError("MALFORMED", "request",
                      absl::StrCat(reader_.tensors().size(), " tensors came apart, and the message has others"));
  }
  const absl::Status refused = admitted ? StillWanted(token_) : TooMuchInFlight();
  RunStep(refused, admitted);
  if (admitted) channel::TakeTensorsBack(reader_.tensors(), request_.get());
  return absl::OkStatus();
}

// A channel has a thread of its own, so its steps wait in no queue: those that are long, or beyond the tenant's share,
// make way.
void SharedChannel::RunStep(const absl::Status& refused, bool admitted) {
  const AnswerShare::Scope answer(&answer_share_);
  const auto run = [&] {
    CountedStep(core_, session_, token_, refused, admitted, *request_, response_.get(), [this] { Announce(); });
  };
  TenantWork* const tenant = caller_.work();
  if (tenant == nullptr) return run();
  // The processor's time is asked for (.3 us) only where the last step was long by the clock.
  const bool measured = wall_ > kLongWork;
  const auto began = Clock::now();
  const auto before = measured ? ProcessorTime() : std::chrono::nanoseconds::zero();
  const bool is_long = took_ > kLongWork || reader_.bytes() > kChannelLong;
  if (is_long || core_.sharing.IsOverFairShare(tenant)) {
    LongWork work(core_.sharing, tenant);
    run();
  } else {
    const ShortWork work(core_.sharing, tenant);
    run();
  }
  took_ = measured ? ProcessorTime() - before : std::chrono::nanoseconds::zero();
  wall_ = Clock::now() - began;
}

void SharedChannel::Announce() {
  v1::DecodeResponse announcement;
  announcement.set_step(request_->step());
  announcement.set_answer_imminent(true);
  writer_.TryWrite(FrameKind::kMessage, announcement.SerializeAsString());
}

absl::Status SharedChannel::Send() {
  channel::TakeTensors(response_.get(), &tensors_, &tensor_views_);
  response_->SerializeToString(&answer_);
  answer_bytes_ = static_cast<int64_t>(answer_.size());
  for (const std::string_view tensor : tensor_views_) answer_bytes_ += static_cast<int64_t>(tensor.size());
  answer_share_.Hold(answer_bytes_);  // its step may have changed something: it must be told
  for (Progress progress = writer_.Write(FrameKind::kMessage, answer_, tensor_views_);; progress = writer_.Continue()) {
    if (progress == Progress::kDone) break;
    if (progress != Progress::kWait) return Broken();
    if (auto s = StatusOf(end_.load()); !s.ok()) return s;
    if (unread_since_.load() == kNever) unread_since_.store(SinceEpoch(Clock::now()));
    Await(writer_.ring().word(), writer_.ring().seen(), writer_.ring().sleeps());
  }
  unread_since_.store(kNever, std::memory_order_relaxed);
  answer_share_.Hold(0);
  answered_ = Clock::now();
  return absl::OkStatus();
}

// Buffers are used again by the next step: they grow once, but no larger than kChannelKept. Messages are made anew
// here, where no client waits for it.
void SharedChannel::GiveBack() {
  request_.Renew();
  response_.Renew();
  auto kept = static_cast<int64_t>(reader_.held());
  if (kept > kChannelKept) {
    reader_.GiveBack();
    kept = 0;
  }
  if (answer_bytes_ > kChannelKept) {
    std::string().swap(answer_);
    std::vector<std::string>().swap(tensors_);
  }
  request_share_.Hold(kept);
}

}  // namespace seine
