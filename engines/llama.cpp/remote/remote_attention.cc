// Hands each node to its cache, and tells caches that slide from those that see all.
#include "engines/llama.cpp/remote/remote_attention.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engines/llama.cpp/ggml/origin.h"
#include "engines/llama.cpp/report.h"

namespace seine::llama {

namespace {

constexpr char kRemovedEarly[] = "cells that were removed before it was seen which layers slide";
constexpr char kF32[] = "keys of f32";

}  // namespace

RemoteCache& RemoteAttention::CacheOf(const ggml_tensor* keys) {
  const ggml_backend_buffer_t buffer = RootOf(keys)->buffer;
  if (const auto held = caches_.find(buffer); held != caches_.end()) return *held->second;
  auto cache = std::make_unique<RemoteCache>(&team_);
  for (const auto& [other, of] : caches_) {
    if (of->slides()) cache->SetSeesAll();
  }
  return *(caches_[buffer] = std::move(cache));
}

void RemoteAttention::ReadRows(const ggml_tensor* node, int layer) {
  const ggml_tensor *rows = node->src[0], *indices = node->src[1];
  std::vector<int64_t> cells(rows->ne[1]);
  for (size_t i = 0; i < cells.size(); ++i) cells[i] = RowIndex(indices, static_cast<int64_t>(i));
  RemoteCache& cache = CacheOf(node);
  if (layer <= layer_ || !cache.Writes(layer, cells)) {  // another graph
    for (const auto& [buffer, of] : caches_) of->Begin();
    positions_.clear();
    cache.Writes(layer, cells);
  }
  layer_ = layer;
  if (!positions_.empty()) return;
  const absl::Span<const int32_t> positions = PositionsOf(rows);  // of the first layer that turns
  positions_.assign(positions.begin(), positions.end());
}

void RemoteAttention::SetSlides(RemoteCache* slides, int64_t window) {
  slides->SetSlides(window);
  for (const auto& [buffer, cache] : caches_) {
    if (!cache->slides()) cache->SetSeesAll();
  }
}

bool RemoteAttention::Learn(const AttentionNode& node, RemoteCache* cache) {
  if (!cache->is_known()) {
    if (const int64_t window = cache->WindowShown(node); window > 0) SetSlides(cache, window);
  }
  for (const auto& [buffer, other] : caches_) {
    if (other.get() == cache || !other->seen()) continue;
    if (other->is_untold()) {
      if (!cache->whole() || other->last_count() == 0) return false;
      SetSlides(other.get(), other->last_count());
    } else if (other->whole() && !cache->is_known() && !cache->whole() && cache->last_count() > 0) {
      SetSlides(cache, cache->last_count());
    }
  }
  return true;
}

bool RemoteAttention::CanTell(const RemoteCache& cache) const {
  if (cache.is_known() || cache.whole()) return true;
  return std::all_of(caches_.begin(), caches_.end(),
                     [&](const auto& of) { return of.second.get() == &cache || of.second->seen(); });
}

ggml_status RemoteAttention::Attend(ggml_tensor* tensor) {
  const AttentionNode node(tensor);
  int layer = 0;
  IsKeyCache(RootOf(node.keys), &layer);
  RemoteCache& cache = CacheOf(node.keys);
  if (cache.Sees(node, &positions_) && !Learn(node, &cache)) return cache.Decline(node, kRemovedEarly);
  if (!CanTell(cache)) return cache.AttendUntold(node, kRemovedEarly);
  const ggml_status status = cache.Attend(node, layer);
  if (status == GGML_STATUS_SUCCESS && (caches_.size() == 1 || (cache.is_known() && !cache.slides()))) {
    cache.GiveBack(layer);
  }
  return status;
}

ggml_status RemoteAttention::SetRows(ggml_tensor* node) {
  if (const ggml_status status = team_.Compute(node); status != GGML_STATUS_SUCCESS) return status;
  int layer = 0;
  const bool keys = IsKeyCache(RootOf(node), &layer);
  if (keys && node->type == GGML_TYPE_F32) {  // they are cast, and attended where no backend of ours sees it
    Report::Get().Declined(kF32);
    SayOnce(absl::StrCat("decoding fails: SEINE_ENDPOINT has no use for ", kF32, " (-ctk f16)"));
    return GGML_STATUS_FAILED;
  }
  if (keys) {
    ReadRows(node, layer);
  } else if (node->ne[0] == 1) {  // values lie transposed
    SayOnce("decoding fails: SEINE_ENDPOINT needs flash attention (-fa on)");
    return GGML_STATUS_FAILED;
  }
  return GGML_STATUS_SUCCESS;
}

ggml_status RemoteAttention::Shift(ggml_tensor* node) {
  const ggml_tensor* shifts = node->op == GGML_OP_ROPE ? node->src[1] : nullptr;
  const bool is_read = shifts != nullptr && shifts->type == GGML_TYPE_I32 && IsOnHost(shifts) &&
                       shifts->ne[0] == RootOf(node)->ne[1] * RootOf(node)->ne[2];
  CacheOf(node).Shift(is_read ? shifts : nullptr);
  return team_.Compute(node);
}

}  // namespace seine::llama
