// Reads nodes of the llama.cpp that it is built with.
#include "engines/llama.cpp/ggml/node.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace seine::llama {

namespace {

constexpr uint16_t kMinusInfinity = 0xFC00;

bool IsCache(const ggml_tensor* root, const char* prefix, int* layer) {
  const size_t length = std::strlen(prefix);
  if (std::strncmp(root->name, prefix, length) != 0) return false;
  if (layer != nullptr) *layer = std::atoi(root->name + length);
  return true;
}

}  // namespace

const ggml_tensor* RootOf(const ggml_tensor* tensor) {
  while (tensor->view_src != nullptr) tensor = tensor->view_src;
  return tensor;
}

const ggml_tensor* CacheOf(const ggml_tensor* rows) {
  const ggml_tensor* root = RootOf(rows);
  return root->op == GGML_OP_CPY && root->src[0] != nullptr ? RootOf(root->src[0]) : root;
}

bool IsKeyCache(const ggml_tensor* root, int* layer) { return IsCache(root, "cache_k_l", layer); }
bool IsValueCache(const ggml_tensor* root, int* layer) { return IsCache(root, "cache_v_l", layer); }

std::optional<DType> RowTypeOf(const ggml_tensor* cache) {
  switch (cache->type) {
    case GGML_TYPE_F16:
      return DType::kFloat16;
    case GGML_TYPE_BF16:
      return DType::kBFloat16;
    case GGML_TYPE_Q8_0:
      return DType::kQ8;
    case GGML_TYPE_Q4_0:
      return DType::kQ4;
    default:
      return std::nullopt;
  }
}

namespace {

// Returns true if a node's keys or values lie as llama.cpp's caches do: [head_dim, cells, heads, streams] of
// [head_dim * heads, cells, streams].
bool LiesAsCache(const ggml_tensor* rows) {
  const ggml_tensor* root = RootOf(rows);
  return rows->nb[1] == root->nb[1] && rows->nb[2] == BytesOf(*RowTypeOf(rows), rows->ne[0]) &&
         rows->nb[2] * rows->ne[2] <= rows->nb[1] && (rows->ne[3] == 1 || rows->nb[3] == root->nb[2]) &&
         root->ne[3] == 1;
}

}  // namespace

int64_t RowIndex(const ggml_tensor* indices, int64_t i) {
  const char* at = static_cast<const char*>(indices->data) + i * indices->nb[0];
  int64_t index = 0;
  if (indices->type == GGML_TYPE_I32) {
    int32_t narrow;
    std::memcpy(&narrow, at, sizeof(narrow));
    index = narrow;
  } else {
    std::memcpy(&index, at, sizeof(index));
  }
  return index;
}

const char* UnfitShape(int head_dim, int value_head_dim, int num_q_heads, int num_kv_heads) {
  if (num_q_heads <= 0 || num_kv_heads <= 0) return "no heads";
  if (value_head_dim != head_dim) return "values of another head_dim than keys";
  if (num_q_heads % num_kv_heads != 0 || num_q_heads / num_kv_heads > kMaxGroup) {
    return "a group of more than 32 query heads";
  }
  for (const int dim : kHeadDims) {
    if (head_dim == dim) return nullptr;
  }
  return "a head_dim that is none of 64, 80, 96, 128, 192, 256, 512";
}

AttentionNode::AttentionNode(const ggml_tensor* n)
    : node(n),
      queries(n->src[0]),
      keys(n->src[1]),
      values(n->src[2]),
      mask(n->src[3]),
      sinks(n->src[4]),
      head_dim(static_cast<int>(keys->ne[0])),
      num_q_heads(static_cast<int>(queries->ne[2])),
      num_kv_heads(static_cast<int>(keys->ne[2])),
      num_tokens(queries->ne[1]),
      num_cells(keys->ne[1]),
      num_streams(keys->ne[3]) {
  std::memcpy(&scale, &n->op_params[0], sizeof(float));
  std::memcpy(&max_bias, &n->op_params[1], sizeof(float));
  std::memcpy(&softcap, &n->op_params[2], sizeof(float));
}

