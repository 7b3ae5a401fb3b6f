// Nodes of ggml's graphs: the caches that they read and write, and their masks.
#ifndef SEINE_ENGINES_LLAMA_CPP_GGML_NODE_H_
#define SEINE_ENGINES_LLAMA_CPP_GGML_NODE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "ggml.h"
#include "index/cells/seen_cells.h"
#include "index/config/config.h"
#include "index/prompt/prompt_block.h"

namespace seine::llama {

// The tensor that a view is of.
const ggml_tensor* RootOf(const ggml_tensor* tensor);
// The cache that rows lie in. llama.cpp copies rows of an f32 cache to f16 for each node: then the cache, no copy.
const ggml_tensor* CacheOf(const ggml_tensor* rows);
// Return true if it is a key or value cache of llama.cpp's, [embedding of all KV heads, cells, streams]; set its layer.
bool IsKeyCache(const ggml_tensor* root, int* layer = nullptr);
bool IsValueCache(const ggml_tensor* root, int* layer = nullptr);
// Type that a cache's rows are read as; empty: none that is answered.
std::optional<DType> RowTypeOf(const ggml_tensor* cache);
// The cell that row `i` of a GGML_OP_SET_ROWS goes to, by that operation's second source.
int64_t RowIndex(const ggml_tensor* indices, int64_t i);

constexpr int kMostTokens = 16;  // query tokens of a stream that are answered at once: speculative decoding's

// Why no plug-in of ours answers attention of such heads; nullptr: it does.
const char* UnfitShape(int head_dim, int value_head_dim, int num_q_heads, int num_kv_heads);

// GGML_OP_FLASH_ATTN_EXT's arguments, as llama.cpp makes it.
struct AttentionNode {
  explicit AttentionNode(const ggml_tensor* node);

  const ggml_tensor* node;
  const ggml_tensor *queries, *keys, *values, *mask;
  const ggml_tensor* sinks;  // [query heads]: a logit more a head, of no value, as gpt-oss has it; nullptr: none
  int head_dim = 0, num_q_heads = 0, num_kv_heads = 0;
  int64_t num_tokens = 0, num_cells = 0, num_streams = 0;  // num_tokens: a stream
  float scale = 0, max_bias = 0, softcap = 0;
  int group() const { return num_q_heads / num_kv_heads; }

  // Why this plug-in cannot answer attention over such a cache; nullptr: it can, of kMostTokens tokens at once.
  const char* Unfit() const;
  // Runs of cells that a token sees. False: the mask weighs cells.
  bool CellsSeen(int64_t token, int64_t stream, std::vector<CellRun>* runs) const;
  // The same of a block of tokens from `first` on. Adds tiles.
  bool CellsSeen(int64_t first, int64_t stream, PromptBlock* block) const;
  const float* Query(int head, int64_t token, int64_t stream) const;  // [head_dim]
  float* Output(int head, int64_t token, int64_t stream) const;       // [head_dim]
  // Outputs of `count` heads from `head` on, [count][head_dim], lose what the heads' sinks take of their softmax.
  // log_sum_exp [count], without them. There are sinks.
  void TakeSinks(int head, int count, const float* log_sum_exp, float* output) const;

 private:
  const uint16_t* MaskRow(int64_t token, int64_t stream) const;  // [num_cells], fp16
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_GGML_NODE_H_
