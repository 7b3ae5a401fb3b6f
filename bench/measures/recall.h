// The recall bench: methods over a data set, held against the exact answer, one row a method and setting.
#ifndef SEINE_BENCH_MEASURES_RECALL_H_
#define SEINE_BENCH_MEASURES_RECALL_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/inputs/dataset.h"
#include "bench/machine/bandwidth.h"
#include "bench/methods/method.h"
#include "bench/methods/recall_row.h"

namespace seine::bench {

struct RecallOptions {
  TruthOptions truth;
  bool cold = true;     // caches are emptied, untimed, before every timed answer
  int timed_asks = 96;  // over all heads, a row
};

// Rows in the order of methods and their lines.
absl::StatusOr<std::vector<Row>> MeasureRecall(const Dataset& dataset, const RecallOptions& options,
                                               const std::vector<std::unique_ptr<Method>>& methods, MemoryProbe* probe);

}  // namespace seine::bench

#endif  // SEINE_BENCH_MEASURES_RECALL_H_
