// The drift bench: recall over the positions of a decode that is longer than the prefill which methods learnt from.
#ifndef SEINE_BENCH_DRIFT_DRIFT_H_
#define SEINE_BENCH_DRIFT_DRIFT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/drift/growing_head.h"
#include "bench/drift/stream_method.h"
#include "bench/inputs/dataset.h"

namespace seine::bench {

struct DriftOptions {
  ZoneShape zone;
  int64_t prefill = 0, decode = 0;  // tokens
  int points = 17;                  // of the decode that are measured, its two ends among them; at least 2
  int64_t queries = 16;             // positions asked at a point, the last ones; at most zone.local
  int top_k = 100;
  double beta = .05;  // share of the zone kept as candidates; CandidatesOf

  // Lengths at which recall is measured, ascending: FitLengths, spread over the decode.
  std::vector<int64_t> Positions() const;
  // Every method's at a zone of `keys`: as many as Seine's search keeps by beta (kernels/ops/query/search.h).
  int64_t CandidatesOf(int64_t keys) const;
};

struct DriftPoint {
  int64_t position = 0;  // tokens so far
  double recall = 0;     // mean over queries, query heads and layers
  double worst_head = 0;
};

struct DriftRow {
  std::string method;
  double bytes_per_key = 0;
  std::vector<DriftPoint> curve;  // at every position

  double recall_first() const { return curve.front().recall; }
  double recall_last() const { return curve.back().recall; }
  double kept() const { return recall_last() / recall_first(); }
};

using NamedMethod = std::pair<std::string, std::unique_ptr<StreamMethod>>;

// A row a method. Each head of `dataset`, which has the queries of all positions asked, is prefilled, then appended to
// window by window. Errors are the methods' own.
absl::StatusOr<std::vector<DriftRow>> MeasureDrift(const Dataset& dataset, const DriftOptions& options,
                                                   const std::vector<NamedMethod>& methods);

}  // namespace seine::bench

#endif  // SEINE_BENCH_DRIFT_DRIFT_H_
