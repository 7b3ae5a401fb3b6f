// Attention of a prompt's last micro-batch, exact and by chosen runs of keys, on recorded keys, values and queries.
#ifndef SEINE_BENCH_MEASURES_PROMPT_ATTENTION_H_
#define SEINE_BENCH_MEASURES_PROMPT_ATTENTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/inputs/dataset.h"

namespace seine::bench {

struct PromptAttentionOptions {
  DatasetOptions data;
  std::vector<double> masses = {.9, .95, .98};
  std::vector<int> samples = {8, 16};
  std::vector<double> most = {.5};
  int sink = 64, local = 256;
  int repeats = 3;  // of each timing; the fastest counts
};

// One way to attend, over all heads.
struct PromptAttentionRow {
  std::string method;  // exact, sampled or means
  double mass = 1, most = 1;
  int sample = 0;
  double taken = 1;         // share of the runs that a block's tokens see
  double exact_blocks = 1;  // share
  double error = 0;         // mean over query rows of |o - o_exact| / |o_exact|, o_exact in fp32
  double worst_head = 0;    // the largest of the heads' means
  double ms = 0;            // one thread, all heads; 0: not timed
};

struct PromptAttentionResult {
  DatasetInfo data;
  int64_t tokens = 0;  // of the micro-batch
  std::vector<PromptAttentionRow> rows;
};

// `means` takes as many runs as `sampled` did: those whose mean key has the largest softmax with the block's mean
// query, head by head, as methods that pool blocks choose. One line names the flag, or the file and what is wrong with
// it.
absl::StatusOr<PromptAttentionResult> MeasurePromptAttention(const PromptAttentionOptions& options);

}  // namespace seine::bench

#endif  // SEINE_BENCH_MEASURES_PROMPT_ATTENTION_H_
