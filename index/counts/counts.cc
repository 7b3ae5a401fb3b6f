#include "index/counts/counts.h"

#include "kernels/ops/query/search.h"
#include "profile/scorer_list.h"

namespace seine {

const char* NameOf(Stage stage) {
  static constexpr const char* kNames[kStages] = {"prepare", "scan",   "select", "rerank", "refine",
                                                  "attend",  "encode", "score",  "project"};
  return kNames[static_cast<int>(stage)];
}

const char* NameOf(QualityDrop cause) {
  static constexpr const char* kNames[kQualityDrops] = {"budget", "changed", "gone", "memory"};
  return kNames[static_cast<int>(cause)];
}

Counts::Counts() : cells_(kFirstScorer + static_cast<int>(AllScorers().size())) {}

void Counts::Searched(const SearchStats& stats) {
  const std::pair<Stage, int64_t> took[] = {{Stage::kPrepare, stats.prepare_ns},
                                            {Stage::kScan, stats.scan_ns},
                                            {Stage::kSelect, stats.select_ns},
                                            {Stage::kRerank, stats.rerank_ns},
                                            {Stage::kRefine, stats.refine_ns}};
  const ThreadLocalCounters::Set set = cells_.Local();
  for (const auto& [stage, ns] : took) {
    if (ns > 0) Of(kFirstStage + static_cast<int>(stage)).AddTo(set, ns);
  }
}

void Counts::SequenceDeleted(int64_t lifetime_ns, int64_t idle_ns) {
  Of(kLifetime).Add(lifetime_ns);
  Of(kIdle).Add(idle_ns);
}

void Counts::Evicted(absl::string_view scorer, int64_t layers, int64_t tokens) {
  cells_.Add(kEvictions, layers);
  const auto& all = AllScorers();
  for (size_t i = 0; i < all.size(); ++i) {
    if (scorer == all[i].name) cells_.Add(kFirstScorer + static_cast<int>(i), tokens);
  }
}

IndexCounts::IndexCounts()
    : serial_([] {
        static std::atomic<uint64_t> last{0};
        return last.fetch_add(1, std::memory_order_relaxed) + 1;
      }()) {}

}  // namespace seine
