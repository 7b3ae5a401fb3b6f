// The decode stream over shared memory, and the choice between it and gRPC's. The caller's own thread writes a step
// into one ring and waits for the answer in the other: it spins, then sleeps in a futex. While it waits it looks now
// and then whether the server still lives, for nobody wakes who waits for a dead one.
#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/channel/channel.h"
#include "client/channel/fork.h"
#include "client/convert/convert.h"
#include "client/shared_memory/shared_memory_link.h"
#include "profile/io/endpoint.h"
#include "proto/channel/block_message.h"
#include "proto/channel/frame.h"
#include "proto/channel/tensors.h"
#include "proto/channel/wait.h"
#include "seine/v1/shared_memory_service.grpc.pb.h"

namespace seine::client {
namespace {

using channel::FrameKind;
using SharedClock = std::chrono::steady_clock;

constexpr std::chrono::nanoseconds kSharedLook = std::chrono::milliseconds(20);  // between looks at who sleeps
constexpr auto kSharedSpin = std::chrono::milliseconds(1);                       // and at who spins
constexpr auto kSharedAnnounced = std::chrono::microseconds(500);  // as the stream over gRPC spins for an announced one
constexpr std::chrono::nanoseconds kSharedRoom = std::chrono::milliseconds(1);  // a writer looks for answers so often

// A wait, cut where a clock's sum would overflow: a year is as good as for ever.
std::chrono::nanoseconds InTime(absl::Duration wait) {
  return absl::ToChronoNanoseconds(std::clamp(wait, absl::ZeroDuration(), absl::Hours(24 * 365)));
}

class SharedMemoryStream final : public DecodeStream {
 public:
  SharedMemoryStream(std::unique_ptr<SharedMemoryLink> link, int64_t most_sent, std::string endpoint,
                     const Options& options, Transport transport)
      : endpoint_(std::move(endpoint)),
        transport_(transport),
        timeout_(InTime(options.step_timeout)),
        spin_(InTime(options.spin)),
        most_sent_(most_sent),
        link_(std::move(link)),
        reader_({&link_->header().answers, link_->answers(), link_->ring_bytes()},
                static_cast<uint32_t>(std::clamp<int64_t>(options.max_message_bytes, 0, INT32_MAX))),
        writer_({&link_->header().requests, link_->requests(), link_->ring_bytes()}) {}

  absl::Status Write(const DecodeStep& step) override {
    if (end_) return Ended();
    if (absl::Status s = client::ToProto(step, &request_, &tensors_); !s.ok()) return s;
    request_.set_notify_early(transport_ == Transport::kSharedMemory);  // one that spins would gain nothing
    request_.SerializeToString(&sent_);
    auto bytes = static_cast<int64_t>(sent_.size());
    for (const std::string_view tensor : tensors_) bytes += static_cast<int64_t>(tensor.size());
    if (bytes > most_sent_) {
      return absl::InvalidArgumentError(
          absl::StrCat("step: ", bytes, " bytes, and the server takes at most ", most_sent_));
    }
    if (tensors_.size() > channel::kMostTensors) {
      return absl::InvalidArgumentError(
          absl::StrCat("step: ", tensors_.size(), " tensors, and a channel takes at most ", channel::kMostTensors));
    }
    return Send(FrameKind::kMessage) ? absl::OkStatus() : Ended();
  }

  absl::Status Read(DecodeAnswer* answer) override {
    bool announced = false;
    for (;; announced = true) {
      if (!Receive()) return Ended();
      if (!response_->answer_imminent()) break;
      spin_until_ = SharedClock::now() + kSharedAnnounced;
    }
    spin_until_ = {};
    absl::Status status = client::FromProto(*response_, answer);
    channel::TakeTensorsBack(came_, response_.get());
    came_ = {};
    answer->announced = announced;
    return status;
  }

  absl::Status Finish() override {
    sent_.clear();
    tensors_.clear();
    if (!end_ && Send(FrameKind::kEnd)) {
      while (Receive()) {
      }
    }
    return *end_;
  }

  Transport transport() const override { return transport_; }
  const std::string& fallback() const override { return fallback_; }

 private:
  struct Early {
    std::string message;
    std::vector<std::string> tensors;
  };

  absl::Status Ended() const { return end_->ok() ? absl::UnavailableError("the server has ended the stream") : *end_; }
  bool End(absl::Status status) {
    if (!end_) end_ = std::move(status);
    link_ = nullptr;  // the server stops what it does for us
    return false;
  }
  bool Broken() {
    return End(absl::InternalError(absl::StrCat("the same-host channel to ", endpoint_, " holds no answer")));
  }
  SharedClock::time_point Deadline() const { return SharedClock::now() + timeout_; }

  // Sends tensors_ and sent_. False: the stream has ended.
  bool Send(FrameKind kind) {
    const SharedClock::time_point deadline = Deadline();
    for (channel::Progress progress = writer_.Write(kind, sent_, tensors_);; progress = writer_.Continue()) {
      if (progress == channel::Progress::kDone) return true;
      if (progress != channel::Progress::kWait) return Broken();
      // The server may wait for room as well: an answer that is there is put aside for Read.
      channel::Progress read = reader_.Read();
      for (; read == channel::Progress::kDone; read = reader_.Read()) {
        if (reader_.kind() == FrameKind::kEnd) return EndedBy(reader_.message());
        early_.push_back({reader_.message(), {reader_.tensors().begin(), reader_.tensors().end()}});
      }
      if (read != channel::Progress::kWait) return Broken();
      auto& ring = writer_.ring();
      channel::SleepWhileEqual(ring.word(), ring.seen(), ring.sleeps(), kSharedRoom);
      if (!StillThere(deadline)) return false;
    }
  }

