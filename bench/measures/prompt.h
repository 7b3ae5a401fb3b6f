// Recall while a prompt grows: a trace appended in steps, as engines append a prompt, and asked at every power of two
// of its length, beside an index that got the same tokens in one append. Both are asked right after the append.
#ifndef SEINE_BENCH_MEASURES_PROMPT_H_
#define SEINE_BENCH_MEASURES_PROMPT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/inputs/dataset.h"
#include "index/config/config.h"
#include "kernels/backend.h"
#include "profile/profile.h"

namespace seine::bench {

struct PromptOptions {
  DatasetOptions data;                     // a trace; `tokens` is overridden
  std::shared_ptr<const Profile> profile;  // of the trace's model
  int64_t horizon = kDefaultHorizon;
  std::vector<int64_t> steps;    // tokens an append
  std::vector<int64_t> lengths;  // ascending, at which it is asked; empty: every power of two from 1,024 on
  int top_k = 100;
  double beta = .05;
  int refine = 300;
};

// Recalls of one length: means over layers, heads and queries.
struct PromptRow {
  int64_t tokens = 0;
  double one_append = 0, one_append_worst_head = 0;
  std::vector<double> in_steps, in_steps_worst_head;  // [steps]
};

// What appending took with no query in between, a key of one head; the first answer's wait for what is due counted in.
struct PromptCost {
  double cpu_ns = 0;        // of the whole process, the background's work included
  double first_us = 0;      // the first answer's time, a head; median
  double encoded_keys = 0;  // times that a key was encoded
};

struct PromptResult {
  DatasetInfo data;
  std::vector<PromptRow> rows;
  PromptCost cost_of_one;
  std::vector<PromptCost> cost_in_steps;  // [steps]
};

// INVALID_ARGUMENT naming the flag: the trace must hold queries at every length that is asked.
absl::StatusOr<PromptResult> MeasurePrompt(const PromptOptions& options, Backend* backend);

}  // namespace seine::bench

#endif  // SEINE_BENCH_MEASURES_PROMPT_H_
