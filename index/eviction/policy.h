// What an index evicts by itself: its scorer made, the room that a budget leaves, and directions kept for Q-Filters.
#ifndef SEINE_INDEX_EVICTION_POLICY_H_
#define SEINE_INDEX_EVICTION_POLICY_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "index/config/config.h"
#include "index/scorers/scorer.h"
#include "profile/filters.h"

namespace seine {

// How many tokens the heads of a layer hold.
struct HeadSizes {
  void Add(int64_t size) {
    ++heads;
    total += size;
    most = std::max(most, size);
  }
  int64_t heads = 0, total = 0, most = 0;
};

// Thread-safe.
class EvictionPolicy {
 public:
  // `config` is valid and outlives this.
  explicit EvictionPolicy(const IndexConfig* config);

  bool on() const { return config_.eviction.has_value(); }
  const EvictionConfig& settings() const { return *config_.eviction; }
  const Scorer& scorer() const { return *scorer_; }
  int kept_queries() const { return kept_queries_; }  // positions a layer; 0: none
  // Whether the scorer looks at those.
  bool by_queries() const { return kept_queries_ > 0 && scorer_->needs_queries(); }
  // Whether layers keep running sums of what their tokens are paid.
  bool accumulates() const { return scorer_ != nullptr && scorer_->accumulates(); }
  // What a layer keeps sums of.
  SumsWanted sums() const { return scorer_ == nullptr ? SumsWanted() : scorer_->sums(); }

  void Count(int64_t layers, int64_t tokens) const {
    evictions_.fetch_add(layers, std::memory_order_relaxed);
    tokens_.fetch_add(tokens, std::memory_order_relaxed);
  }
  int64_t evictions() const { return evictions_.load(std::memory_order_relaxed); }
  int64_t evicted_tokens() const { return tokens_.load(std::memory_order_relaxed); }

  // Tokens that a layer whose heads hold `sizes` of a sequence's `length` may take before it has to evict; at most 0:
  // now. Where a pyramid's upper layers have less the longer the sequence is, also before that comes to be too much.
  int64_t Room(const HeadSizes& sizes, int layer, int64_t length) const;

  // The profile that scorers see: the eviction's own, else the codec's; nullptr: none.
  const Profile* profile() const;
  // The filters of the settings' files, or those of the profile, carried to queries at positions
  // [0, FilterHorizon(config)] and computed once a layer. nullptr: there is neither.
  absl::StatusOr<const Filters*> FiltersOf(int layer) const;

 private:
  const IndexConfig& config_;
  std::shared_ptr<const Scorer> scorer_;
  int kept_queries_ = 0;
  mutable std::atomic<int64_t> evictions_{0}, tokens_{0};  // by whomever they were asked for
  mutable std::mutex mutex_;
  mutable std::map<int, Filters> filters_;  // by layer; guarded by mutex_, entries never change
};

}  // namespace seine

#endif  // SEINE_INDEX_EVICTION_POLICY_H_
