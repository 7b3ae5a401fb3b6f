// Where a layer's scores lie while tokens are selected, kept from one eviction to the next: memory that is fresh from
// the system costs a page fault every thousand scores, a fifth of the time that it takes to score keys of head_dim 128.
#ifndef SEINE_INDEX_EVICTION_SCORE_ROOM_H_
#define SEINE_INDEX_EVICTION_SCORE_ROOM_H_

#include <mutex>
#include <utility>
#include <vector>

#include "index/scorers/scorer.h"

namespace seine {

// Thread-safe.
class ScoreRoom {
 public:
  static constexpr size_t kMost = 2;  // sets that are kept while nobody has them

  // The caller's alone until it ends. What it holds at first is left over from others.
  class Lease {
   public:
    Lease(ScoreRoom* room, Scores scores) : room_(room), scores_(std::move(scores)) {}
    Lease(const Lease&) = delete;
    ~Lease() { room_->Return(std::move(scores_)); }
    Scores* get() { return &scores_; }

   private:
    ScoreRoom* const room_;
    Scores scores_;
  };

  Lease Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    Scores scores;
    if (!free_.empty()) {
      scores = std::move(free_.back());
      free_.pop_back();
    }
    return {this, std::move(scores)};
  }

 private:
  void Return(Scores scores) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.size() < kMost) free_.push_back(std::move(scores));
  }

  std::mutex mutex_;
  std::vector<Scores> free_;  // guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_INDEX_EVICTION_SCORE_ROOM_H_
