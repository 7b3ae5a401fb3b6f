// What ggml's nodes say: the caches that they read and write, their masks, how the model turns positions.
#ifndef SEINE_ENGINES_LLAMA_CPP_NODE_H_
#define SEINE_ENGINES_LLAMA_CPP_NODE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "ggml.h"
#include "index/cells/seen_cells.h"
#include "index/config/config.h"
#include "index/prompt/prompt_block.h"
#include "profile/rope.h"

namespace seine::llama {

// The tensor that a view is of.
const ggml_tensor* RootOf(const ggml_tensor* tensor);
// Return true if it is a key or value cache of llama.cpp's, [embedding of all KV heads, cells, streams]; set its layer.
bool IsKeyCache(const ggml_tensor* root, int* layer = nullptr);
bool IsValueCache(const ggml_tensor* root, int* layer = nullptr);
// What rows lie in. llama.cpp copies those of an f32 cache to f16 for each node: then that cache, not the copy.
const ggml_tensor* CacheOf(const ggml_tensor* rows);
// What a cache's rows are read as; empty: nothing that is answered.
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

// Facts about a layer's caches, learnt from the nodes that were planned. The key cache's data finds them. Thread-safe.
// A later context's cache may take the memory of an earlier one's: what is planned last holds.
struct CacheFacts {
  int layer = 0, head_dim = 0, num_q_heads = 0, num_kv_heads = 0;
  DType key_type = DType::kFloat16, value_type = DType::kFloat16;
  int rotation = 0;  // of keys and queries
  float scale = 0, softcap = 0;
  Rope rope, plain_rope;                  // plain: as the model turns where its context is not stretched
  int64_t capacity = 0, num_streams = 0;  // capacity: cells a stream
  std::array<int32_t, GGML_MAX_OP_PARAMS / sizeof(int32_t)> rope_params = {};
  const void* rope_factors = nullptr;
  ggml_backend_buffer_t buffer = nullptr, value_buffer = nullptr;  // one, in which the caches of a context lie
  const uint8_t *keys = nullptr, *values = nullptr;
  size_t cell_bytes = 0, value_cell_bytes = 0, stream_bytes = 0, value_stream_bytes = 0;
};
void Learn(const AttentionNode& node);
// Why llama.cpp attends over a cache by itself in the graph that was planned last on it.
struct Refusal {
  std::string why;      // empty: it does not
  bool counts = false;  // of few query tokens over many cells, as the nodes that are answered are
};
void LearnRefusal(const void* keys, const Refusal& refusal);
Refusal FindRefusal(const void* keys);
bool FindFacts(const void* keys, CacheFacts* facts);
// The caches of a context that is freed: their memory may become another model's.
void Forget(const void* keys);
// Layers of the model of that shape whose caches lie in the same buffer, ascending: those that attend all, or those
// that slide. Profiles count them from 0.
std::vector<CacheFacts> FactsOfCache(const CacheFacts& facts);
std::vector<int> LayersOfCache(const CacheFacts& facts);
// Facts of a layer of the model whose cache lies in another buffer, the one with the most cells: has it more, this
// one's layers slide. Absent: there is none.
std::optional<CacheFacts> FindOther(const CacheFacts& facts);
// Returns the facts of all layers with as many heads of that head_dim, of this model and of others.
std::vector<CacheFacts> LayersOfShape(const CacheFacts& facts);
// The key cache whose values lie there; nullptr: not known.
const void* KeysOfValues(const void* values);

// The GGML_OP_ROPE that queries or keys come out of, found among what they are computed of. nullptr: there is none.
const ggml_tensor* FindRope(const ggml_tensor* turned);
// llama.cpp multiplies queries, keys and values by Walsh-Hadamard matrices of so many rows before it quantises a cache,
// unless LLAMA_ATTN_ROT_DISABLE is set. 0: these come without.
int RotationOf(const ggml_tensor* rows);
// Returns true if these rows are a product of weights that lie on a GPU, which then computes the layer's nodes.
bool ComesFromGpu(const ggml_tensor* rows);
// Returns true if its data is there and the CPU can read it.
bool IsOnHost(const ggml_tensor* tensor);
// Read off that node; frequencies are 0 where there is none. Not stated: it is of a kind that a profile's moments
// cannot be carried through. Frequency factors are read where there is data, of a GPU too. `stretched`: with YaRN and
// the scale of positions.
Rope RopeOf(const ggml_tensor* turned, bool stretched = true);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_NODE_H_
