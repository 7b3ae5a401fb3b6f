// How well each scorer keeps what later queries attend to, and how fast: what `seine-bench evict` measures.
//
// The tokens scored are [0, n - Q / 2) where n tokens are recorded, with queries of the last Q positions: a cache holds
// these when the later half of the queries is still to come. Scorers that look at queries get the earlier half. The
// retained attention mass of a later query is the softmax mass of what is kept over that of all scored tokens; newer
// tokens, which no policy evicts, are left out of both. Synthetic keys are scored whole; their queries come after them.
#ifndef SEINE_BENCH_MEASURES_EVICT_H_
#define SEINE_BENCH_MEASURES_EVICT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/inputs/dataset.h"
#include "bench/machine/bandwidth.h"
#include "index/config/budget.h"
#include "index/scorers/scorer.h"
#include "profile/filters.h"
#include "profile/profile.h"

namespace seine::bench {

// One layer with what scorers look at. Not copyable: inputs point into it.
struct EvictLayer {
  int layer = 0;
  int64_t scored = 0;    // tokens of a head
  int64_t observed = 0;  // queries at positions before the later ones
  int64_t later = 0;
  int group = 1, head_dim = 0;
  DType dtype = DType::kFloat32;
  std::vector<Head> heads;
  std::vector<float> observed_queries;      // [observed, num_q_heads, head_dim]
  std::vector<std::vector<float>> weights;  // [kv_head][scored] softmax mass over scored tokens, mean of later queries
  Filters filters;                          // of the profile, or of the observed queries
};

// The layers of a data set, or `kv_heads` heads of synthetic keys with seeds one after another as one layer.
absl::StatusOr<std::vector<std::unique_ptr<EvictLayer>>> LoadEvictLayers(const DatasetOptions& options, int kv_heads,
                                                                         const Profile* profile, DatasetInfo* info);

struct EvictRow {
  std::string scorer;  // "oracle": the tokens that the later queries attend to most, which no policy can know
  std::string budget;  // as given
  double retained_attention_mass = 0, worst_head = 0;
  double overlap_with_attention_top = 0;
  double us_per_token = 0;        // scoring and selection, a token and head
  double gb_s = 0;                // keys read in that time
  double paired_share = 0;        // of the bandwidth measured right before each run; median
  double us_per_token_first = 0;  // the same with no running sums, as for keys that come all at once
  double kept = 0;                // tokens a head, mean
};

struct EvictSetting {
  ScorerConfig scorer;
  BudgetConfig budget;
  KeepConfig keep;
  std::string budget_name;
  int repeats = 9;  // timed runs, at least 1: the best counts
};

// Errors are the scorer's or the budget's. `rope` as the data state it; `profile` may be nullptr. Caches are emptied
// before each timed run; times are of the backend's threads.
absl::StatusOr<EvictRow> MeasureEviction(const std::vector<std::unique_ptr<EvictLayer>>& layers, int num_layers,
                                         const EvictSetting& setting, const Rope& rope, const Profile* profile,
                                         Backend* backend, MemoryProbe* probe);

// The row of the oracle.
EvictRow MeasureOracle(const std::vector<std::unique_ptr<EvictLayer>>& layers, const EvictSetting& setting);

}  // namespace seine::bench

#endif  // SEINE_BENCH_MEASURES_EVICT_H_
