// Attention of a prompt's tokens: every row of a batch and every head, wherever their queries, keys and values lie.
#ifndef SEINE_INDEX_PROMPT_PROMPT_BATCH_H_
#define SEINE_INDEX_PROMPT_PROMPT_BATCH_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "index/prompt/prompt_attention.h"
#include "index/prompt/prompt_block.h"
#include "kernels/backend.h"

namespace seine {

// Calls task(i) for each i below `count` once, on threads: a Backend's Run, or an engine's.
using RunTasks = absl::FunctionRef<void(int count, const std::function<void(int)>& task)>;
inline auto OnThreadsOf(Backend* backend) {
  return [backend](int count, const std::function<void(int)>& task) { backend->Run(count, task); };
}

// Places that each of a prompt's tokens sees. Made once for all layers that share a mask. Any thread may read it.
class PromptMask {
 public:
  // Adds what tokens [first, first + block->tokens()) of a row see (PromptBlock::Add). Several threads call it at once.
  using Fill = absl::FunctionRef<void(int64_t row, int head, int64_t first, PromptBlock* block)>;

  // `rows` is 1 where all rows of a batch see the same, `heads` (of keys) 1 where all heads do. `group`: query heads
  // that share a KV head. tokens >= 1, places < 2^31.
  PromptMask(int64_t rows, int heads, int64_t tokens, int64_t places, int group, RunTasks run, Fill fill);
  // Token t of head h sees places [0, ends[h][t]), which are ascending; of one row.
  PromptMask(const std::vector<std::vector<int64_t>>& ends, int64_t places, int group, RunTasks run);
  // Token t sees places [0, places - tokens + t]: a prompt behind what is cached. tokens <= places.
  PromptMask(int64_t tokens, int64_t places, int group, RunTasks run);
  // seen: [rows][heads][tokens][places], not 0 where a token sees a place.
  PromptMask(const uint8_t* seen, int64_t rows, int heads, int64_t tokens, int64_t places, int group, RunTasks run);

  int64_t rows() const { return rows_; }
  int heads() const { return heads_; }
  int64_t tokens() const { return tokens_; }
  int64_t places() const { return places_; }
  int group() const { return group_; }
  int num_blocks() const { return num_blocks_; }  // of a row and head
  const PromptBlock& block(int64_t row, int head, int b) const {
    return blocks_[((rows_ > 1 ? row : 0) * heads_ + (heads_ > 1 ? head : 0)) * num_blocks_ + b];
  }

 private:
  const int64_t rows_, tokens_, places_;
  const int heads_, group_, num_blocks_;
  std::vector<PromptBlock> blocks_;  // [rows][heads][num_blocks]
};

// From one row of a batch, token or query head to the next, in floats.
struct PromptStrides {
  int64_t row = 0, token = 0, head = 0;
};

struct PromptBatch {
  const PromptMask* mask = nullptr;
  int64_t rows = 1;  // mask->rows(), or any where that is 1
  int num_kv_heads = 1, head_dim = 0;
  float scale = 1;
  float softcap = 0;               // of logits: cap tanh(scale <q, k> / cap); 0: none
  const float* queries = nullptr;  // each [head_dim]
  PromptStrides query_strides = {};
  float* outputs = nullptr;  // the same; 0 of a token that sees nothing
  PromptStrides output_strides = {};
  float* log_sum_exp = nullptr;  // [rows][tokens][query heads], natural, of the scaled logits; nullptr: not wanted
  // Keys and values of one row's KV head, by place.
  struct Rows {
    ChunkedRows keys, values;
    const uint8_t *first_key = nullptr, *first_value = nullptr;  // in place of chunks
    int64_t num_places = -1;                                     // that there are; -1: the mask's
    // Strides in bytes from place to place; 0: rows lie back to back.
    static Rows Dense(const uint8_t* keys, const uint8_t* values, int head_dim, DType dtype, size_t key_stride = 0,
                      size_t value_stride = 0) {
      constexpr int kOneChunk = std::numeric_limits<int>::max();
      return {{nullptr, kOneChunk, head_dim, dtype, key_stride},
              {nullptr, kOneChunk, head_dim, dtype, value_stride},
              keys,
              values,
              -1};
    }
  };
  absl::FunctionRef<Rows(int64_t row, int kv_head)> rows_of;
};

// head_dim is a multiple of 16. Thread-safe. Blocks that were not begun when the caller's token stopped are left out
// (kernels/stop.h).
PromptCounts AttendPromptBatch(const PromptBatch& batch, const PromptParams& params, RunTasks run);

}  // namespace seine

#endif  // SEINE_INDEX_PROMPT_PROMPT_BATCH_H_
