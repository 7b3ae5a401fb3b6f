// Encodes layers anew whose balanced transform serves them no longer: they have outgrown the positions that it was made
// for, or their queries look where it put no bits (query_fit.h). A thread of the index builds the new codes from the
// stored keys beside the old ones, a few windows at a time, so that a step waits for no more than one of these; then
// they change places.
#ifndef SEINE_INDEX_RETRIEVAL_REENCODER_H_
#define SEINE_INDEX_RETRIEVAL_REENCODER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "index/context.h"
#include "index/fair_mutex.h"
#include "index/sequence/sequence.h"
#include "kernels/stop.h"

namespace seine {

// Thread-safe.
class Reencoder {
 public:
  explicit Reencoder(const Context* context) : context_(*context) {}
  ~Reencoder();  // leaves what is under way undone
  Reencoder(const Reencoder&) = delete;
  Reencoder& operator=(const Reencoder&) = delete;

  // Queues a layer, to be looked at and encoded anew where that helps, unless it is queued. A layer cut meanwhile is
  // begun again; one whose sequence is deleted, or for which there is no memory, is left as it is until it is added
  // again. Call without the layer's mutex.
  void Add(const std::shared_ptr<Sequence>& sequence, int layer);

  // Before an answer of a layer: encodes it anew on this thread and the backend's where that is due (Layer::due), or
  // waits until the reencoder's own thread has. Where there is no memory for it the layer stays as it is. StopStatus()
  // where the call is stopped: then it is left to the reencoder's own thread. Call without the layer's mutex.
  absl::Status FinishDue(const std::shared_ptr<Sequence>& sequence, int layer);

  // Returns once no layer is queued or being encoded by the reencoder's own thread.
  void WaitUntilIdle() const;

  int64_t layers_done() const { return layers_done_.load(std::memory_order_relaxed); }
  int64_t unfit_layers_done() const { return unfit_layers_done_.load(std::memory_order_relaxed); }  // of them
  int64_t keys_done() const { return keys_done_.load(std::memory_order_relaxed); }                  // of one head each

 private:
  struct Job {
    std::weak_ptr<Sequence> sequence;  // weak: a deleted sequence ends its job
    int layer = 0;
  };
  enum class Outcome : uint8_t { kDone, kCut, kLeft, kStopped };
  // What a layer that has been cut `cuts` times is to be encoded with; nullptr: what it has.
  struct Plan {
    std::shared_ptr<const LayerCodecs> codecs;
    std::vector<double> losses;  // predicted of them, where they are made for the queries asked
    int64_t cuts = 0;
  };

  void Work();
  // `refit`: also for the queries asked, not for the length alone.
  Plan MakePlan(const Layer& layer, int number, bool refit) const;
  void Refit(const Layer& layer, int number, int64_t length, const std::shared_ptr<const LayerCodecs>& codecs,
             Plan* plan) const;
  static std::shared_ptr<FairMutex> TurnOf(const Job& job);
  Outcome Reencode(const Job& job, bool refit);
  void Finish(Layer* layer, Plan plan, int64_t keys);

  const Context& context_;
  std::atomic<int64_t> layers_done_{0}, unfit_layers_done_{0}, keys_done_{0};
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  mutable std::condition_variable idle_;
  std::deque<Job> jobs_;  // guarded by mutex_
  bool working_ = false;  // guarded by mutex_: the thread has a job
  std::thread thread_;    // guarded by mutex_; started by the first job
  const StopToken ends_;  // of that thread; stopped under mutex_
};

}  // namespace seine

#endif  // SEINE_INDEX_RETRIEVAL_REENCODER_H_
