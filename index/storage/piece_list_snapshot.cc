// Piece lists in snapshots: a part of PieceList (piece_list.h). A full piece is written as it lies; of one that has
// room left, what is used.
#include <algorithm>
#include <cstring>
#include <utility>

#include "index/bytes/state_reader.h"
#include "index/bytes/state_writer.h"
#include "index/storage/piece_list.h"

namespace seine {

// A piece that several lists may name.
struct PieceList::Restored {
  CowPtr<Piece> piece;
  int count = 0;  // entries that are there
  const Shape* shape = nullptr;
};

namespace {

int RoundUp(int n, int step) { return (n + step - 1) / step * step; }

void CopyEntries(const PieceFormat& format, const uint8_t* from, int from_capacity, uint8_t* to, int to_capacity,
                 int count) {
  std::vector<CopyTask> copies;
  format.Copy(from, from_capacity, to, to_capacity, count, &copies);
  for (const CopyTask& copy : copies) std::memcpy(copy.to, copy.from, copy.bytes);
}

int64_t BytesOfEntries(const PieceFormat& format, const Piece& piece, int count) {
  std::vector<CopyTask> copies;  // of the piece onto itself: nobody makes them
  format.Copy(piece.memory.data(), piece.capacity, piece.memory.data(), piece.capacity, count, &copies);
  int64_t bytes = 0;
  for (const CopyTask& copy : copies) bytes += static_cast<int64_t>(copy.bytes);
  return bytes;
}

}  // namespace

int64_t PieceList::NeededOf(size_t i, const Extent& extent) const {
  const int64_t begin = static_cast<int64_t>(i) * shape_->length, end = std::min(begin + shape_->length, extent.end);
  if (end <= begin) return 0;
  const bool ends_in_gap = end > extent.gap_begin && end <= extent.gap_end;
  return ends_in_gap ? std::max<int64_t>(0, extent.gap_begin - begin) : end - begin;
}

void PieceList::Save(const Extent& extent, StateWriter* writer) const {
  size_t pieces = pieces_.size();
  while (pieces > 0 && !pieces_[pieces - 1]) --pieces;  // dropped ones at the end are as good as none
  writer->Put<uint64_t>(pieces);
  for (size_t i = 0; i < pieces; ++i) {
    const int64_t begin = static_cast<int64_t>(i) * shape_->length;
    writer->Put<uint8_t>(pieces_[i] ? 1 : 0);
    if (!pieces_[i]) continue;
    const Piece& piece = *pieces_[i];
    const int count = static_cast<int>(std::clamp<int64_t>(extent.end - begin, 0, piece.capacity));
    if (!writer->PutRef(&piece, count)) continue;
    writer->Put<int32_t>(piece.capacity);
    writer->Put<int32_t>(count);
    if (count > 0) SavePiece(piece, count, begin, extent, writer);
  }
}

// As it lies, where every byte of it is an entry's: what was never written is nobody's to read.
void PieceList::SavePiece(const Piece& piece, int count, int64_t begin, const Extent& extent,
                          StateWriter* writer) const {
  const PieceFormat* const format = shape_->format;
  const auto gap_begin = static_cast<int>(std::clamp<int64_t>(extent.gap_begin - begin, 0, count));
  const auto gap_end = static_cast<int>(std::clamp<int64_t>(extent.gap_end - begin, gap_begin, count));
  const int packed = RoundUp(count, shape_->granularity);
  const int64_t bytes = format->Bytes(packed);
  if (count == piece.capacity && gap_begin == gap_end && BytesOfEntries(*format, piece, count) == bytes) {
    writer->PutPayload(piece.memory.data(), bytes);
    return;
  }
  writer->PutPayload(bytes, [=, &piece](uint8_t* out) {
    CopyEntries(*format, piece.memory.data(), piece.capacity, out, packed, count);
    if (gap_begin < gap_end) format->Clear(out, packed, gap_begin, gap_end);
  });
}

void PieceList::Load(const Extent& extent, const PieceCheck& right, StateReader* reader) {
  const auto pieces = reader->Get<uint64_t>();
  const auto most = static_cast<uint64_t>((extent.end + shape_->length - 1) / shape_->length);
  reader->Check(pieces <= most, "an array has too many pieces");
  for (size_t i = 0; i < most && reader->ok(); ++i) {
    const bool there = i < pieces && reader->GetBool();
    if (!there) {
      reader->Check(NeededOf(i, extent) == 0, "an array has a hole");
      continue;
    }
    CowPtr<Piece> piece = LoadPiece(i, extent, right, reader);
    if (reader->ok()) Set(i, std::move(piece));
  }
}

CowPtr<Piece> PieceList::LoadPiece(size_t i, const Extent& extent, const PieceCheck& right, StateReader* reader) const {
  const int64_t needed = NeededOf(i, extent), begin = static_cast<int64_t>(i) * shape_->length;
  bool is_new = false;
  auto* const restored = reader->GetRef<Restored>(&is_new);
  if (restored == nullptr) return {};
  if (!is_new) {
    reader->Check(restored->shape == shape_ && restored->count >= needed, "a shared piece is another's");
    return reader->ok() ? restored->piece : CowPtr<Piece>();
  }
  const auto capacity = reader->Get<int32_t>(), count = reader->Get<int32_t>();
  if (!reader->Check(capacity >= 1 && capacity <= shape_->length && capacity % shape_->granularity == 0 &&
                         count >= needed && count >= 0 && count <= capacity,
                     "a piece has a wrong size"))
    return {};
  const PieceFormat* const format = shape_->format;
  Memory memory;
  if (!reader->Allocate(shape_->kind, format->Bytes(capacity), capacity == shape_->length ? shape_->pool : nullptr,
                        &memory))
    return {};
  uint8_t* const data = memory.data();
  const auto is_right = [=] {  // of what is before the gap and behind it
    const auto before = static_cast<int>(std::clamp<int64_t>(extent.gap_begin - begin, 0, count));
    const auto behind = static_cast<int>(std::clamp<int64_t>(extent.gap_end - begin, before, count));
    return !right || (right(data, capacity, 0, before) && right(data, capacity, behind, count));
  };
  const int packed = RoundUp(count, shape_->granularity);
  if (packed == capacity) {
    reader->GetPayload(data, format->Bytes(capacity), [=](const uint8_t*) { return is_right(); });
  } else if (count > 0) {
    reader->GetPayload(nullptr, format->Bytes(packed), [=](const uint8_t* from) {
      CopyEntries(*format, from, packed, data, capacity, count);
      return is_right();
    });
  }
  *restored = {CowPtr<Piece>(Piece{std::move(memory), capacity}), count, shape_};
  return restored->piece;
}

}  // namespace seine
