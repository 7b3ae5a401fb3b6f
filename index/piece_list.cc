// Growth and copy-on-write of piece lists.
#include "index/piece_list.h"

#include <algorithm>
#include <utility>

namespace seine {

absl::Status Staging::Allocate(MemoryLedger* ledger) {
  if (needs_.empty()) return absl::OkStatus();
  int64_t total = 0;
  for (const Need& need : needs_) total += need.list->shape_->format->Bytes(need.capacity);
  Reservation reservation(ledger);
  absl::Status status = reservation.Reserve(total);
  for (Need& need : needs_) {
    if (!status.ok()) break;
    const PieceList::Shape& shape = *need.list->shape_;
    SlabPool* pool = need.capacity == shape.length ? shape.pool : nullptr;
    Memory memory;
    status = reservation.Allocate(shape.kind, shape.format->Bytes(need.capacity), pool, &memory);
    if (status.ok()) need.made = CowPtr<Piece>(Piece{std::move(memory), need.capacity});
  }
  if (!status.ok()) needs_.clear();
  return status;
}

void Staging::Install() {
  for (Need& need : needs_) {
    std::vector<CowPtr<Piece>>& pieces = need.list->pieces_;
    if (pieces.size() <= need.index) pieces.resize(need.index + 1);
    CowPtr<Piece>& piece = pieces[need.index];
    if (piece) {
      const int count = std::min(need.keep, piece->capacity);
      need.list->shape_->format->Copy(piece->memory.data(), piece->capacity, need.made->memory.data(), need.capacity,
                                      count);
    }
    piece = std::move(need.made);
  }
  needs_.clear();
}

void PieceList::Plan(int64_t begin, int64_t end, int64_t keep, Staging* staging) {
  if (begin >= end) return;
  const int64_t length = shape_->length;
  for (int64_t i = begin / length; i * length < end; ++i) {
    const CowPtr<Piece> none;
    const CowPtr<Piece>& piece = static_cast<size_t>(i) < pieces_.size() ? pieces_[i] : none;
    const int64_t needed = std::min(end - i * length, length);
    if (piece && piece->capacity >= needed && piece.unique()) continue;
    const int capacity = std::max(CapacityFor(needed), piece ? piece->capacity : 0);
    const int64_t kept = std::clamp<int64_t>(keep - i * length, 0, length);
    staging->needs_.push_back({this, static_cast<size_t>(i), capacity, static_cast<int>(kept), {}});
  }
}

void PieceList::Truncate(int64_t end) {
  const size_t pieces = static_cast<size_t>((end + shape_->length - 1) / shape_->length);
  if (pieces < pieces_.size()) pieces_.resize(pieces);
}

void PieceList::Drop(int64_t begin, int64_t end) {
  const int64_t length = shape_->length;
  const int64_t last = std::min<int64_t>(end / length, pieces_.size());
  for (int64_t i = (begin + length - 1) / length; i < last; ++i) pieces_[i] = CowPtr<Piece>();
}

int64_t PieceList::bytes() const {
  int64_t total = 0;
  for (const CowPtr<Piece>& piece : pieces_) total += piece ? piece->memory.bytes() : 0;
  return total;
}

// A small piece doubles; a larger one grows by eighths of the full length, so that what is held beyond the entries
// stays small, and each entry is copied a few times at most.
int PieceList::CapacityFor(int64_t entries) const {
  const int64_t step = std::max<int64_t>(shape_->length / 8, shape_->min_capacity);
  int64_t capacity = shape_->min_capacity;
  while (capacity < entries && capacity < step) capacity *= 2;
  if (capacity < entries) capacity = (entries + step - 1) / step * step;
  capacity = (capacity + shape_->granularity - 1) / shape_->granularity * shape_->granularity;
  return static_cast<int>(std::min<int64_t>(capacity, shape_->length));
}

}  // namespace seine
