// Decode streams on threads of their own, by gRPC's asynchronous API. A lane is a completion queue and the one thread
// that takes events from it, so the thread that the kernel wakes for a step is the one that answers it: no hand-over
// (20-35 us each), and the step's data stay in one core's caches. A new stream goes to a lane with the fewest; streams
// beyond the lanes share them, one step at a time.
#ifndef SEINE_SERVICE_DECODE_LANES_H_
#define SEINE_SERVICE_DECODE_LANES_H_

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "seine/v1/retrieval_service.grpc.pb.h"
#include "service/core.h"

namespace seine {

class DecodeStream;

// Start, Drain and Stop are called once each, in this order, from one thread.
class DecodeLanes {
 public:
  // kSpin: a lane with an open stream never sleeps, which costs a core and saves the wake-up. kLinger: where steps
  // follow one another at once it looks for the next for a moment (150 us) before it sleeps; others find it asleep and
  // cost nothing.
  enum class Wait : uint8_t { kLinger, kSpin };
  using Wire = grpc::ServerAsyncReaderWriter<v1::DecodeResponse, v1::DecodeRequest>;
  // The generated service's RequestDecode: hands the next new stream to `queue`, which `tag` comes out of.
  using Request = std::function<void(grpc::ServerContext*, Wire*, grpc::ServerCompletionQueue* queue, void* tag)>;

  DecodeLanes(Core& core, int lanes, Wait wait, Request request);
  ~DecodeLanes();
  DecodeLanes(const DecodeLanes&) = delete;
  DecodeLanes& operator=(const DecodeLanes&) = delete;

  void Register(grpc::ServerBuilder* builder);
  void Start();  // the server is up
  // Streams that wait for their client end, the others after their step.
  void Drain();
  void Stop();  // the server has shut down

 private:
  struct Lane {
    std::unique_ptr<grpc::ServerCompletionQueue> queue;
    grpc::Alarm drain;  // its event, without a tag, tells the thread to drain
    std::thread thread;
    std::unordered_set<DecodeStream*> streams;  // open; of the thread alone
    std::deque<std::pair<void*, bool>> aside;   // events taken while another was waited for; of the thread alone
    size_t load = 0;                            // their number; guarded by mutex_
    bool offering = false;                      // a stream waits to be accepted; guarded by mutex_
  };

  void Offer();  // a lane takes new streams if none has fewer. Needs mutex_
  void Work(Lane* lane);
  static grpc::CompletionQueue::NextStatus Next(Lane* lane, gpr_timespec deadline, void** tag, bool* ok);
  void Handle(Lane* lane, void* tag, bool ok, bool draining);

  Core& core_;
  const Wait wait_;
  const Request request_;
  std::mutex mutex_;
  std::condition_variable changed_;  // a lane's load
  bool closed_ = false;              // guarded by mutex_
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_DECODE_LANES_H_
