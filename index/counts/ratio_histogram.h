// Histograms of shares in [0, 1] over ThreadLocalCounters: recall, attention mass. Buckets are narrow near 1, where
// they matter.
#ifndef SEINE_INDEX_COUNTS_RATIO_HISTOGRAM_H_
#define SEINE_INDEX_COUNTS_RATIO_HISTOGRAM_H_

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "index/counts/thread_local_counters.h"

namespace seine {

inline constexpr std::array<double, 17> kRatioBounds = {.1, .2,  .3,  .4,  .5,  .6,  .7,   .8, .85,
                                                        .9, .92, .94, .96, .98, .99, .995, 1};

// What a ratio histogram holds at a moment.
struct RatioReading {
  std::array<int64_t, kRatioBounds.size()> counts = {};  // by bucket; bounds are inclusive
  int64_t sum_millionths = 0;

  int64_t count() const {
    int64_t all = 0;
    for (const int64_t n : counts) all += n;
    return all;
  }
  double sum() const { return static_cast<double>(sum_millionths) * 1e-6; }
  RatioReading& operator+=(const RatioReading& o) {
    for (size_t b = 0; b < counts.size(); ++b) counts[b] += o.counts[b];
    sum_millionths += o.sum_millionths;
    return *this;
  }
};

// Thread-safe, as ThreadLocalCounters are: a view of kCells of them.
class RatioHistogram {
 public:
  static constexpr int kCells = static_cast<int>(kRatioBounds.size()) + 1;  // buckets, and the sum in millionths

  RatioHistogram(ThreadLocalCounters* cells, int first) : cells_(cells), first_(first) {}
  // A share that rounding has put outside [0, 1] counts as the nearest within.
  void Add(double share) const {
    const double inside = share > 0 ? (share < 1 ? share : 1) : 0;
    int bucket = 0;
    while (inside > kRatioBounds[static_cast<size_t>(bucket)]) ++bucket;
    const ThreadLocalCounters::Set set = cells_->Local();
    set.Add(first_ + bucket, 1);
    set.Add(first_ + kCells - 1, std::llround(inside * 1e6));
  }
  RatioReading Read() const {
    RatioReading out;
    for (size_t b = 0; b < out.counts.size(); ++b) out.counts[b] = cells_->Read(first_ + static_cast<int>(b));
    out.sum_millionths = cells_->Read(first_ + kCells - 1);
    return out;
  }

 private:
  ThreadLocalCounters* cells_;
  int first_;
};

}  // namespace seine

#endif  // SEINE_INDEX_COUNTS_RATIO_HISTOGRAM_H_