  // The next message to response_. False: none comes any more.
  bool Receive() {
    if (!early_.empty()) {
      taken_ = std::move(early_.front());
      early_.pop_front();
      return Parse(taken_.message, taken_.tensors);
    }
    if (end_) return false;
    const SharedClock::time_point deadline = Deadline();
    const SharedClock::time_point spin_until = std::max(spin_until_, SharedClock::now() + spin_);
    bool last = false;  // the server is gone: what it has left is read
    for (;;) {
      switch (reader_.Read()) {
        case channel::Progress::kDone:
          if (reader_.kind() == FrameKind::kEnd) return EndedBy(reader_.message());
          return Parse(reader_.message(), reader_.tensors());
        case channel::Progress::kWait:
          break;
        case channel::Progress::kBroken:
          return Broken();
        case channel::Progress::kTooLarge:
          return End(absl::ResourceExhaustedError(absl::StrCat("an answer of ", reader_.announced_bytes(),
                                                               " bytes is larger than Options::max_message_bytes")));
      }
      if (last) return Lost();
      if (Await(spin_until)) continue;
      if (link_->HungUp()) {
        last = true;
      } else if (SharedClock::now() >= deadline) {
        return Late();
      }
    }
  }

  bool Parse(const std::string& message, std::span<std::string> tensors) {
    came_ = tensors;
    return (response_.Renew().ParseFromString(message) && channel::PutTensors(tensors, response_.get())) || Broken();
  }

  // Waits for more of an answer. False: it is time to look whether the server is still there.
  bool Await(SharedClock::time_point spin_until) {
    auto& ring = reader_.ring();
    const SharedClock::time_point now = SharedClock::now();
    const bool spins = transport_ == Transport::kSharedMemoryPolling || now < spin_until;
    const SharedClock::time_point until =
        transport_ == Transport::kSharedMemoryPolling ? now + kSharedSpin : std::min(spin_until, now + kSharedSpin);
    if (spins) return channel::SpinWhileEqual(ring.word(), ring.seen(), until);
    channel::SleepWhileEqual(ring.word(), ring.seen(), ring.sleeps(), kSharedLook);
    return !ring.empty();
  }

  bool StillThere(SharedClock::time_point deadline) {
    if (link_->HungUp()) return Lost();
    return SharedClock::now() < deadline || Late();
  }
  bool Lost() {
    return End(absl::UnavailableError(absl::StrCat("lost the server at ", endpoint_, ": it has closed the channel")));
  }
  bool Late() { return End(absl::DeadlineExceededError(absl::StrCat("no answer from ", endpoint_, " in time"))); }
  bool EndedBy(const std::string& message) {
    v1::Status status;
    return status.ParseFromString(message) ? End(client::FromProto(status)) : Broken();
  }

  const std::string endpoint_, fallback_;
  const Transport transport_;
  const std::chrono::nanoseconds timeout_, spin_;
  const int64_t most_sent_;
  std::unique_ptr<SharedMemoryLink> link_;  // nullptr: the stream has ended
  channel::FrameReader reader_;
  channel::FrameWriter writer_;
  SharedClock::time_point spin_until_;  // an answer has been announced
  std::deque<Early> early_;             // answers that came before they were asked for
  Early taken_;                         // of them
  v1::DecodeRequest request_;
  channel::BlockMessage<v1::DecodeResponse> response_;
  std::string sent_;
  TensorViews tensors_;          // of the step that is sent, in the caller's memory
  std::span<std::string> came_;  // the tensors of response_
  std::optional<absl::Status> end_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeStream>> OpenSharedMemoryStream(const std::shared_ptr<grpc::Channel>& channel,
                                                                     const std::string& endpoint,
                                                                     const Options& options, Transport transport) {
  if (SocketPath(endpoint).empty()) {
    return absl::FailedPreconditionError(absl::StrCat("shared memory needs a Unix socket, and ", endpoint, " is none"));
  }
  const auto stub = v1::SharedMemoryService::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + options.connect_timeout));
  v1::OpenChannelRequest request;
  v1::OpenChannelResponse offer;
  request.set_ring_bytes(options.ring_bytes);
  if (absl::Status s = FromGrpc(stub->OpenChannel(&context, request, &offer), endpoint); !s.ok()) return s;
  auto link = SharedMemoryLink::Open(offer.path(), offer.token(), offer.ring_bytes(), options.connect_timeout);
  if (!link.ok()) return link.status();
  return std::make_unique<SharedMemoryStream>(*std::move(link), offer.max_message_bytes(), endpoint, options,
                                              transport);
}

namespace {

absl::StatusOr<std::unique_ptr<DecodeStream>> Guarded(absl::StatusOr<std::unique_ptr<DecodeStream>> stream) {
  if (!stream.ok()) return stream;
  return OfThisProcess(*std::move(stream));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeStream>> OpenAnyDecodeStream(const std::shared_ptr<grpc::Channel>& channel,
                                                                  const std::string& endpoint, const Options& options,
                                                                  Transport transport) {
  switch (transport) {
    case Transport::kBlocking:
    case Transport::kPolling:
      return Guarded(OpenDecodeStream(endpoint, options, transport, ""));
    case Transport::kSharedMemory:
    case Transport::kSharedMemoryPolling:
      return Guarded(OpenSharedMemoryStream(channel, endpoint, options, transport));
    case Transport::kAuto:
      break;
  }
  auto shared = OpenSharedMemoryStream(channel, endpoint, options, Transport::kSharedMemory);
  if (shared.ok()) return Guarded(std::move(shared));
  return Guarded(OpenDecodeStream(endpoint, options, Transport::kBlocking, std::string(shared.status().message())));
}

}  // namespace seine::client
