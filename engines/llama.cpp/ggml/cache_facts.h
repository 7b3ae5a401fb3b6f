// Facts about a layer's caches, learnt from the nodes that were planned. The key cache's data finds them. Thread-safe.
// A later context's cache may take the memory of an earlier one's: what is planned last holds.
#ifndef SEINE_ENGINES_LLAMA_CPP_GGML_CACHE_FACTS_H_
#define SEINE_ENGINES_LLAMA_CPP_GGML_CACHE_FACTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engines/llama.cpp/ggml/node.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "kernels/types.h"
#include "profile/rope.h"

namespace seine::llama {

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

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_GGML_CACHE_FACTS_H_
