// The items of one call whose checks are passed, their layers locked, and the search of their zones: what Retrieve and
// Attend share.
#ifndef SEINE_INDEX_RETRIEVAL_SEARCH_BATCH_H_
#define SEINE_INDEX_RETRIEVAL_SEARCH_BATCH_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "index/context.h"
#include "index/index.h"
#include "index/sequence/layer_lock.h"
#include "index/sequence/sequence.h"

namespace seine {

inline const float* QueriesOf(const RetrieveItem& item) {
  return item.device != nullptr ? item.device->queries : item.queries;
}

// Not thread-safe. Add every item, then Search, then read what was found until Unlock.
class SearchBatch {
 public:
  struct Target {
    std::shared_ptr<Sequence> sequence;
    const RetrieveItem* item = nullptr;
    size_t place = 0;  // of the item in the call
    const Layer& layer() const { return *sequence->layers[item->layer]; }
  };

  // `counted`: the search counts in the index's stages and candidates, as a call's does.
  explicit SearchBatch(const Context* context, bool counted = true);
  ~SearchBatch();
  SearchBatch(const SearchBatch&) = delete;

  const Context& context() const { return context_; }
  const SearchParams& params() const { return params_; }  // of the search

  void Add(std::shared_ptr<Sequence> sequence, const RetrieveItem* item, size_t place) {
    targets_.push_back({std::move(sequence), item, place});
  }
  const std::vector<Target>& targets() const { return targets_; }
  // Items whose positions are wrong, which Search takes out of the targets: INVALID_ARGUMENT, by their place.
  struct Refused {
    size_t place;
    absl::Status status;
  };
  const std::vector<Refused>& refused() const { return refused_; }

  // Locks the layers of all targets, shared, and searches every head that has a zone, unless the item gives positions.
  // RESOURCE_EXHAUSTED, UNAVAILABLE: the backend could not; StopStatus(). Nothing is locked then.
  absl::Status Search(const SearchParams& params, const ProgressCallback& progress);
  // The same in steps, where a device attends what it finds: Prepare locks and says which heads are searched, by which
  // search of the call (SearchOf; negative: none) and over how many keys; then Attend searches, with `tasks` beside it.
  // Errors as of Search; of either step nothing is locked then.
  absl::Status Prepare(const SearchParams& params);
  int SearchOf(size_t target, int kv_head) const {
    const int slot = Slot(target, kv_head);
    return slot < static_cast<int>(tasks_.size()) ? slot : -1;
  }
  absl::Status Attend(DeviceAttention* device, std::vector<AttendTask>* tasks);
  // Has the layers of all targets keep what they were asked, for eviction; before Unlock.
  void KeepQueries() const {
    for (const Target& target : targets_) {
      if (target.item->device == nullptr) target.layer().KeepQueries(target.item->queries);
    }
  }
  void Unlock() { locks_.clear(); }

  // Keys of a head's zone that were searched, or that the item's positions are of; 0: all that it holds is dense. And
  // what was found, in places (head_group_cache.h).
  int64_t ZoneKeys(size_t target, int kv_head) const;
  bool Searched(size_t target, int kv_head) const { return Slot(target, kv_head) >= 0; }
  const SearchOutput& Found(size_t target, int kv_head) const { return outputs_[Slot(target, kv_head)]; }
  // kDense where no head of a target was searched; kExact where positions were given, or every head that was searched
  // is scored whole.
  SearchMode ModeOf(size_t target) const;
  // ItemAnswer::codes_stale.
  bool CodesStale(size_t target) const;
  // Moves what was found of a target into an answer, in positions.
  void ReadAnswer(size_t target, ItemAnswer* answer);

 private:
  int Slot(size_t target, int kv_head) const {
    return slots_[target * context_.config.geometry.num_kv_heads + kv_head];
  }
  absl::Status Lock();
  absl::Status PrepareSearches();
  absl::Status After(Outcome outcome);
  void TakeGiven(size_t target, int kv_head);
  size_t SetsOfHead() const { return params_.scope == Scope::kPerQHead ? context_.config.geometry.group() : 1; }
  absl::Status CheckPositions(const Target& target) const;
  void RefuseWrong();
  void Count() const;  // what the search took
  void StartAnswer(size_t target, ItemAnswer* answer) const;

  const Context& context_;
  const bool counted_;
  SearchParams params_;
  std::vector<Target> targets_;
  std::vector<Refused> refused_;
  std::vector<ReadLock> locks_;
  std::vector<SearchTask> tasks_;
  std::vector<int> slots_;  // [targets][num_kv_heads] into outputs_; -1: nothing to search
  std::vector<SearchOutput> outputs_;
  std::vector<bool> whole_;  // beside those outputs that were searched: ReadsWhole
};

}  // namespace seine

#endif  // SEINE_INDEX_RETRIEVAL_SEARCH_BATCH_H_