const char* AttentionNode::Unfit() const {
  for (const ggml_tensor* cache : {keys, values}) {
    if (CacheOf(cache)->type == GGML_TYPE_F32)
      return "a cache of f32, whose rows llama.cpp copies to f16 for each token";
    const std::optional<DType> type = RowTypeOf(cache);
    if (!type) return "a cache of another type than f16, bf16, q8_0 or q4_0";
    if (IsQuantised(*type) && cache->ne[0] % kScaledValues != 0) {
      return "a quantised cache of a head_dim that is no multiple of 32";
    }
  }
  if (queries->type != GGML_TYPE_F32 || node->type != GGML_TYPE_F32) return "queries of another type than f32";
  if (mask == nullptr || mask->type != GGML_TYPE_F16) return "no mask";
  if (mask->ne[2] != 1) return "a mask for each head";
  if (sinks != nullptr && sinks->type != GGML_TYPE_F32) return "attention sinks of another type than f32";
  if (max_bias != 0) return "ALiBi";
  if (const char* why = UnfitShape(head_dim, static_cast<int>(values->ne[0]), num_q_heads, num_kv_heads)) return why;
  if (!IsKeyCache(RootOf(keys)) || !IsValueCache(RootOf(values))) return "keys that lie in no cache";
  if (!LiesAsCache(keys) || !LiesAsCache(values) || queries->ne[3] != num_streams || values->ne[3] != num_streams) {
    return "a cache that is laid out otherwise than llama.cpp's";
  }
  return nullptr;
}

const uint16_t* AttentionNode::MaskRow(int64_t token, int64_t stream) const {
  return reinterpret_cast<const uint16_t*>(static_cast<const char*>(mask->data) + token * mask->nb[1] +
                                           (mask->ne[3] > 1 ? stream : 0) * mask->nb[3]);
}

bool AttentionNode::CellsSeen(int64_t first, int64_t stream, PromptBlock* block) const {
  std::vector<uint64_t> words(block->tokens());
  for (int64_t begin = 0; begin < num_cells; begin += kWindowTokens) {
    const auto count = static_cast<int>(std::min<int64_t>(kWindowTokens, num_cells - begin));
    for (int t = 0; t < block->tokens(); ++t) {
      const uint16_t* cells = MaskRow(first + t, stream) + begin;
      uint16_t others = 0, hidden = 0;
      for (int i = 0; i < count; ++i) others |= cells[i], hidden |= cells[i] ^ kMinusInfinity;
      words[t] = others == 0 ? ~uint64_t{0} >> (kWindowTokens - count) : 0;
      if (others == 0 || hidden == 0) continue;
      for (int i = 0; i < count; ++i) {
        if (cells[i] != 0 && cells[i] != kMinusInfinity) return false;
        words[t] |= static_cast<uint64_t>(cells[i] == 0 ? 1 : 0) << i;
      }
    }
    block->Add(begin, words.data());
  }
  return true;
}

bool AttentionNode::CellsSeen(int64_t token, int64_t stream, std::vector<CellRun>* runs) const {
  const uint16_t* row = MaskRow(token, stream);
  constexpr int64_t kBlock = 64;  // compared at once
  const auto first_other = [&](int64_t begin, uint16_t wanted) {
    int64_t i = begin;
    for (; i + kBlock <= num_cells; i += kBlock) {
      uint16_t other = 0;
      for (int64_t j = 0; j < kBlock; ++j) other |= row[i + j] ^ wanted;
      if (other != 0) break;
    }
    while (i < num_cells && row[i] == wanted) ++i;
    return i;
  };
  runs->clear();
  for (int64_t i = 0; i < num_cells;) {
    const int64_t end = first_other(i, 0), next = first_other(end, kMinusInfinity);
    if (next == i) return false;
    if (end > i) runs->push_back({i, end});
    i = next;
  }
  return true;
}

const float* AttentionNode::Query(int head, int64_t token, int64_t stream) const {
  return reinterpret_cast<const float*>(static_cast<const char*>(queries->data) + token * queries->nb[1] +
                                        head * queries->nb[2] + stream * queries->nb[3]);
}

float* AttentionNode::Output(int head, int64_t token, int64_t stream) const {
  return reinterpret_cast<float*>(static_cast<char*>(node->data) + head * node->nb[1] + token * node->nb[2] +
                                  stream * node->nb[3]);
}

void AttentionNode::TakeSinks(int head, int count, const float* log_sum_exp, float* output) const {
  const auto* sink = static_cast<const float*>(sinks->data) + head;
  for (int h = 0; h < count; ++h) {
    const float share = 1 / (1 + std::exp(sink[h] - log_sum_exp[h]));  // of what was seen; nothing seen: 0
    for (int j = 0; j < head_dim; ++j) output[h * head_dim + j] *= share;
  }
}

}  // namespace seine::llama
