// One same-host channel at the server: a thread that takes steps out of shared memory, runs them as a Decode stream's
// are run, and writes the answers. What the client writes into the memory, then or at the same time, can end its own
// channel and nothing else.
#ifndef SEINE_SERVICE_TRANSPORT_CHANNEL_SHARED_CHANNEL_H_
#define SEINE_SERVICE_TRANSPORT_CHANNEL_SHARED_CHANNEL_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "kernels/stop.h"
#include "proto/channel/block_message.h"
#include "proto/channel/frame.h"
#include "seine/v1/retrieval_service.pb.h"
#include "service/access/caller.h"
#include "service/calls/decode_session.h"
#include "service/transport/channel/channel_memory.h"
#include "service/under_way/in_flight.h"
#include "service/under_way/open_calls.h"

namespace seine {

// Start once; the destructor waits for the thread's end, which Gone brings about. The methods of OpenCall, Gone, Wake,
// cut, ending and ended may be called from any thread.
class SharedChannel final : public OpenCall {
 public:
  // `polling`: the thread never sleeps. `peer` is for the log. on_change() is called on any thread once the channel is
  // to end, and when it has ended; it must not wait.
  SharedChannel(Core& core, ChannelMemory memory, std::string peer, bool polling, std::function<void()> on_change);
  ~SharedChannel();
  // Before Start: whose steps come. RESOURCE_EXHAUSTED: the tenant has as many calls under way as it may.
  absl::Status SetCaller(std::shared_ptr<const Caller> caller);
  void Start();  // std::system_error: there is no thread

  void Gone() { Cut(End::kGone); }  // the client has hung up, or is not wanted any more
  // Wakes the thread where it sleeps. To be called until ended, once ending: a wake-up between its look at what ends
  // it and its sleep is lost.
  void Wake();
  bool cut() const { return end_.load() != End::kNone; }  // it ends now
  bool ending() const { return draining_.load() || cut(); }
  bool ended() const { return ended_.load(); }

  void Drain() override;
  void Stop(StopReason reason) override;
  void CutUnread(SteadyTime before) override;
  void CutUnsent(SteadyTime before) override;
  const char* method() const override { return "SharedMemory"; }

 private:
  // Why the thread is to end though the client has not said so. The first counts.
  enum class End : uint8_t { kNone, kGone, kUnread, kUnsent, kShutdown };
  using Ticks = std::chrono::nanoseconds::rep;
  static constexpr Ticks kNever = std::numeric_limits<Ticks>::max();

  void Run();
  absl::Status Serve();    // until the end, and why
  absl::Status Receive();  // a frame
  absl::Status Step();     // answers the message of the frame
  void RunStep(const absl::Status& refused, bool admitted);
  absl::Status Send();  // the answer
  void Announce();
  void GiveBack();
  // Waits until the word is not `seen`, or might not be.
  void Await(std::atomic<uint32_t>& word, uint32_t seen, std::atomic<uint32_t>& sleeps);
  void Cut(End end);
  absl::Status Broken() const;
  absl::Status StatusOf(End end) const;

  Core& core_;
  ChannelMemory memory_;
  std::string peer_;
  AdmittedCaller caller_;  // outlives the session
  const bool polling_;
  const std::function<void()> on_change_;
  const SteadyTime began_;
  DecodeSession session_;
  StopToken token_;
  channel::FrameReader reader_;
  channel::FrameWriter writer_;
  channel::BlockMessage<v1::DecodeRequest> request_;
  channel::BlockMessage<v1::DecodeResponse> response_;
  std::string answer_;
  std::vector<std::string> tensors_;  // of the answer, taken out of it
  std::vector<std::string_view> tensor_views_;
  InFlightShare request_share_;
  AnswerShare answer_share_;
  int64_t answer_bytes_ = 0;  // of the last one
  SteadyTime answered_;       // the last step
  bool brisk_ = false;        // it followed the one before at once
  // Times of the last step, by the clock and by a processor where it was measured. Kept where credentials are needed.
  std::chrono::nanoseconds wall_{0}, took_{0};

  std::atomic<End> end_{End::kNone};
  std::atomic<bool> draining_{false}, ended_{false};
  std::atomic<Ticks> midway_since_{kNever}, unread_since_{kNever};  // of the steady clock
  std::thread thread_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_CHANNEL_SHARED_CHANNEL_H_
