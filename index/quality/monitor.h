// Live quality: a share of the items that are retrieved is answered a second time exactly, and counted.
//
// A call copies what it was asked and what it found, where its item is chosen; a thread of the monitor compares. That
// thread takes at most a share of one core and rests whenever it has run some milliseconds. It is a batch thread
// (SCHED_BATCH): it interrupts no other when it wakes. Its weight stays the usual one, for a starved thread would keep
// an append waiting for the lock that it holds.
#ifndef SEINE_INDEX_QUALITY_MONITOR_H_
#define SEINE_INDEX_QUALITY_MONITOR_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "index/counts/counts.h"
#include "index/quality/compare.h"
#include "index/quality/quality_options.h"
#include "index/quality/sample.h"
#include "kernels/stop.h"

namespace seine {

// Thread-safe. Serves any number of indexes; each calls Leave before it goes.
class QualityMonitor {
 public:
  static constexpr size_t kMostWaiting = 64;                // samples
  static constexpr int64_t kMostBytes = int64_t{16} << 20;  // of theirs

  // A layer of an index attends exactly from now on, for its answers lost such a share of attention.
  using SteppedBack = std::function<void(const IndexConfig& index, int layer, double lost)>;

  explicit QualityMonitor(const QualityOptions& options, SteppedBack stepped_back = {});
  ~QualityMonitor();  // what waits is not compared
  QualityMonitor(const QualityMonitor&) = delete;
  QualityMonitor& operator=(const QualityMonitor&) = delete;

  // Samples the items of a batch that was searched, by chance and, of Attend's, as layers' gates ask; before Take and
  // Unlock. Some nanoseconds an item that is not chosen. Items that are all dense, were searched exactly or gave their
  // positions are passed over: there is nothing to compare. So are those of an index that keeps no keys. What finds no
  // room is dropped and counted; gates ask while there is room. `attention`: of Attend; nullptr: of Retrieve.
  void Sample(const SearchBatch& batch, const AttentionParams* attention = nullptr) noexcept;

  // Drops the samples of an index that goes; returns once none of them is looked at.
  void Leave(const Context* context);

  // Returns once no sample waits or is being compared: for tests.
  void WaitUntilIdle() const;
  // Leaves samples waiting while `held` is true: for tests.
  void Hold(bool held);

 private:
  bool Chosen() const;
  bool WantedByGate(const SearchBatch& batch, size_t target, const AttentionParams& attention) const;
  void TellGate(const QualitySample& sample, const std::vector<HeadQuality>& heads);
  void Add(QualitySample sample);
  void Work();
  void CompareOne(const QualitySample& sample);
  void Rest();

  const QualityOptions options_;
  const SteppedBack stepped_back_;
  int64_t rested_at_ns_ = 0, told_ns_ = 0;  // of the thread's own time; the thread's alone
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  mutable std::condition_variable idle_;
  std::deque<QualitySample> waiting_;   // guarded by mutex_
  std::atomic<size_t> num_waiting_{0};  // of them; set under mutex_
  int64_t bytes_ = 0;                   // of them; guarded by mutex_
  const Context* working_ = nullptr;    // of the sample at work; guarded by mutex_
  std::optional<StopToken> stop_;       // of the sample at work; replaced under mutex_
  bool ends_ = false, held_ = false;    // guarded by mutex_
  std::thread thread_;                  // guarded by mutex_; started by the first sample
};

}  // namespace seine

#endif  // SEINE_INDEX_QUALITY_MONITOR_H_
