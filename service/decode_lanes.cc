#include "service/decode_lanes.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <tuple>
#include <utility>

#include "service/calls.h"
#include "service/rpc.h"

namespace seine {
namespace {

using Clock = std::chrono::steady_clock;
// Longer than a client on the same host takes from an answer to its next step, if that follows at once (its own wake-up
// and what gRPC does, 60-120 us); shorter than a layer of any but small models on a GPU.
constexpr auto kLinger = std::chrono::microseconds(150);

}  // namespace

// One stream, driven by its lane's thread alone: accept -> read -> (step, write) -> read ... -> finish. Each operation
// in flight is a tag; the stream goes when the last has come back.
class DecodeStream {
 public:
  struct Tag {
    DecodeStream* stream;
    void (DecodeStream::*done)(bool ok);
  };

  explicit DecodeStream(Core& core) : core_(core), session_(core) {}

  void Accept(const DecodeLanes::Request& request, grpc::ServerCompletionQueue* queue) {
    pending_ = 1;
    request(&context_, &wire_, queue, &accept_tag_);
  }
  bool accepted() const { return accepted_; }
  bool IsStep(const Tag* tag) const { return tag == &read_tag_; }
  bool gone() const { return pending_ == 0; }
  // The announcement's tag while it is on its way: the step's answer waits for it, and is written by its event.
  const void* announcing() const { return announcing_ ? &announced_tag_ : nullptr; }
  // Ends the stream if it waits for its client, else after its step.
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
    wire_.Finish(ToGrpc(ShuttingDown()), &finish_tag_);
  }
  void Next() {
    if (draining_) return Finish(ShuttingDown());
    ++pending_;
    reading_ = true;
    wire_.Read(&request_, &read_tag_);
  }
  void OnRead(bool ok) {
    --pending_;
    if (!std::exchange(reading_, false)) return;  // finished by Drain meanwhile
    if (!ok) return Finish(absl::OkStatus());
    session_.Step(request_, &response_, [this] { Announce(); });
    core_.calls.fetch_add(1, std::memory_order_relaxed);
    if (response_.has_status()) core_.errors.fetch_add(1, std::memory_order_relaxed);
    if (!announcing_) Answer();
  }
  void Announce() {
    announcement_.set_step(request_.step());
    announcement_.set_announcement(true);
    announcing_ = true;
    ++pending_;
    wire_.Write(announcement_, &announced_tag_);
  }
  void OnAnnounced(bool) {
    --pending_;
    announcing_ = false;
    Answer();
  }
  void Answer() {
    ++pending_;
    wire_.Write(response_, &write_tag_);
  }
  void OnWritten(bool ok) {
    --pending_;
    ok ? Next() : Finish(absl::CancelledError("the client is gone"));
  }
  void Finish(const absl::Status& status) {
    reading_ = false;
    ++pending_;
    wire_.Finish(Finished(core_, "Decode", status), &finish_tag_);
  }
  void OnFinished(bool) { --pending_; }

  Core& core_;
  DecodeSession session_;
  grpc::ServerContext context_;
  DecodeLanes::Wire wire_{&context_};
  v1::DecodeRequest request_;  // both are used again by every step: their buffers grow once
  v1::DecodeResponse response_, announcement_;
  Tag accept_tag_{this, &DecodeStream::OnAccepted}, read_tag_{this, &DecodeStream::OnRead};
  Tag write_tag_{this, &DecodeStream::OnWritten}, finish_tag_{this, &DecodeStream::OnFinished};
  Tag announced_tag_{this, &DecodeStream::OnAnnounced};
  int pending_ = 0;
  bool accepted_ = false, reading_ = false, announcing_ = false, draining_ = false;
};

DecodeLanes::DecodeLanes(Core& core, int lanes, Wait wait, Request request)
    : core_(core), wait_(wait), request_(std::move(request)) {
  for (int i = 0; i < lanes; ++i) lanes_.push_back(std::make_unique<Lane>());
}

DecodeLanes::~DecodeLanes() { Stop(); }

