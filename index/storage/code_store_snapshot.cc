// Codes in snapshots, as they lie: a part of CodeStore (code_store.h).
#include <utility>

#include "index/bytes/state_reader.h"
#include "index/bytes/state_writer.h"
#include "index/storage/code_store.h"

namespace seine {

void CodeStore::PlanOwnTail(Staging* staging) {
  for (Head& head : heads_) {
    head.scan.PlanOwnTail(encoded_, staging);
    head.fine.PlanOwnTail(encoded_, staging);
  }
  if (visible_ > 0) counts_.PlanOwnTail(1, staging);
}

void CodeStore::Save(StateWriter* writer) const {
  writer->Put(visible_);
  writer->Put(encoded_);
  if (encoded_ == 0) return;
  writer->Put<uint8_t>(centre_ != nullptr ? 1 : 0);
  if (centre_ != nullptr && writer->PutRef(centre_.get())) {
    for (const SharedCentre& centre : *centre_) {
      writer->PutVector(centre.values);
      writer->Put(centre.scale);
    }
  }
  for (const Head& head : heads_) {
    head.scan.Save({.end = encoded_}, writer);
    head.fine.Save({.end = encoded_}, writer);
  }
  if (shape_->with_counts && visible_ > 0) counts_.Save({.end = 1}, writer);
}

void CodeStore::Load(int64_t zone_keys, int64_t most_keys, StateReader* reader) {
  const int64_t visible = reader->GetWithin(zone_keys, zone_keys, "a zone has another length");
  const int64_t encoded = reader->GetWithin(visible, most_keys, "more is encoded than there is");
  reader->Check(encoded % shape_->unit_keys == 0 && (encoded == 0 || codecs_ != nullptr), "a window is cut");
  if (!reader->ok() || encoded == 0) return;
  LoadCentre(reader);
  heads_.resize(shape_->heads, Head{PieceList(&shape_->scan_parts), PieceList(&shape_->fine_parts), {}});
  for (Head& head : heads_) {
    head.scan.Load({.end = encoded}, {}, reader);
    head.fine.Load({.end = encoded}, {}, reader);
    for (size_t i = 0; i < head.scan.size() && reader->ok(); ++i) {
      reader->Check(head.scan.capacity(i) == head.fine.capacity(i), "parts of a segment differ");
    }
  }
  if (shape_->with_counts && visible > 0) counts_.Load({.end = 1}, {}, reader);
  if (!reader->ok()) return;
  visible_ = visible;
  encoded_ = encoded;
  Refresh();
}

void CodeStore::LoadCentre(StateReader* reader) {
  const bool shared = reader->GetBool();
  if (!reader->Check(shared == (codec(0).centre() == Centre::kGlobal), "the centre is of another kind")) return;
  bool is_new = false;
  auto* const found = shared ? reader->GetRef<std::shared_ptr<const std::vector<SharedCentre>>>(&is_new) : nullptr;
  if (found == nullptr) return;
  if (is_new) {
    std::vector<SharedCentre> centres(shape_->heads);
    for (SharedCentre& centre : centres) {
      centre.values = reader->GetVector<int8_t>();
      centre.scale = reader->GetFinite<float>();
      reader->Check(static_cast<int>(centre.values.size()) == shape_->layout.head_dim, "a centre has a wrong size");
    }
    *found = std::make_shared<const std::vector<SharedCentre>>(std::move(centres));
  }
  if (reader->Check(static_cast<int>((*found)->size()) == shape_->heads, "a centre is another's")) centre_ = *found;
}

}  // namespace seine
