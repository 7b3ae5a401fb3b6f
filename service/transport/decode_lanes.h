// Decode streams on threads of their own. A lane is a completion queue and the one thread that takes events from it, so
// the thread that the kernel wakes for a step is the one that answers it: no hand-over (20-35 us each), and the step's
// data stay in one core's caches. A new stream goes to a lane with the fewest; streams beyond the lanes share them.
//
// A lane whose thread is busy with a long step must not keep others waiting: those that share it, and whatever else its
// sockets bring, connections included. So one more thread, the rescuer, looks after such lanes' queues until they are
// back, and hands steps that come meanwhile to other threads; a stream whose last steps were long goes to such a thread
// at once. Nothing waits for a client: what is written is taken by an event, however late.
#ifndef SEINE_SERVICE_TRANSPORT_DECODE_LANES_H_
#define SEINE_SERVICE_TRANSPORT_DECODE_LANES_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "service/core.h"
#include "service/scheduling/executor.h"
#include "service/transport/wire_service.h"

namespace seine {

class DecodeStream;

// Start and Stop are called once each, in this order, from one thread.
class DecodeLanes {
 public:
  // kSpin: a lane with an open stream never sleeps, which costs a core and saves the wake-up. kLinger: where steps
  // follow one another at once it looks for the next for a moment (150 us) before it sleeps; others find it asleep and
  // cost nothing.
  enum class Wait : uint8_t { kLinger, kSpin };

  DecodeLanes(Core& core, int lanes, Wait wait);
  ~DecodeLanes();
  DecodeLanes(const DecodeLanes&) = delete;
  DecodeLanes& operator=(const DecodeLanes&) = delete;

  // Before the server is built: the method of RetrievalService.
  void Register(grpc::ServerBuilder* builder, WireService* service);
  void Start();  // the server is up
  void Stop();   // the server has shut down
  // Whether all threads for long steps have been at one for at least `time`, and more wait.
  bool StuckFor(std::chrono::steady_clock::duration time) const { return long_steps_.StuckFor(time); }
  grpc::ServerCompletionQueue* queue(int lane) { return lanes_[lane]->queue.get(); }

 private:
  friend class DecodeStream;
  struct Lane {
    std::unique_ptr<grpc::ServerCompletionQueue> queue;
    std::thread thread;
    std::atomic<int64_t> busy_since{
        0};  // when its thread began what it does now, in ns of the steady clock; 0: it waits
    std::mutex aside_mutex;
    std::deque<std::pair<void*, bool>> aside;  // events taken while another was waited for; guarded by aside_mutex
    size_t load = 0;                           // streams; guarded by mutex_
    bool offering = false;                     // a stream waits to be accepted; guarded by mutex_
  };

  void Offer();  // a lane takes new streams if none has fewer. Needs mutex_
  void Accepted(Lane* lane, bool stays);
  void Gone(Lane* lane);
  void Work(Lane* lane);
  void Rescue();
  // Takes events from a lane's queue until the stream's announcement has come back or there is none at hand.
  void AwaitAnnouncement(Lane* lane, DecodeStream* stream);
  static grpc::CompletionQueue::NextStatus Next(Lane* lane, gpr_timespec deadline, void** tag, bool* ok);

  Core& core_;
  const Wait wait_;
  WireService* service_ = nullptr;
  int method_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;  // loads, and the end
  bool closed_ = false;              // guarded by mutex_
  size_t streams_ = 0;               // open; guarded by mutex_
  std::vector<std::unique_ptr<Lane>> lanes_;
  // Run steps that are likely to be long, the shorter the sooner; and others whose lane is busy, or whose tenant has
  // its share of the lanes already. A stream has one step at a time, so the queues have as many places as there may be
  // calls.
  Executor long_steps_, short_steps_;
  std::thread rescuer_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_DECODE_LANES_H_
