// The step bench: one decode step of a whole layer in process, by Retrieve and by Attend, beside exact attention over
// the same layer and beside the time that the bytes alone take.
#ifndef SEINE_BENCH_MEASURES_STEP_H_
#define SEINE_BENCH_MEASURES_STEP_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/inputs/layer_data.h"
#include "bench/machine/bandwidth.h"
#include "index/config/config.h"

namespace seine::bench {

struct StepOptions {
  SearchParams search;            // of Retrieve; Attend's scope is a query head's always
  CodecConfig codec;              // without its profile
  std::vector<int64_t> num_keys;  // ascending multiples of 64
  bool cold = true;               // caches are emptied, untimed, before every timed call
  int threads = 1;                // of the backend
  int repeat = 0;                 // rounds of the three calls; 0: 51, or fewer where they take long
};

// One number for each of what is compared.
struct StepFigures {
  double retrieve = 0, attend = 0, exact = 0;
};

// The times of Retrieve's stages, all heads together: with several threads, a sum over them.
struct StageTimes {
  double prepare = 0, scan = 0, select = 0, rerank = 0, refine = 0;
  std::optional<double> other;  // of one thread: what is left of the step
};

// The times of Attend's parts, all heads together: with several threads, a sum over them.
struct AttendTimes {
  double dense = 0, chosen = 0, tail = 0, softmax = 0;
  std::optional<double> search;  // of one thread: what is left of the step
};

// Of one zone length. Times are medians over rounds, of one layer's step.
struct StepRow {
  int64_t num_keys = 0, num_tokens = 0;
  int rounds = 0;
  StepFigures us;
  StageTimes stage_us;
  AttendTimes attend_us;
  double recall_at_k = 0;
  double candidates = 0;   // a query head's mean
  StepFigures bytes;       // that a step must read: each once, whatever the number of heads that want it
  StepFigures floor_us;    // the time that they take at the machine's bandwidth
  int64_t code_bytes = 0;  // of all layers
};

absl::StatusOr<std::vector<StepRow>> MeasureStep(const LayerSource& source, const StepOptions& options,
                                                 Backend* backend, MemoryProbe* probe);

// The zone length from which on a method is faster than exact attention, between two measured ones by interpolation of
// logarithms. Absent where that is no length in range: the method is then faster at all of them, or slower at the
// longest.
struct BreakEven {
  std::optional<double> num_keys;
  bool faster = false;  // at the longest length
};
BreakEven FindBreakEven(const std::vector<StepRow>& rows, double StepFigures::*method);

}  // namespace seine::bench

#endif  // SEINE_BENCH_MEASURES_STEP_H_
