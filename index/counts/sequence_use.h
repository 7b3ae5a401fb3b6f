// When a sequence was made, last used and last asked, for Counts: a few relaxed stores of a clock that costs 5 ns and
// ticks every few milliseconds. Thread-safe.
#ifndef SEINE_INDEX_COUNTS_SEQUENCE_USE_H_
#define SEINE_INDEX_COUNTS_SEQUENCE_USE_H_

#include <time.h>

#include <atomic>
#include <cstdint>

#include "index/counts/counts.h"

namespace seine {

class SequenceUse {
 public:
  // An append, or any other use but a retrieval.
  void Used() { used_.store(Now(), std::memory_order_relaxed); }
  // A retrieval of `layer`. A step asks layer after layer: the one that was asked first tells steps apart.
  void Asked(int layer, Counts* counts) {
    const int64_t now = Now();
    used_.store(now, std::memory_order_relaxed);
    int first = first_.load(std::memory_order_relaxed);
    if (first == kNone && first_.compare_exchange_strong(first, layer, std::memory_order_relaxed)) first = layer;
    if (layer != first) return;
    const int64_t before = asked_.exchange(now, std::memory_order_relaxed);
    if (before != 0) counts->SequenceAskedAgain(now - before);
  }
  // Any call on the sequence, for the idle tier: to the nanosecond, for it tells which was used first.
  void Touch() { touched_.store(PreciseNow(), std::memory_order_relaxed); }
  int64_t touched_ns() const { return touched_.load(std::memory_order_relaxed); }
  static int64_t PreciseNow() { return Now(CLOCK_MONOTONIC); }
  // Goes on from another; before others know this one.
  void TakeOver(const SequenceUse& o) {
    made_ = o.made_;
    used_ = o.used_.load();
    asked_ = o.asked_.load();
    first_ = o.first_.load();
    touched_ = o.touched_.load();
  }
  void Deleted(Counts* counts) const {
    const int64_t now = Now();
    counts->SequenceDeleted(now - made_, now - used_.load(std::memory_order_relaxed));
  }

 private:
  static constexpr int kNone = -1;
  static int64_t Now(clockid_t clock = CLOCK_MONOTONIC_COARSE) {
    timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
  }
  int64_t made_ = Now();
  std::atomic<int64_t> used_{made_}, asked_{0}, touched_{PreciseNow()};
  std::atomic<int> first_{kNone};  // the layer
};

}  // namespace seine

#endif  // SEINE_INDEX_COUNTS_SEQUENCE_USE_H_
