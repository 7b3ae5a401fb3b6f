// Reads nodes of the llama.cpp that it is built with.
#include "engines/llama.cpp/node.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "ggml-backend.h"

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

namespace {

struct Known {
  std::mutex mutex;
  std::map<const void*, CacheFacts> caches;  // by the keys' data
  std::map<const void*, const void*> keys_of_values;
  std::map<const void*, Refusal> refusals;  // by the keys' data
};

Known& Everything() {
  static auto* const known = new Known();
  return *known;
}

// Returns true if what was learnt before still holds: another model's caches may have come to lie there.
bool SameCaches(const CacheFacts& a, const CacheFacts& b) {
  return a.layer == b.layer && a.head_dim == b.head_dim && a.num_q_heads == b.num_q_heads &&
         a.num_kv_heads == b.num_kv_heads && a.key_type == b.key_type && a.value_type == b.value_type &&
         a.rotation == b.rotation && a.scale == b.scale && a.softcap == b.softcap && a.capacity == b.capacity &&
         a.num_streams == b.num_streams && a.buffer == b.buffer && a.value_buffer == b.value_buffer &&
         a.values == b.values && a.rope_params == b.rope_params && a.rope_factors == b.rope_factors;
}

}  // namespace

void Learn(const AttentionNode& node) {
  const ggml_tensor *keys = RootOf(node.keys), *values = RootOf(node.values);
  CacheFacts facts;
  if (keys->data == nullptr || values->data == nullptr || !IsKeyCache(keys, &facts.layer)) return;
  Known& known = Everything();
  const std::lock_guard<std::mutex> lock(known.mutex);
  known.refusals.erase(keys->data);
  facts.head_dim = node.head_dim;
  facts.num_q_heads = node.num_q_heads;
  facts.num_kv_heads = node.num_kv_heads;
  facts.key_type = *RowTypeOf(keys), facts.value_type = *RowTypeOf(values);
  facts.rotation = RotationOf(node.queries);
  facts.scale = node.scale, facts.softcap = node.softcap;
  if (const ggml_tensor* rope = FindRope(node.queries)) {
    std::copy_n(rope->op_params, facts.rope_params.size(), facts.rope_params.begin());
    facts.rope_factors = rope->src[2] == nullptr ? nullptr : rope->src[2]->data;
  }
  facts.capacity = keys->ne[1];
  facts.num_streams = keys->ne[2];
  facts.buffer = keys->buffer, facts.value_buffer = values->buffer;
  facts.keys = static_cast<const uint8_t*>(keys->data);
  facts.values = static_cast<const uint8_t*>(values->data);
  facts.cell_bytes = keys->nb[1], facts.stream_bytes = keys->nb[2];
  facts.value_cell_bytes = values->nb[1], facts.value_stream_bytes = values->nb[2];
  const auto held = known.caches.find(keys->data);
  if (held != known.caches.end() && held->second.rope.stated() && SameCaches(held->second, facts)) return;
  facts.rope = RopeOf(node.queries);
  facts.plain_rope = RopeOf(node.queries, /*stretched=*/false);
  known.caches[keys->data] = facts;
  known.keys_of_values[values->data] = keys->data;
}

void LearnRefusal(const void* keys, const Refusal& refusal) {
  Known& known = Everything();
  const std::lock_guard<std::mutex> lock(known.mutex);
  known.refusals[keys] = refusal;
}

Refusal FindRefusal(const void* keys) {
  Known& known = Everything();
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto held = known.refusals.find(keys);
  return held == known.refusals.end() ? Refusal{} : held->second;
}

bool FindFacts(const void* keys, CacheFacts* facts) {
  Known& known = Everything();
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto held = known.caches.find(keys);
  if (held == known.caches.end()) return false;
  *facts = held->second;
  return true;
}

void Forget(const void* keys) {
  Known& known = Everything();
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto held = known.caches.find(keys);
  if (held == known.caches.end()) return;
  known.keys_of_values.erase(held->second.values);
  known.caches.erase(held);
}

