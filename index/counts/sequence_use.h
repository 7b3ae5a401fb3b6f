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
  void Deleted(Counts* counts) const {
    const int64_t now = Now();
    counts->SequenceDeleted(now - made_, now - used_.load(std::memory_order_relaxed));
  }

 private:
  static constexpr int kNone = -1;
  static int64_t Now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
  }
  const int64_t made_ = Now();
  std::atomic<int64_t> used_{made_}, asked_{0};
  std::atomic<int> first_{kNone};  // the layer
};

}  // namespace seine

#endif  // SEINE_INDEX_COUNTS_SEQUENCE_USE_H_
