// What indexes do and how long it takes, counted for whoever watches: Counts for all indexes of a server together,
// IndexCounts for one index. Adding takes no lock and some nanoseconds. Thread-safe.
#ifndef SEINE_INDEX_COUNTS_COUNTS_H_
#define SEINE_INDEX_COUNTS_COUNTS_H_

#include <chrono>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "index/counts/cells.h"
#include "index/counts/histogram.h"

namespace seine {

struct SearchStats;  // kernels/ops/search/search.h

// Times of one call each. Those of a search, kPrepare to kRefine, are summed over its items, heads and threads, and are
// the CPU's alone: a device does not time them apart. The others are the time that the call spent.
enum class Stage : uint8_t { kPrepare, kScan, kSelect, kRerank, kRefine, kAttend, kEncode, kScore, kProject };
inline constexpr int kStages = 9;
const char* NameOf(Stage stage);  // "prepare"

class Counts {
 public:
  Counts();  // std::bad_alloc

  void Took(Stage stage, int64_t ns) { Of(kFirstStage + static_cast<int>(stage)).Add(ns); }
  void Searched(const SearchStats& stats);  // the stages that took any time
  void SequenceDeleted(int64_t lifetime_ns, int64_t idle_ns);
  void SequenceAskedAgain(int64_t gap_ns) { Of(kGap).Add(gap_ns); }
  // `layers` were cut back, by `tokens` of all their heads. `scorer` is one of profile/scorer_list.h.
  void Evicted(absl::string_view scorer, int64_t layers, int64_t tokens);
  // Keys, each counted once for all heads. `unfit`: for the queries asked; else the codes were outgrown.
  void Reencoded(bool unfit, int64_t keys) { cells_.Add(unfit ? kUnfitKeys : kOutgrownKeys, keys); }
  void SubspacesUpdated(int64_t updates) { cells_.Add(kUpdates, updates); }

  HistogramReading stage(Stage stage) const { return Of(kFirstStage + static_cast<int>(stage)).Read(); }
  HistogramReading lifetimes() const { return Of(kLifetime).Read(); }  // at deletion
  HistogramReading idle() const { return Of(kIdle).Read(); }           // at deletion: since it was last used
  HistogramReading gaps() const { return Of(kGap).Read(); }            // between retrievals of one layer
  int64_t evictions() const { return cells_.Read(kEvictions); }
  int64_t evicted_tokens(int scorer) const { return cells_.Read(kFirstScorer + scorer); }  // of AllScorers()
  int64_t reencoded_keys(bool unfit) const { return cells_.Read(unfit ? kUnfitKeys : kOutgrownKeys); }
  int64_t subspace_updates() const { return cells_.Read(kUpdates); }

 private:
  // Histograms, then single cells.
  enum : int { kFirstStage = 0, kLifetime = kStages, kIdle, kGap, kHistograms };
  enum : int {
    kEvictions = kHistograms * Histogram::kCells,
    kOutgrownKeys,
    kUnfitKeys,
    kUpdates,
    kFirstScorer,
  };
  // Sequences live longer than stages: 10 ms to 28 hours.
  static constexpr int64_t kLife = 10'000;
  Histogram Of(int number) const { return {&cells_, number * Histogram::kCells, number < kStages ? 1 : kLife}; }

  mutable Cells cells_;
};

class IndexCounts {
 public:
  IndexCounts();  // std::bad_alloc

  void Step(int64_t ns) { Histogram(&cells_, 0).Add(ns); }  // a Decode step, answered
  void Appended(int64_t tokens) { cells_.Add(kAppended, tokens); }
  void Candidates(int64_t candidates) { cells_.Add(kCandidates, candidates); }
  void Attended(int64_t tokens) { cells_.Add(kAttended, tokens); }

  HistogramReading steps() const { return Histogram(&cells_, 0).Read(); }
  int64_t appended() const { return cells_.Read(kAppended); }      // tokens, once a layer
  int64_t candidates() const { return cells_.Read(kCandidates); }  // keys that outlived the scan, of all query heads
  int64_t attended() const { return cells_.Read(kAttended); }      // tokens, of all query heads
  uint64_t serial() const { return serial_; }                      // of this index in the process

 private:
  enum : int { kAppended = Histogram::kCells, kCandidates, kAttended, kCells };
  const uint64_t serial_;
  mutable Cells cells_{kCells};
};

// Times a stage from here to the end of the scope. `counts`: nullptr: does nothing.
class StageClock {
 public:
  using Clock = std::chrono::steady_clock;
  StageClock(Counts* counts, Stage stage) : counts_(counts), stage_(stage) {
    if (counts_ != nullptr) began_ = Clock::now();
  }
  StageClock(const StageClock&) = delete;
  StageClock& operator=(const StageClock&) = delete;
  ~StageClock() {
    if (counts_ == nullptr) return;
    counts_->Took(stage_, std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began_).count());
  }

 private:
  Counts* const counts_;
  const Stage stage_;
  Clock::time_point began_;
};

}  // namespace seine

#endif  // SEINE_INDEX_COUNTS_COUNTS_H_