std::vector<CacheFacts> LayersOfShape(const CacheFacts& facts) {
  Known& known = Everything();
  const std::lock_guard<std::mutex> lock(known.mutex);
  std::vector<CacheFacts> found;
  for (const auto& [keys, other] : known.caches) {
    if (other.num_q_heads == facts.num_q_heads && other.num_kv_heads == facts.num_kv_heads &&
        other.head_dim == facts.head_dim) {
      found.push_back(other);
    }
  }
  return found;
}

std::vector<CacheFacts> FactsOfCache(const CacheFacts& facts) {
  // What was learnt of a context that is gone may name a buffer at the same address.
  const auto* base = static_cast<const uint8_t*>(ggml_backend_buffer_get_base(facts.buffer));
  const uint8_t* const end = base + ggml_backend_buffer_get_size(facts.buffer);
  std::map<int, CacheFacts> layers;
  for (const CacheFacts& other : LayersOfShape(facts)) {
    if (other.buffer == facts.buffer && other.keys >= base && other.keys < end) layers.emplace(other.layer, other);
  }
  std::vector<CacheFacts> found;
  for (auto& [layer, other] : layers) found.push_back(std::move(other));
  return found;
}

std::vector<int> LayersOfCache(const CacheFacts& facts) {
  std::vector<int> layers;
  for (const CacheFacts& other : FactsOfCache(facts)) layers.push_back(other.layer);
  return layers;
}

std::optional<CacheFacts> FindOther(const CacheFacts& facts) {
  std::vector<CacheFacts> all;
  {
    Known& known = Everything();
    const std::lock_guard<std::mutex> lock(known.mutex);
    for (const auto& [keys, other] : known.caches) all.push_back(other);
  }
  // Another context of this model, or a draft's, has layers of the same numbers.
  const auto alike = [&](const CacheFacts& other) {
    return std::any_of(all.begin(), all.end(), [&](const CacheFacts& x) {
      return x.buffer == other.buffer && std::any_of(all.begin(), all.end(), [&](const CacheFacts& y) {
               return y.buffer == facts.buffer && y.layer == x.layer;
             });
    });
  };
  std::optional<CacheFacts> found;
  for (const CacheFacts& other : all) {
    if (other.buffer == facts.buffer || alike(other)) continue;
    if (!found || other.capacity > found->capacity) found = other;
  }
  return found;
}

const void* KeysOfValues(const void* values) {
  Known& known = Everything();
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto held = known.keys_of_values.find(values);
  return held == known.keys_of_values.end() ? nullptr : held->second;
}

namespace {

// The matrix that rows are multiplied by in `node`: square, and an input of the graph, which weights are not. nullptr:
// another operation.
const ggml_tensor* RotationIn(const ggml_tensor* node) {
  if (node->op != GGML_OP_MUL_MAT) return nullptr;
  const ggml_tensor* matrix = node->src[0];
  return (matrix->flags & GGML_TENSOR_FLAG_INPUT) != 0 && matrix->ne[0] == matrix->ne[1] ? matrix : nullptr;
}

// Among what rows are computed of, the nearest node for which is(node).
template <typename Is>
const ggml_tensor* FindAmong(const ggml_tensor* rows, Is is) {
  constexpr int kDeepest = 12;  // views, scales and rotations between
  for (int depth = 0; rows != nullptr && depth <= kDeepest; ++depth) {
    if (is(rows)) return rows;
    rows = RotationIn(rows) != nullptr ? rows->src[1] : rows->src[0];
  }
  return nullptr;
}

// Returns true if rows are computed of nothing that turns: what they come of was followed to a weight, and parts of
// heads were not joined on the way.
bool NothingTurns(const ggml_tensor* rows) {
  const ggml_tensor* node = FindAmong(rows, [](const ggml_tensor* of) {
    return of->op == GGML_OP_ROPE || of->op == GGML_OP_CONCAT || (of->op == GGML_OP_NONE && of->view_src == nullptr);
  });
  return node != nullptr && node->op == GGML_OP_NONE;
}

}  // namespace

const ggml_tensor* FindRope(const ggml_tensor* turned) {
  return FindAmong(turned, [](const ggml_tensor* node) { return node->op == GGML_OP_ROPE; });
}

