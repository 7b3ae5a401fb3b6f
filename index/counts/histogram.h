// Histograms of times over ThreadLocalCounters. Buckets are ten a decade, so that percentiles are within some 12 %; a
// monitor gets three of them, 1, 2 and 5.
#ifndef SEINE_INDEX_COUNTS_HISTOGRAM_H_
#define SEINE_INDEX_COUNTS_HISTOGRAM_H_

#include <array>
#include <cstdint>
#include <vector>

#include "index/counts/thread_local_counters.h"

namespace seine {

inline constexpr int kDecades = 7, kBucketsADecade = 10;
inline constexpr int kBounds = kDecades * kBucketsADecade + 1;  // 1 us, 1.25 us, 1.6 us ... 10 s
// Upper bounds in nanoseconds, inclusive; what is above the last has a bucket of its own.
extern const std::array<int64_t, kBounds> kBucketBounds;
int BucketOf(int64_t ns);  // in [0, kBounds]

// What a histogram holds at a moment.
struct HistogramReading {
  std::vector<int64_t> counts = std::vector<int64_t>(kBounds + 1);  // by bucket
  int64_t sum_ns = 0;
  int64_t times = 1;  // a bucket's bound is so many times that of kBucketBounds

  int64_t count() const;
  double bound_seconds(int bucket) const;  // its upper bound; infinity of the last
  HistogramReading& operator+=(const HistogramReading& o);
};

// The time that a share of what was counted did not take, by straight lines within buckets; 0 where nothing was
// counted. `share` in [0, 1].
double Quantile(const HistogramReading& reading, double share);

// Thread-safe, as ThreadLocalCounters are: a view of kCells of them.
class Histogram {
 public:
  static constexpr int kCells = kBounds + 2;  // buckets, and the sum

  // `times`: buckets are so many times longer, 1 us to 10 s otherwise.
  Histogram(ThreadLocalCounters* cells, int first, int64_t times = 1) : cells_(cells), first_(first), times_(times) {}
  void Add(int64_t ns) const { AddTo(cells_->Local(), ns); }
  void AddTo(const ThreadLocalCounters::Set& set, int64_t ns) const {
    set.Add(first_ + BucketOf(times_ == 1 ? ns : ns / times_), 1);
    set.Add(first_ + kBounds + 1, ns);
  }
  HistogramReading Read() const;

 private:
  ThreadLocalCounters* cells_;
  int first_;
  int64_t times_;
};

}  // namespace seine

#endif  // SEINE_INDEX_COUNTS_HISTOGRAM_H_