void DecodeLanes::Register(grpc::ServerBuilder* builder) {
  for (auto& lane : lanes_) lane->queue = builder->AddCompletionQueue();
}

void DecodeLanes::Start() {
  for (auto& lane : lanes_) lane->thread = std::thread([this, l = lane.get()] { Work(l); });
  const std::lock_guard<std::mutex> lock(mutex_);
  Offer();
}

void DecodeLanes::Drain() {
  for (auto& lane : lanes_) lane->drain.Set(lane->queue.get(), gpr_now(GPR_CLOCK_MONOTONIC), nullptr);
}

void DecodeLanes::Stop() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (std::exchange(closed_, true) || !lanes_.front()->thread.joinable()) return;
    // A queue takes no operation once it is shut down, and a stream that the server has cut ends by one.
    changed_.wait(lock, [this] {
      return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& l) { return l->load == 0 && !l->offering; });
    });
  }
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
    (new DecodeStream(core_))->Accept(request_, lane->queue.get());  // Handle deletes it
  }
}

void DecodeLanes::Work(Lane* lane) {
  bool draining = false, ok = false;
  void* tag = nullptr;
  Clock::time_point answered;  // the last step
  bool brisk = false;          // it followed the one before at once
  for (;;) {
    const bool linger = wait_ == Wait::kLinger && brisk && Clock::now() < answered + kLinger;
    const bool spin = (linger || wait_ == Wait::kSpin) && !lane->streams.empty();
    // A deadline in the past polls once.
    const auto deadline = spin ? gpr_time_0(GPR_CLOCK_MONOTONIC) : gpr_inf_future(GPR_CLOCK_MONOTONIC);
    switch (Next(lane, deadline, &tag, &ok)) {
      case grpc::CompletionQueue::TIMEOUT:
        if (linger) std::this_thread::yield();  // the core may be wanted
        break;
      case grpc::CompletionQueue::SHUTDOWN:
        return;
      case grpc::CompletionQueue::GOT_EVENT:
        if (tag != nullptr) {
          const auto* event = static_cast<const DecodeStream::Tag*>(tag);
          const bool step = event->stream->IsStep(event);
          if (step) brisk = Clock::now() < answered + 2 * kLinger;  // twice: it may have had to wake us
          Handle(lane, tag, ok, draining);
          if (step) answered = Clock::now();
        } else if (!std::exchange(draining, true)) {
          for (DecodeStream* stream : lane->streams) stream->Drain();
        }
    }
  }
}

// Events that were put aside come first.
grpc::CompletionQueue::NextStatus DecodeLanes::Next(Lane* lane, gpr_timespec deadline, void** tag, bool* ok) {
  if (lane->aside.empty()) return lane->queue->AsyncNext(tag, ok, deadline);
  std::tie(*tag, *ok) = lane->aside.front();
  lane->aside.pop_front();
  return grpc::CompletionQueue::GOT_EVENT;
}

void DecodeLanes::Handle(Lane* lane, void* tag, bool ok, bool draining) {
  const auto* event = static_cast<DecodeStream::Tag*>(tag);
  DecodeStream* stream = event->stream;
  const bool was_accepted = stream->accepted();
  if (draining) stream->Drain();  // what is accepted from now on ends at once
  (stream->*event->done)(ok);
  while (stream->announcing() != nullptr && lane->queue->Next(&tag, &ok)) {  // other streams' steps would hold it up
    if (tag != stream->announcing()) {
      lane->aside.emplace_back(tag, ok);
      continue;
    }
    event = static_cast<DecodeStream::Tag*>(tag);
    (stream->*event->done)(ok);
  }
  const bool opened = stream->accepted() && !was_accepted, gone = stream->gone();
  if (!opened && !gone) return;
  if (opened) lane->streams.insert(stream);
  if (gone) {
    lane->streams.erase(stream);
    delete stream;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!was_accepted) lane->offering = false;
  lane->load = lane->streams.size();
  Offer();
  changed_.notify_all();
}

}  // namespace seine
