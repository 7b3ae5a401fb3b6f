// What indexes do and how long it takes, counted for whoever watches: Counts for all indexes of a server together,
// IndexCounts for one index. Adding takes no lock and some nanoseconds. Thread-safe.
#ifndef SEINE_INDEX_COUNTS_COUNTS_H_
#define SEINE_INDEX_COUNTS_COUNTS_H_

#include <chrono>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "index/counts/histogram.h"
#include "index/counts/ratio_histogram.h"
#include "index/counts/thread_local_counters.h"

namespace seine {

struct SearchStats;  // kernels/ops/query/search.h

// Times of one call each. Those of a search, kPrepare to kRefine, are summed over its items, heads and threads, and are
// the CPU's alone: a device does not time them apart. The others are the time that the call spent.
enum class Stage : uint8_t { kPrepare, kScan, kSelect, kRerank, kRefine, kAttend, kEncode, kScore, kProject };
inline constexpr int kStages = 9;
const char* NameOf(Stage stage);  // "prepare"

// Why a sampled item was not compared with its exact answer (index/quality/monitor.h).
enum class QualityDrop : uint8_t {
  kBudget,   // more wait than may: comparisons take their share of a core already
  kChanged,  // the layer was truncated or evicted before it was compared
  kGone,     // the sequence or the index was deleted before
  kMemory,   // there was none for the copy or the logits
};
inline constexpr int kQualityDrops = 4;
const char* NameOf(QualityDrop cause);  // "budget"

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
  void QualityBusy(int64_t ns) { cells_.Add(kQualityNs, ns); }  // of a core
  void QualityDropped(QualityDrop cause) { cells_.Add(kFirstDrop + static_cast<int>(cause), 1); }

  HistogramReading stage(Stage stage) const { return Of(kFirstStage + static_cast<int>(stage)).Read(); }
  HistogramReading lifetimes() const { return Of(kLifetime).Read(); }  // at deletion
  HistogramReading idle() const { return Of(kIdle).Read(); }           // at deletion: since it was last used
  HistogramReading gaps() const { return Of(kGap).Read(); }            // between retrievals of one layer
  int64_t evictions() const { return cells_.Read(kEvictions); }
  int64_t evicted_tokens(int scorer) const { return cells_.Read(kFirstScorer + scorer); }  // of AllScorers()
  int64_t reencoded_keys(bool unfit) const { return cells_.Read(unfit ? kUnfitKeys : kOutgrownKeys); }
  int64_t subspace_updates() const { return cells_.Read(kUpdates); }
  int64_t quality_busy_ns() const { return cells_.Read(kQualityNs); }
  int64_t quality_dropped(QualityDrop cause) const { return cells_.Read(kFirstDrop + static_cast<int>(cause)); }

 private:
  // Histograms, then single cells.
  enum : int { kFirstStage = 0, kLifetime = kStages, kIdle, kGap, kHistograms };
  enum : int {
    kEvictions = kHistograms * Histogram::kCells,
    kOutgrownKeys,
    kUnfitKeys,
    kUpdates,
    kQualityNs,
    kFirstDrop,
    kFirstScorer = kFirstDrop + kQualityDrops,
  };
  // Sequences live longer than stages: 10 ms to 28 hours.
  static constexpr int64_t kLife = 10'000;
  Histogram Of(int number) const { return {&cells_, number * Histogram::kCells, number < kStages ? 1 : kLife}; }

  mutable ThreadLocalCounters cells_;
};

// What live quality has found of an index: by item, and by set of an item, of which each head has one or several.
struct QualityReading {
  int64_t samples = 0;  // items
  RatioReading recall, attention_mass;
  RatioReading predicted_recall;  // of the sets whose codec predicts it
  QualityReading& operator+=(const QualityReading& o) {
    samples += o.samples;
    recall += o.recall;
    attention_mass += o.attention_mass;
    predicted_recall += o.predicted_recall;
    return *this;
  }
};

// Counts of an index since it was made.
struct IndexTotals {
  int64_t appended = 0;    // tokens, once a layer
  int64_t candidates = 0;  // keys that outlived the scan, of all query heads
  int64_t attended = 0;    // tokens, of all query heads
  IndexTotals& operator+=(const IndexTotals& o) {
    appended += o.appended, candidates += o.candidates, attended += o.attended;
    return *this;
  }
};

class IndexCounts {
 public:
  IndexCounts();  // std::bad_alloc

  void Step(int64_t ns) { Histogram(&cells_, 0).Add(ns); }  // a Decode step, answered
  void Appended(int64_t tokens) { cells_.Add(kAppended, tokens); }
  void Candidates(int64_t candidates) { cells_.Add(kCandidates, candidates); }
  void Attended(int64_t tokens) { cells_.Add(kAttended, tokens); }

  // A set of a sampled item (index/quality/judge.h), and the item.
  void QualityRecall(double recall) { Ratio(kRecall).Add(recall); }
  void QualityMass(double mass) { Ratio(kMass).Add(mass); }
  void QualityPredicted(double recall) { Ratio(kPredicted).Add(recall); }
  void QualitySampled() { quality_.Add(kRatios * RatioHistogram::kCells, 1); }

  HistogramReading steps() const { return Histogram(&cells_, 0).Read(); }
  QualityReading quality() const {
    return {quality_.Read(kRatios * RatioHistogram::kCells), Ratio(kRecall).Read(), Ratio(kMass).Read(),
            Ratio(kPredicted).Read()};
  }
  IndexTotals totals() const { return {cells_.Read(kAppended), cells_.Read(kCandidates), cells_.Read(kAttended)}; }
  uint64_t serial() const { return serial_; }  // of this index in the process

 private:
  enum : int { kAppended = Histogram::kCells, kCandidates, kAttended, kCells };
  enum : int { kRecall = 0, kMass, kPredicted, kRatios };
  RatioHistogram Ratio(int number) const { return {&quality_, number * RatioHistogram::kCells}; }
  const uint64_t serial_;
  mutable ThreadLocalCounters cells_{kCells};
  mutable ThreadLocalCounters quality_{kRatios * RatioHistogram::kCells +
                                       1};  // apart: threads that serve calls add nothing here
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
