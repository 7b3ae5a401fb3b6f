// Attention of a block of a prompt's tokens, exact or by chosen runs of 8 keys.
//
// Chosen (ours): every `sample`-th token of the block attends all keys exactly, which tells what each run holds for it.
// Each query head takes its heaviest runs, so many that a sampled token keeps the share `mass` of what it sees although
// its own part in the choice is left out (choose_runs.h). The first keys, the last ones before the block, and keys that
// some token of the block does not see are always attended. A head that would take more than the share `most` of the
// runs attends all.
#ifndef SEINE_INDEX_PROMPT_PROMPT_ATTENTION_H_
#define SEINE_INDEX_PROMPT_PROMPT_ATTENTION_H_

#include <cstdint>

#include "index/prompt/prompt_block.h"
#include "kernels/host.h"

namespace seine {

struct PromptParams {
  double mass = 1;       // in (0, 1]; 1: exact
  double most = 0.5;     // in [0, 1]
  int sample = 0;        // 0: 16, or so many that six tokens of a short block are sampled
  int sink = 64;         // keys
  int local = 256;       // keys
  int64_t least = 2048;  // keys of which runs are chosen; a block over fewer is attended exactly
};

// A block's query heads of one KV head, or some of them.
struct PromptTask {
  const PromptBlock* block = nullptr;
  // Rows [tokens x group], each [head_dim]; row r is of token r / group.
  const float* const* queries = nullptr;
  int group = 1;
  float scale = 1;
  float softcap = 0;         // of logits; 0: none
  ChunkedRows keys, values;  // by place
  int64_t num_places = 0;
};

// What was attended, in runs of 8 keys, each counted once for a block and query head.
struct PromptCounts {
  int64_t seen = 0, taken = 0;
  int64_t zone = 0;                      // of those seen: that are chosen from
  int64_t blocks = 0, exact_blocks = 0;  // times query heads
  void Add(const PromptCounts& other) {
    seen += other.seen, taken += other.taken, zone += other.zone, blocks += other.blocks,
        exact_blocks += other.exact_blocks;
  }
};

// outputs: [tokens x group] rows, each [head_dim]. log_sum_exp: [tokens x group], or nullptr. Thread-safe. The same
// runs are chosen on every target that fuses multiply-adds, and with any number of threads.
PromptCounts AttendPrompt(const PromptTask& task, const PromptParams& params, float* const* outputs,
                          float* log_sum_exp);

}  // namespace seine

#endif  // SEINE_INDEX_PROMPT_PROMPT_ATTENTION_H_
