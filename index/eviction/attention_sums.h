// Running sums of the attention that each token of a layer has been paid: H2O's rule (arXiv 2306.14048, algorithm 1).
//
// After the queries of a position have attended, every token that they attended gains its softmax weight, mean over the
// heads of its group. A position counts once, the first time that its queries are seen, and none counts below one that
// has: an Attend made again, or beside an append that brought the same queries, adds nothing. What was counted stays:
// truncation drops the tokens, not what their queries had paid to others.
#ifndef SEINE_INDEX_EVICTION_ATTENTION_SUMS_H_
#define SEINE_INDEX_EVICTION_ATTENTION_SUMS_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "index/memory/memory.h"
#include "index/scorers/scorer.h"
#include "index/storage/cow_ptr.h"
#include "kernels/host.h"

namespace seine {

class StateReader;  // index/bytes/state_reader.h
class StateWriter;  // index/bytes/state_writer.h

// fp32, by place in each head (head_group_cache.h). Forks share a block until one side writes.
//
// Add and AddAll are thread-safe beside each other and beside readers. The rest changes what places mean, and needs the
// layer's mutex held exclusively.
class AttentionSums {
 private:
  struct Block {
    Memory memory;
    int64_t capacity = 0;  // tokens of each head
    float* row(int head) const { return reinterpret_cast<float*>(memory.data()) + head * capacity; }
  };

 public:
  AttentionSums(MemoryLedger* ledger, int heads, bool on) : ledger_(ledger), heads_(heads), on_(on) {}
  AttentionSums(const AttentionSums&) = delete;
  AttentionSums& operator=(const AttentionSums&) = delete;

  bool on() const { return on_; }

  // Sums that will replace those held; empty where those are good enough.
  using Staged = CowPtr<Block>;
  // Room for `most` tokens of each head. RESOURCE_EXHAUSTED.
  absl::StatusOr<Staged> StageRoom(int64_t most) const;
  // Heads grow from `before` tokens to `after`, which have been paid nothing.
  void CommitRoom(Staged staged, absl::Span<const int64_t> before, absl::Span<const int64_t> after);
  // Sums of each head's tokens at these places. RESOURCE_EXHAUSTED.
  absl::StatusOr<Staged> StageKept(const std::vector<std::vector<uint32_t>>& places) const;
  void CommitKept(Staged staged);
  // Positions from this one on count again.
  void Truncate(int64_t position);

  // All that is held, and back to it.
  struct State {
    CowPtr<Block> block;
    int64_t counted_to = 0;
  };
  State SaveCheckpoint() const;
  void Restore(State state);
  void ShareFrom(const AttentionSums& source) { Restore(source.SaveCheckpoint()); }

  // For snapshots. Part: false where there is no memory to part from those who share the sums. Load: into new ones, of
  // heads that hold `sizes` tokens of a layer of `length`.
  bool Part();
  void Save(absl::Span<const int64_t> sizes, StateWriter* writer) const;
  void Load(absl::Span<const int64_t> sizes, int64_t length, StateReader* reader);

  // Adds what the queries at `position` paid each head's tokens. False: there was no memory to part from a fork with,
  // and nothing is counted.
  bool Add(int64_t position, absl::Span<const host::AttendedRows> heads);
  // Adds `paid`, [heads][tokens], of queries of which the last is at `position`.
  bool AddAll(int64_t position, const Scores& paid);

  // Positions below this one have counted, or never will.
  int64_t counted_to() const;
  // The sums of `sizes` tokens.
  Scores Sums(absl::Span<const int64_t> sizes) const;
  int64_t bytes() const;

 private:
  absl::StatusOr<Staged> NewBlock(int64_t capacity) const;
  // Makes the block this layer's own. False: there is no memory for that, or no block.
  bool Own();

  MemoryLedger* const ledger_;
  const int heads_;
  const bool on_;
  mutable std::mutex mutex_;
  CowPtr<Block> block_;     // guarded by mutex_
  int64_t counted_to_ = 0;  // guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_INDEX_EVICTION_ATTENTION_SUMS_H_