int RotationOf(const ggml_tensor* rows) {
  const ggml_tensor* node = FindAmong(rows, [](const ggml_tensor* of) { return RotationIn(of) != nullptr; });
  return node == nullptr ? 0 : static_cast<int>(node->src[0]->ne[0]);
}

bool ComesFromGpu(const ggml_tensor* rows) {
  const ggml_tensor* product = FindAmong(
      rows, [](const ggml_tensor* node) { return node->op == GGML_OP_MUL_MAT && RotationIn(node) == nullptr; });
  const ggml_tensor* weights = product == nullptr ? nullptr : RootOf(product->src[0]);
  if (weights == nullptr || weights->buffer == nullptr) return false;
  // The CPU has buffers of weights that are no host's: turned for its kernels.
  ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(weights->buffer));
  return device != nullptr && !ggml_backend_buffer_is_host(weights->buffer) &&
         ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU;
}

bool IsOnHost(const ggml_tensor* tensor) {
  const ggml_tensor* root = RootOf(tensor);
  return tensor->data != nullptr && (root->buffer == nullptr || ggml_backend_buffer_is_host(root->buffer));
}

Rope RopeOf(const ggml_tensor* turned, bool stretched) {
  const ggml_tensor* rope = FindRope(turned);
  if (rope == nullptr && !NothingTurns(turned)) return {};
  Rope out;
  out.inv_freq.resize(turned->ne[0] / 2);
  if (rope == nullptr) return out;
  const int dims = rope->op_params[1], mode = rope->op_params[2], original = rope->op_params[4];
  float base, scale, extrapolation, beta_fast, beta_slow;
  std::memcpy(&base, &rope->op_params[5], sizeof(float));
  std::memcpy(&scale, &rope->op_params[6], sizeof(float));
  std::memcpy(&extrapolation, &rope->op_params[7], sizeof(float));
  std::memcpy(&beta_fast, &rope->op_params[9], sizeof(float));
  std::memcpy(&beta_slow, &rope->op_params[10], sizeof(float));
  const bool neighbours = mode == GGML_ROPE_TYPE_NORMAL;
  constexpr int kOffset = 15;  // the parameter of the first coordinate that turns, where it is not the head's
  const bool known = neighbours || mode == GGML_ROPE_TYPE_NEOX;
  if (rope->ne[0] != turned->ne[0] || dims > rope->ne[0] || rope->op_params[kOffset] != 0 || !known) return {};
  std::vector<float> factors;
  if (const ggml_tensor* held = rope->src[2]) {
    if (held->data == nullptr || ggml_nbytes(held) < dims / 2 * sizeof(float)) return {};
    factors.resize(dims / 2);
    if (IsOnHost(held)) {
      std::memcpy(factors.data(), held->data, factors.size() * sizeof(float));
    } else {
      ggml_backend_tensor_get(held, factors.data(), 0, factors.size() * sizeof(float));
    }
  }
  // YaRN's ramp between coordinates that turn as they did in training and those that are stretched (its section 3.2).
  const auto corrected = [&](double turns) {
    return dims * std::log(original / (turns * 2 * M_PI)) / (2 * std::log(static_cast<double>(base)));
  };
  const double low = std::max(0.0, std::floor(corrected(beta_fast)));
  const double high = std::min(dims - 1.0, std::ceil(corrected(beta_slow)));
  constexpr double kSlowest = 1e-12;  // radians a token: what factors put to sleep, as Gemma 4's, does not turn
  if (dims < rope->ne[0]) out.rotary_dim = dims;
  out.style = neighbours ? Rope::Style::kInterleaved : Rope::Style::kHalfSplit;
  for (int i = 0; i < dims / 2; ++i) {
    double own = std::pow(static_cast<double>(base), -2.0 * i / dims);
    if (!factors.empty()) own /= factors[i];
    double frequency = stretched ? scale * own : own;
    if (stretched && extrapolation != 0) {
      const double ramp = 1 - std::clamp((i - low) / std::max(.001, high - low), 0.0, 1.0);
      frequency = frequency * (1 - ramp * extrapolation) + own * ramp * extrapolation;
    }
    out.inv_freq[i] = frequency < kSlowest ? 0 : frequency;
  }
  return out;
}

}  // namespace seine::llama
