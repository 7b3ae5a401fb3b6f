// Positions that evictions of one layer take out of its KV heads while a call runs, for the call's report.
#ifndef SEINE_INDEX_SEQUENCE_DROPPED_POSITIONS_H_
#define SEINE_INDEX_SEQUENCE_DROPPED_POSITIONS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "index/sequence/head_group_cache.h"

namespace seine {

// Nothing is collected, and nothing costs anything, unless Watch is called first. Not thread-safe.
class DroppedPositions {
 public:
  void Watch(int num_heads) { heads_.resize(num_heads); }
  bool watches() const { return !heads_.empty(); }

  // One eviction's positions, which are forgotten again unless it is done.
  class Eviction {
   public:
    explicit Eviction(DroppedPositions* of) : of_(*of) {
      for (const auto& head : of_.heads_) sizes_.push_back(head.size());
    }
    Eviction(const Eviction&) = delete;
    ~Eviction() {
      for (size_t h = 0; h < sizes_.size(); ++h) of_.heads_[h].resize(sizes_[h]);
    }
    // Adds those of a head that `kept`, places of its cache in ascending order, leaves out.
    void Add(int head, const HeadGroupCache& cache, absl::Span<const uint32_t> kept) {
      std::vector<int32_t>& dropped = of_.heads_[head];
      auto next = kept.begin();
      for (int64_t place = 0; place < cache.size(); ++place) {
        if (next != kept.end() && *next == place) {
          ++next;
        } else {
          dropped.push_back(cache.position(place));
        }
      }
    }
    void Done() { sizes_.clear(); }

   private:
    DroppedPositions& of_;
    std::vector<size_t> sizes_;
  };

  // Those of each head, ascending; none at all where no head has any.
  std::vector<std::vector<int32_t>> Take() {
    const auto is_empty = [](const auto& head) { return head.empty(); };
    if (std::all_of(heads_.begin(), heads_.end(), is_empty)) return {};
    for (auto& head : heads_) std::sort(head.begin(), head.end());
    return std::exchange(heads_, {});
  }

 private:
  std::vector<std::vector<int32_t>> heads_;  // [num_kv_heads], or empty
};

}  // namespace seine

#endif  // SEINE_INDEX_SEQUENCE_DROPPED_POSITIONS_H_
