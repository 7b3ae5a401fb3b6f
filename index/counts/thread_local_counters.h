// Counters that many threads add to without waiting for one another, and that a scrape reads now and then.
//
// Each of the first kExclusive threads that count has cells of its own: it adds with a load and a store, about a
// nanosecond. All other threads share one more set and add atomically. A thread that ends leaves its place, counts
// included, to the next.
#ifndef SEINE_INDEX_COUNTS_THREAD_LOCAL_COUNTERS_H_
#define SEINE_INDEX_COUNTS_THREAD_LOCAL_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

namespace seine {

// Thread-safe.
class ThreadLocalCounters {
 public:
  static constexpr int kExclusive = 32;

  explicit ThreadLocalCounters(int count);  // zeros. std::bad_alloc
  ~ThreadLocalCounters();
  ThreadLocalCounters(const ThreadLocalCounters&) = delete;
  ThreadLocalCounters& operator=(const ThreadLocalCounters&) = delete;

  using Cell = std::atomic<int64_t>;
  // The cells that the calling thread adds to; for its next few adds.
  struct Set {
    Cell* cells;
    bool shared;  // others add here, too
    void Add(int cell, int64_t n) const {
      if (shared) {
        cells[cell].fetch_add(n, std::memory_order_relaxed);
      } else {
        cells[cell].store(cells[cell].load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
      }
    }
  };
  Set Local() {
    const int place = place_ == kNone ? Claim() : place_;
    Cell* const cells = sets_[place].load(std::memory_order_acquire);
    return cells != nullptr ? Set{cells, place == kExclusive} : Make(place);
  }
  void Add(int cell, int64_t n) { Local().Add(cell, n); }
  // The sum over all threads. What is added meanwhile may or may not be in it.
  int64_t Read(int cell) const;
  // Sums of cells [first, first + out->size()).
  void Read(int first, std::vector<int64_t>* out) const;

 private:
  static constexpr int kNone = -1;
  static int Claim();   // sets place_
  Set Make(int place);  // a set for the thread's place; the shared one where there is no memory

  static thread_local constinit int place_;
  const int count_;
  std::array<std::atomic<Cell*>, kExclusive + 1> sets_ = {};
};

}  // namespace seine

#endif  // SEINE_INDEX_COUNTS_THREAD_LOCAL_COUNTERS_H_
