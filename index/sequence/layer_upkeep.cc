// A layer besides appends and evictions (layer.h): codes that are outgrown and made anew from what is stored, bases,
// and snapshots. These do not keep whether the reencoder has queued the layer, and how often it was cut, which nobody
// asks after the process has ended.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "index/bytes/state_reader.h"
#include "index/bytes/state_writer.h"
#include "index/sequence/layer.h"
#include "profile/field_error.h"

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

void Layer::UpdateReencodeDue(int64_t appended) {
  constexpr int64_t kFar = 5;  // a fifth of the length: what the reencoder may lag behind while decoding
  if (!keeps_all_keys() || !Outgrown()) return ClearReencodeDue();
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
  if (added.refused) context_->dropped_queries.fetch_add(1, std::memory_order_relaxed);
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
  UpdateReencodeDue(0);
}

absl::StatusOr<LayerBases> Layer::Bases() const {
  LayerBases bases;
  for (int h = 0; h < num_heads(); ++h) {
    const LowRankStore& low = *cache(h).low_rank(h - cache(h).first_head());
    std::optional<Basis> keys = low.key_basis(), values = low.value_basis();
    if (!keys || !values) {
      return FieldError(
          absl::StatusCode::kFailedPrecondition, "layer",
          absl::StrCat(layer_, " has no basis yet; it begins with the first tokens that become low-rank"));
    }
    bases.keys.push_back(*std::move(keys));
    bases.values.push_back(*std::move(values));
  }
  return bases;
}

absl::Status Layer::SetBases(const LayerBases& bases) {
  std::vector<std::vector<LowRankStore>> next(caches_.size());  // of every head, so that all change or none does
  for (int h = 0; h < num_heads(); ++h) {
    std::vector<LowRankStore>& of_strip = next[evicted() ? h : 0];
    of_strip.push_back(*cache(h).low_rank(h - cache(h).first_head()));
    if (absl::Status s = of_strip.back().SetBases(bases.keys[h], bases.values[h]); !s.ok()) return s;
  }
  for (size_t i = 0; i < caches_.size(); ++i) caches_[i]->SetLowRank(std::move(next[i]));
  return absl::OkStatus();
}

absl::Status Layer::TakeApart(const Layer& source) {
  Staging staging;
  for (const auto& cache : caches_) cache->PlanOwnTail(&staging);
  if (absl::Status s = staging.Allocate(&context_->ledger); !s.ok()) return s;
  staging.Install();
  for (const auto& cache : caches_) cache->Installed();
  if (!attention_sums_.Part() || !queries_.CopyFrom(source.queries_)) {
    return absl::ResourceExhaustedError("out of memory: no room for a copy of what a layer was asked");
  }
  return absl::OkStatus();
}

void Layer::Save(StateWriter* writer) const {
  writer->Put(length_);
  writer->Put(evictions_);
  writer->Put<uint8_t>(due() ? 1 : 0);
  writer->Put<uint8_t>(evicted() ? 1 : 0);
  for (const auto& cache : caches_) cache->Save(writer);
  kept_queries_.Save(writer);
  attention_sums_.Save(Sizes(), writer);
  queries_.Save(writer);
  writer->EndPart();
}

void Layer::Load(StateReader* reader) {
  length_ = reader->GetWithin(0, INT32_MAX, "a layer is too long");
  evictions_ = reader->GetWithin(0, INT64_MAX / 4, "evictions are too many");
  due_ = reader->GetBool();
  if (reader->GetBool()) {
    reader->Check(context_->config.kv_store != KvStore::kNone, "nothing can have been evicted");
    caches_.clear();
    for (int h = 0; h < num_heads(); ++h) caches_.push_back(std::make_unique<HeadGroupCache>(context_, layer_, h));
  }
  for (const auto& cache : caches_) {
    if (reader->ok()) cache->Load(length_, reader);
  }
  if (!reader->ok()) return;
  kept_queries_.Load(length_, reader);
  attention_sums_.Load(Sizes(), length_, reader);
  queries_.Load(reader);
  reader->EndPart();
}

absl::Status Layer::Finish() {
  for (const auto& cache : caches_) {
    if (!cache->IsRight(length_)) {
      return absl::DataLossError("the snapshot contradicts itself: positions of a head do not ascend");
    }
  }
  Publish();
  return absl::OkStatus();
}

}  // namespace seine
