// Tables of what was learnt, of the whole process.
#include "engines/llama.cpp/ggml/cache_facts.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "engines/llama.cpp/ggml/origin.h"

namespace seine::llama {

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
  // Facts of a context that is gone may name a buffer at the same address.
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

}  // namespace seine::llama
