// Caches in snapshots: a part of HeadGroupCache (head_group_cache.h).
#include <algorithm>

#include "index/bytes/state_reader.h"
#include "index/bytes/state_writer.h"
#include "index/sequence/head_group_cache.h"

namespace seine {

void HeadGroupCache::PlanOwnTail(Staging* staging) {
  for (RowStore* store : {&keys_, &values_, &checksums_, &positions_}) store->PlanOwnTail(size_, staging);
  windows_.PlanOwnTail(WindowsAt(size_), staging);
  codes_.PlanOwnTail(staging);
}

// Keys and values are missing where they have been encoded (kNone), or are low-rank.
PieceList::Extent HeadGroupCache::RowExtent() const {
  if (!keeps_all_keys()) return {size_, std::min<int64_t>(context_->config.zones.sink, raw_begin_), raw_begin_};
  if (!low_.empty()) return {size_, low_begin_, low_end()};
  return {.end = size_};
}

void HeadGroupCache::Save(StateWriter* writer) const {
  writer->Put(size_);
  writer->Put(raw_begin_);
  SaveLow(writer);
  keys_.Save(RowExtent(), writer);
  if (keeps_values()) values_.Save(RowExtent(), writer);
  if (keeps_checksums()) checksums_.Save({.end = size_}, writer);
  if (!whole_) positions_.Save({.end = size_}, writer);
  if (keeps_values()) SaveWindows(writer);
  for (const KeySums& sums : sums_) sums.Save(writer);
  context_->transforms.Save(codes_.encoded() > 0 ? codes_.codecs() : nullptr, writer);
  codes_.Save(writer);
}

void HeadGroupCache::Load(int64_t length, StateReader* reader) {
  size_ = reader->GetWithin(whole_ ? length : 0, length, "a head holds more than its layer");
  raw_begin_ = reader->GetWithin(0, keeps_all_keys() ? 0 : size_, "stored keys begin behind the last");
  LoadLow(reader);
  const DType* const dtype = &context_->config.geometry.dtype;
  if (reader->ok()) keys_.Load(RowExtent(), dtype, reader);
  if (keeps_values() && reader->ok()) values_.Load(RowExtent(), dtype, reader);
  if (keeps_checksums()) checksums_.Load({.end = size_}, nullptr, reader);
  if (!whole_) positions_.Load({.end = size_}, nullptr, reader);
  if (keeps_values()) LoadWindows(reader);
  for (KeySums& sums : sums_) sums.Load(size_, reader);
  codes_.Choose(context_->transforms.Load(reader));
  codes_.Load(context_->ZoneKeys(size_), std::max<int64_t>(0, size_ - context_->config.zones.sink), reader);
}

void HeadGroupCache::SaveWindows(StateWriter* writer) const {
  writer->Put<int32_t>(windows_.chunk_tokens());
  windows_.Save({.end = WindowsAt(size_)}, writer);
}

// Pieces stay as long as they were written, so that sequences go on to share them.
void HeadGroupCache::LoadWindows(StateReader* reader) {
  const PieceList::Shape& earlier = whole_ ? context_->earlier_window_shape : context_->earlier_head_window_shape;
  const int32_t length = reader->version() == 1 ? earlier.length : reader->Get<int32_t>();
  if (length == earlier.length) windows_ = RowStore(whole_ ? &context_->windows : &context_->head_windows, &earlier);
  reader->Check(length == windows_.chunk_tokens(), "a piece holds another number of windows");
  if (reader->ok()) windows_.Load({.end = WindowsAt(size_)}, nullptr, reader);
}

void HeadGroupCache::SaveLow(StateWriter* writer) const {
  if (low_.empty()) return;
  writer->Put(low_begin_);
  for (const LowRankStore& low : low_) low.Save(writer);
}

void HeadGroupCache::LoadLow(StateReader* reader) {
  if (low_.empty()) return;
  low_begin_ = reader->GetWithin(0, size_, "low-rank tokens begin behind the last");
  for (LowRankStore& low : low_) {
    low.Load(size_ - low_begin_, reader);
    reader->Check(low.size() == low_[0].size(), "heads differ in low-rank tokens");
  }
  if (reader->ok()) LowRankChanged();
}

bool HeadGroupCache::IsRight(int64_t length) const {
  int32_t last = -1;
  for (int64_t place = 0; place < size_ && !whole_; ++place) {
    if (position(place) <= last) return false;
    last = position(place);
  }
  return last < length;
}

}  // namespace seine
