// A layer in snapshots: a part of Layer (layer.h). What is not kept: whether the reencoder has queued the layer, and
// how often it was cut, which nobody asks after the process has ended.
#include <utility>

#include "index/bytes/state_reader.h"
#include "index/bytes/state_writer.h"
#include "index/sequence/layer.h"

namespace seine {

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
