// When the codes of a layer are outgrown, and how they are made anew from what is stored: a part of Layer (layer.h).
#include <algorithm>
#include <utility>

#include "index/sequence/layer.h"

namespace seine {

namespace {

// An append of more tokens than this is a prompt's; of fewer, a decode step's, speculated tokens included.
constexpr int64_t kStepTokens = 16;

}  // namespace

bool Layer::Outgrown() const {
  return std::any_of(caches_.begin(), caches_.end(), [this](const auto& cache) {
    const CodeStore& codes = cache->codes();
    return codes.visible() > 0 && context_->transforms.Outgrown(*codes.codecs(), length_);
  });
}

bool Layer::WantsReencoding(int64_t appended) const {
  if (!keeps_all_keys()) return false;
  if (appended <= kStepTokens) return Outgrown();
  return std::any_of(caches_.begin(), caches_.end(), [this](const auto& cache) {
    const CodeStore& codes = cache->codes();
    return codes.visible() > 0 && context_->transforms.Doubled(*codes.codecs(), length_);
  });
}

void Layer::JudgeDue(int64_t appended) {
  constexpr int64_t kFar = 5;  // a fifth of the length: what the reencoder may lag behind while decoding
  if (!keeps_all_keys() || !Outgrown()) return NotDue();
  const bool far = std::any_of(caches_.begin(), caches_.end(), [this](const auto& cache) {
    const CodeStore& codes = cache->codes();
    return codes.visible() > 0 && context_->transforms.Outgrown(*codes.codecs(), length_ - length_ / kFar);
  });
  if (far || appended > kStepTokens) due_.store(true, std::memory_order_relaxed);
}

bool Layer::keeps_all_keys() const { return context_->config.kv_store != KvStore::kNone; }

bool Layer::Refittable() const {
  const CodecConfig& codec = context_->config.codec;
  return keeps_all_keys() && TraitsOf(codec.name).needs_profile && !codec.query_position;
}

bool Layer::RecordQueries(int64_t position, const float* queries) const {
  if (!keeps_all_keys()) return false;
  const QueryWindow::Added added = queries_.Add(position, queries);
  if (added.refused) context_->queries_not_kept.fetch_add(1, std::memory_order_relaxed);
  return added.renewed && Refittable();
}

std::shared_ptr<const LayerCodecs> Layer::codecs() const {
  for (const auto& cache : caches_) {
    if (cache->codes().codecs() != nullptr) return cache->codes().codecs();
  }
  return nullptr;
}

std::vector<CodeStore> Layer::NewCodes(const std::shared_ptr<const LayerCodecs>& codecs) const {
  std::vector<CodeStore> next;
  for (const auto& cache : caches_) {
    next.push_back(cache->codes().Empty());
    next.back().Choose(codecs);
  }
  return next;
}

absl::Status Layer::GrowFromStored(int64_t most, std::vector<CodeStore>* next) const {
  for (size_t i = 0; i < caches_.size(); ++i) {
    if (absl::Status s = caches_[i]->GrowFromStored(most, &(*next)[i]); !s.ok()) return s;
  }
  return absl::OkStatus();
}

bool Layer::Ready(const std::vector<CodeStore>& next) const {
  for (size_t i = 0; i < caches_.size(); ++i) {
    if (next[i].visible() < caches_[i]->codes().visible()) return false;
  }
  return true;
}

void Layer::Swap(std::vector<CodeStore>* next) {
  for (size_t i = 0; i < caches_.size(); ++i) std::swap(*caches_[i]->mutable_codes(), (*next)[i]);
  JudgeDue(0);
}

}  // namespace seine
