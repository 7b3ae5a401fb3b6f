// The last queries that a layer of a sequence was asked, or was given with the tokens appended: what scorers look at
// where an index evicts by itself (EvictionConfig::keep_queries), and what chooses the tokens that stay full-rank
// (SubspaceConfig::choice).
//
// Exactly as they came, in fp32, so that an eviction by the index keeps what a call with the same queries would. That,
// and that forks have them too, is what tells this from the sample that codes are held against (query_window.h), which
// is of the whole stream, rounded and sparse.
#ifndef SEINE_INDEX_EVICTION_KEPT_QUERIES_H_
#define SEINE_INDEX_EVICTION_KEPT_QUERIES_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "index/memory/memory.h"
#include "index/transforms/query_fit.h"

namespace seine {

class StateReader;  // index/bytes/state_reader.h
class StateWriter;  // index/bytes/state_writer.h

// Thread-safe: it has a lock of its own, under which no other is taken.
class KeptQueries {
 private:
  struct Row {
    Memory charge;
    std::unique_ptr<float[]> floats;
  };
  struct Entry {
    int64_t position = 0;
    std::shared_ptr<const Row> row;  // never written again, so forks share it
  };

 public:
  using Staged = std::vector<Entry>;

  // `row`: floats of a position, num_q_heads * head_dim. `most`: positions held; 0: none, ever.
  KeptQueries(MemoryLedger* ledger, int64_t row, int64_t most) : ledger_(ledger), row_(row), most_(most) {}
  KeptQueries(const KeptQueries&) = delete;
  KeptQueries& operator=(const KeptQueries&) = delete;

  bool on() const { return most_ > 0; }

  // Copies of queries [count][num_q_heads][head_dim] of positions first, first + 1, ..., or of the last of them where
  // they are too many; Commit takes them in. RESOURCE_EXHAUSTED.
  absl::StatusOr<Staged> Stage(int64_t first, int64_t count, const float* queries) const;
  // A position that is there already gets the newer queries; the lowest positions go where there are more than `most`.
  void Commit(Staged staged);

  // Those of positions at or after this one go.
  void DropFrom(int64_t position);
  // All that is held, and back to it.
  Staged Entries() const;
  void Restore(Staged entries);
  // Begins with what `source` has.
  void ShareFrom(const KeptQueries& source);

  // Queries of the newest positions, `most` at most, ascending; as if `staged` were taken in already.
  SeenQueries Seen(int64_t most, const Staged& staged = {}) const;
  int64_t newest() const;  // position; -1: there is none

  // For snapshots. The rows written are those held now. Load: into new ones, of a layer of `length` tokens.
  void Save(StateWriter* writer) const;
  void Load(int64_t length, StateReader* reader);

 private:
  MemoryLedger* const ledger_;
  const int64_t row_, most_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // by position; guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_INDEX_EVICTION_KEPT_QUERIES_H_
