// Exact attention over every token of a layer: the peer that a step of retrieval is held against.
#ifndef SEINE_BENCH_INPUTS_EXACT_ATTENTION_H_
#define SEINE_BENCH_INPUTS_EXACT_ATTENTION_H_

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace seine::bench {

// Keys and values of one layer, fp16 [num_kv_heads][num_tokens][head_dim] each: every head's rows lie together.
struct LayerRows {
  Buffer keys, values;
  int64_t num_tokens = 0;
  int num_kv_heads = 1;
  int head_dim = 128;

  int64_t head_bytes() const { return num_tokens * head_dim * 2; }
};

// output [num_kv_heads * group, head_dim] and log_sum_exp [num_kv_heads * group] of softmax attention over all tokens;
// queries are laid out as output is, and the logits are <q, k> / sqrt(head_dim). A tile of rows is read from memory
// once for all query heads of its group. KV heads run on the backend's threads.
void AttendExactly(const LayerRows& rows, const float* queries, int group, Backend* backend, std::vector<float>* output,
                   std::vector<float>* log_sum_exp);

}  // namespace seine::bench

#endif  // SEINE_BENCH_INPUTS_EXACT_ATTENTION_H_
