#include "index/counts/thread_local_counters.h"

#include <mutex>
#include <new>

namespace seine {
namespace {

// ThreadPlaces of threads: which are free. The mutex orders what a thread wrote before what the next one in its place
// reads.
class ThreadPlaces {
 public:
  static constexpr int kCount = ThreadLocalCounters::kExclusive;
  int Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (int place = 0; place < kCount; ++place) {
      if (!taken_[place]) {
        taken_[place] = true;
        return place;
      }
    }
    return kCount;
  }
  void Leave(int place) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (place < kCount) taken_[place] = false;
  }

 private:
  std::mutex mutex_;
  bool taken_[kCount] = {};  // guarded by mutex_
};

ThreadPlaces& AllPlaces() {
  static constinit ThreadPlaces places;  // nothing is to be destroyed of it: threads may end after everything else
  return places;
}

// A thread's place, from its first count to its end.
struct PlaceLease {
  explicit PlaceLease(int* of_place) : place(of_place) { *place = AllPlaces().Take(); }
  ~PlaceLease() {
    AllPlaces().Leave(*place);
    *place = ThreadPlaces::kCount;  // what the thread counts from here on
  }
  int* const place;
};

}  // namespace

thread_local constinit int ThreadLocalCounters::place_ = ThreadLocalCounters::kNone;

int ThreadLocalCounters::Claim() {
  static thread_local const PlaceLease lease(&place_);
  return place_;
}

ThreadLocalCounters::ThreadLocalCounters(int count) : count_(count) {
  sets_[kExclusive] = new Cell[static_cast<size_t>(count)]();
}

ThreadLocalCounters::~ThreadLocalCounters() {
  for (const auto& set : sets_) delete[] set.load(std::memory_order_relaxed);
}

ThreadLocalCounters::Set ThreadLocalCounters::Make(int place) {
  Cell* const made = new (std::nothrow) Cell[static_cast<size_t>(count_)]();
  if (made == nullptr) return {sets_[kExclusive].load(std::memory_order_relaxed), true};
  sets_[place].store(made, std::memory_order_release);
  return {made, false};
}

int64_t ThreadLocalCounters::Read(int cell) const {
  int64_t sum = 0;
  for (const auto& set : sets_) {
    const Cell* const cells = set.load(std::memory_order_acquire);
    if (cells != nullptr) sum += cells[cell].load(std::memory_order_relaxed);
  }
  return sum;
}

void ThreadLocalCounters::Read(int first, std::vector<int64_t>* out) const {
  for (size_t i = 0; i < out->size(); ++i) (*out)[i] = Read(first + static_cast<int>(i));
}

}  // namespace seine
