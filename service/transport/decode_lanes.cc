#include "service/transport/decode_lanes.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <tuple>
#include <utility>

#include "kernels/machine/limits.h"
#include "kernels/thread_name.h"
#include "service/scheduling/sharing.h"
#include "service/transport/decode_stream.h"
#include "service/under_way/calls_under_way.h"

namespace seine {
namespace {

using Clock = std::chrono::steady_clock;
// Longer than a client on the same host takes from an answer to its next step, if that follows at once (its own wake-up
// and what gRPC does, 60-120 us); shorter than a layer of any but small models on a GPU.
constexpr auto kLinger = std::chrono::microseconds(150);
constexpr int kShortSteps = 2;                               // at once, besides the lanes'
constexpr auto kRound = std::chrono::milliseconds(4);        // of the rescuer, while streams are open
constexpr auto kBusyRound = std::chrono::microseconds(500);  // and while a lane is busy for long
constexpr auto kBusy = std::chrono::milliseconds(2);         // from here on

// At once: they compute, and more than the cores would only take turns.
int LongSteps() { return std::clamp(DefaultThreads(), 2, 16); }

int64_t Nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

DecodeLanes::DecodeLanes(Core& core, int lanes, Wait wait)
    : core_(core),
      wait_(wait),
      long_steps_(LongSteps(), static_cast<int>(CallsUnderWay::kMost), core.sharing, "long-steps"),
      short_steps_(kShortSteps, static_cast<int>(CallsUnderWay::kMost), core.sharing, "short-steps") {
  for (int i = 0; i < lanes; ++i) lanes_.push_back(std::make_unique<Lane>());
}

DecodeLanes::~DecodeLanes() { Stop(); }

void DecodeLanes::Register(grpc::ServerBuilder* builder, WireService* service) {
  service_ = service;
  method_ = service->Add("Decode");
  for (auto& lane : lanes_) lane->queue = builder->AddCompletionQueue();
}

void DecodeLanes::Start() {
  for (auto& lane : lanes_) lane->thread = std::thread([this, l = lane.get()] { Work(l); });
  rescuer_ = std::thread([this] { Rescue(); });
  const std::lock_guard<std::mutex> lock(mutex_);
  Offer();
}

void DecodeLanes::Stop() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (std::exchange(closed_, true) || !rescuer_.joinable()) return;
    changed_.notify_all();
    // A queue takes no operation once it is shut down, and a stream that the server has cut ends by one.
    changed_.wait(lock, [this] {
      return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& l) { return l->load == 0 && !l->offering; });
    });
  }
  rescuer_.join();
  for (auto& lane : lanes_) {
    lane->queue->Shutdown();
    lane->thread.join();
  }
}

void DecodeLanes::Offer() {
  if (closed_) return;
  size_t fewest = std::numeric_limits<size_t>::max();
  for (const auto& lane : lanes_) fewest = std::min(fewest, lane->load);
  for (auto& lane : lanes_) {
    if (lane->load > fewest || std::exchange(lane->offering, true)) continue;
    new DecodeStream(*this, lane.get());  // it deletes itself
  }
}

void DecodeLanes::Accepted(Lane* lane, bool stays) {
  const std::lock_guard<std::mutex> lock(mutex_);
  lane->offering = false;
  if (stays) {
    ++lane->load;
    ++streams_;
    Offer();
  }
  changed_.notify_all();
}

void DecodeLanes::Gone(Lane* lane) {
  const std::lock_guard<std::mutex> lock(mutex_);
  --lane->load;
  --streams_;
  Offer();
  changed_.notify_all();
}

void DecodeLanes::Work(Lane* lane) {
  NameThread("lane");
  bool ok = false;
  void* tag = nullptr;
  Clock::time_point answered;  // the last step
  bool brisk = false;          // it followed the one before at once
  bool open = false;           // there are streams
  for (;;) {
    const bool linger = wait_ == Wait::kLinger && brisk && Clock::now() < answered + kLinger;
    if (wait_ == Wait::kSpin) {
      const std::lock_guard<std::mutex> lock(mutex_);
      open = lane->load > 0;
    }
    const bool spin = linger || (wait_ == Wait::kSpin && open);
    // A deadline in the past polls once.
    const auto deadline = spin ? gpr_time_0(GPR_CLOCK_MONOTONIC) : gpr_inf_future(GPR_CLOCK_MONOTONIC);
    switch (Next(lane, deadline, &tag, &ok)) {
      case grpc::CompletionQueue::TIMEOUT:
        if (linger) std::this_thread::yield();  // the core may be wanted
        break;
      case grpc::CompletionQueue::SHUTDOWN:
        return;
      case grpc::CompletionQueue::GOT_EVENT: {
        const auto now = Clock::now();
        lane->busy_since.store(Nanoseconds(now), std::memory_order_relaxed);
        const bool step = static_cast<Event*>(tag)->OnEvent(ok, ThreadRole::kLane);
        lane->busy_since.store(0, std::memory_order_relaxed);
        if (!step) break;
        brisk = now < answered + 2 * kLinger;  // twice: it may have had to wake us
        answered = Clock::now();
      }
    }
  }
}

// Events that were put aside come first.
grpc::CompletionQueue::NextStatus DecodeLanes::Next(Lane* lane, gpr_timespec deadline, void** tag, bool* ok) {
  {
    const std::lock_guard<std::mutex> lock(lane->aside_mutex);
    if (!lane->aside.empty()) {
      std::tie(*tag, *ok) = lane->aside.front();
      lane->aside.pop_front();
      return grpc::CompletionQueue::GOT_EVENT;
    }
  }
  return lane->queue->AsyncNext(tag, ok, deadline);
}

void DecodeLanes::AwaitAnnouncement(Lane* lane, DecodeStream* stream) {
  void* tag = nullptr;
  bool ok = false;
  while (stream->AnswerWaits() &&
         lane->queue->AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC)) == grpc::CompletionQueue::GOT_EVENT) {
    if (tag == stream->announced_tag()) {
      static_cast<Event*>(tag)->OnEvent(ok, ThreadRole::kFront);
      continue;
    }
    const std::lock_guard<std::mutex> lock(lane->aside_mutex);  // other streams' steps would hold the answer up
    lane->aside.emplace_back(tag, ok);
  }
}

void DecodeLanes::Rescue() {
  NameThread("rescuer");
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closed_ || streams_ > 0; });
    if (closed_ && streams_ == 0) return;
    lock.unlock();
    bool busy = false;
    for (auto& lane : lanes_) {
      const int64_t since = lane->busy_since.load(std::memory_order_relaxed);
      if (since == 0 || Nanoseconds(Clock::now()) - since < std::chrono::nanoseconds(kBusy).count()) continue;
      busy = true;
      void* tag = nullptr;
      bool ok = false;
      while (Next(lane.get(), gpr_time_0(GPR_CLOCK_MONOTONIC), &tag, &ok) == grpc::CompletionQueue::GOT_EVENT) {
        static_cast<Event*>(tag)->OnEvent(ok, ThreadRole::kFront);
      }
    }
    std::this_thread::sleep_for(busy ? std::chrono::nanoseconds(kBusyRound) : std::chrono::nanoseconds(kRound));
    lock.lock();
  }
}

}  // namespace seine
