// Attention of a prompt's tokens as arrays have them: every row of a batch and every head.
#ifndef SEINE_INDEX_PROMPT_PROMPT_BATCH_H_
#define SEINE_INDEX_PROMPT_PROMPT_BATCH_H_

#include <cstdint>
#include <vector>

#include "index/prompt/prompt_attention.h"
#include "index/prompt/prompt_block.h"
#include "kernels/backend.h"

namespace seine {

// Places that each of a prompt's tokens sees. Made once for all layers that share a mask. Any thread may read it.
class PromptMask {
 public:
  // Token t sees places [0, places - tokens + t]: a prompt behind what is cached. 1 <= tokens <= places < 2^31.
  PromptMask(int64_t tokens, int64_t places, int group);
  // seen: [rows][heads][tokens][places], not 0 where a token sees a place. `rows` is 1 where all rows of a batch see
  // the same, `heads` (of keys) 1 where all heads do. `group`: query heads that share a KV head.
  PromptMask(const uint8_t* seen, int64_t rows, int heads, int64_t tokens, int64_t places, int group, Backend* backend);

  int64_t rows() const { return rows_; }
  int heads() const { return heads_; }
  int64_t tokens() const { return tokens_; }
  int64_t places() const { return places_; }
  int group() const { return group_; }
  int num_blocks() const { return num_blocks_; }  // of a row and head
  int block_tokens() const { return block_tokens_; }
  const PromptBlock& block(int64_t row, int head, int b) const {
    return blocks_[((rows_ > 1 ? row : 0) * heads_ + (heads_ > 1 ? head : 0)) * num_blocks_ + b];
  }

 private:
  PromptMask(int64_t rows, int heads, int64_t tokens, int64_t places, int group);  // whose blocks are not made

  const int64_t rows_, tokens_, places_;
  const int heads_, group_, block_tokens_, num_blocks_;
  std::vector<PromptBlock> blocks_;  // [rows][heads][num_blocks]
};

struct PromptBatch {
  const PromptMask* mask = nullptr;
  int64_t rows = 1;  // mask->rows(), or any where that is 1
  int num_kv_heads = 1, head_dim = 0;
  float scale = 1;
  const float* queries = nullptr;  // [rows][num_kv_heads * group][tokens][head_dim]
  DType dtype = DType::kFloat32;
  const void *keys = nullptr, *values = nullptr;  // [rows][num_kv_heads][places][head_dim], of `dtype`
};

// outputs: [rows][tokens][num_kv_heads * group][head_dim]; 0 of a token that sees nothing. head_dim is a multiple of
// 16. Thread-safe.
PromptCounts AttendPromptBatch(const PromptBatch& batch, const PromptParams& params, Backend* backend, float* outputs);

}  // namespace seine

#endif  // SEINE_INDEX_PROMPT_PROMPT_BATCH_H_
