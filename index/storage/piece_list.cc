// Growth and copy-on-write of piece lists.
#include "index/storage/piece_list.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace seine {

absl::Status Staging::Allocate(MemoryLedger* ledger) {
  if (needs_.empty()) return absl::OkStatus();
  absl::Status status = Make(ledger);
  if (status.ok()) status = CopyKept(ledger->backend());
  if (!status.ok()) needs_.clear();
  return status;
}

absl::Status Staging::Make(MemoryLedger* ledger) {
  constexpr MemoryKind kKinds[] = {MemoryKind::kCode, MemoryKind::kStore};
  int64_t total[std::size(kKinds)] = {};
  for (const Need& need : needs_) {
    const PieceList::Shape& shape = *need.list->shape_;
    const int64_t bytes = shape.format->Bytes(need.capacity);
    total[static_cast<int>(shape.kind)] += bytes;
    if (need.mirrored) total[static_cast<int>(MemoryKind::kCode)] += bytes;
  }
  Reservation reservation(ledger);
  for (const MemoryKind kind : kKinds) {
    if (absl::Status s = reservation.Reserve(kind, total[static_cast<int>(kind)]); !s.ok()) return s;
  }
  for (Need& need : needs_) {
    const PieceList::Shape& shape = *need.list->shape_;
    SlabPool* pool = need.capacity == shape.length ? shape.pool : nullptr;
    Memory memory, mirror;
    const int64_t bytes = shape.format->Bytes(need.capacity);
    absl::Status s = reservation.Allocate(shape.kind, bytes, pool, &memory);
    if (s.ok() && need.mirrored) {
      s = reservation.Allocate(MemoryKind::kCode, bytes, ledger->pool(MemoryKind::kCode), &mirror);
    }
    if (!s.ok()) return s;
    need.made = CowPtr<Piece>(Piece{std::move(memory), need.capacity});
    if (need.mirrored) need.mirror = CowPtr<Memory>(std::move(mirror));
  }
  return absl::OkStatus();
}

// The host's own memory is copied here, then codes and mirrors by the backend: they may lie on a device.
absl::Status Staging::CopyKept(Backend* backend) const {
  std::vector<CopyTask> copies, codes;
  for (const Need& need : needs_) {
    const std::vector<CowPtr<Piece>>& pieces = need.list->pieces_;
    if (pieces.size() <= need.index || !pieces[need.index]) continue;
    const Piece& piece = *pieces[need.index];
    const PieceList::Shape& shape = *need.list->shape_;
    shape.format->Copy(piece.memory.data(), piece.capacity, need.made->memory.data(), need.capacity,
                       std::min(need.keep, piece.capacity),
                       SpaceOf(shape.kind) == MemorySpace::kCodes ? &codes : &copies);
    if (!need.mirrored) continue;
    shape.format->Copy(need.made->memory.data(), need.capacity, need.mirror->data(), need.capacity,
                       std::min(need.keep, piece.capacity), &codes);
  }
  for (const CopyTask& copy : copies) std::memcpy(copy.to, copy.from, copy.bytes);
  if (codes.empty()) return absl::OkStatus();
  return StatusOf(*backend, backend->Copy(codes.data(), static_cast<int>(codes.size())));
}

void Staging::Install() {
  for (Need& need : needs_) {
    need.list->Set(need.index, std::move(need.made), std::move(need.mirror));
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
    staging->needs_.push_back(
        {this, static_cast<size_t>(i), capacity, static_cast<int>(kept), WantsMirror(static_cast<size_t>(i)), {}, {}});
  }
}

void PieceList::PlanOwnTail(int64_t end, Staging* staging) {
  if (end % shape_->length == 0 && shape_->length > 1) return;
  const auto last = static_cast<size_t>((end - 1) / shape_->length);
  if (end == 0 || last >= pieces_.size() || !pieces_[last]) return;
  constexpr int kBoth = 2;
  if (pieces_[last].owners() <= kBoth) Plan(end - 1, end, end, staging);
}

void PieceList::Truncate(int64_t end) {
  const size_t pieces = static_cast<size_t>((end + shape_->length - 1) / shape_->length);
  if (pieces >= pieces_.size()) return;
  for (size_t i = pieces; i < pieces_.size(); ++i) Set(i, CowPtr<Piece>());
  pieces_.resize(pieces);
}

void PieceList::Drop(int64_t begin, int64_t end) {
  const int64_t length = shape_->length;
  const int64_t last = std::min<int64_t>(end / length, pieces_.size());
  for (int64_t i = (begin + length - 1) / length; i < last; ++i) Set(i, CowPtr<Piece>());
}

void PieceList::Set(size_t i, CowPtr<Piece> piece, CowPtr<Memory> mirror) {
  if (pieces_.size() <= i) pieces_.resize(i + 1);
  const auto bytes_of = [](const CowPtr<Piece>& held) { return held ? held->memory.bytes() : 0; };
  bytes_ += bytes_of(piece) - bytes_of(pieces_[i]);
  pieces_[i] = std::move(piece);
  SetMirror(i, std::move(mirror));
  Changed(i);
}

uint8_t* PieceList::mirror(size_t i) const {
  return mirrors_ && i < mirrors_->pieces.size() && mirrors_->pieces[i] ? mirrors_->pieces[i]->data() : nullptr;
}

bool PieceList::WantsMirror(size_t i) const {
  if (!shape_->mirrored || !mirrors_) return shape_->mirrored;
  const int64_t begin = static_cast<int64_t>(i) * shape_->length;
  return begin < mirrors_->head || begin + shape_->length > mirrors_->tail;
}

void PieceList::MirrorEnds(int64_t head, int64_t tail) {
  if (!shape_->mirrored) return;
  mirrors_.Make();
  mirrors_->head = head, mirrors_->tail = tail;
}

void PieceList::SetMirror(size_t i, CowPtr<Memory> mirror) {
  if (!mirror && (!mirrors_ || i >= mirrors_->pieces.size())) return;
  mirrors_.Make();
  std::vector<CowPtr<Memory>>& pieces = mirrors_->pieces;
  if (pieces.size() <= i) pieces.resize(i + 1);
  const auto bytes_of = [](const CowPtr<Memory>& held) { return held ? held->bytes() : 0; };
  mirrors_->bytes += bytes_of(mirror) - bytes_of(pieces[i]);
  pieces[i] = std::move(mirror);
}

void PieceList::DropMirrors() {
  for (size_t i = 0; mirrors_ && i < mirrors_->pieces.size(); ++i) {
    if (!mirrors_->pieces[i] || WantsMirror(i)) continue;
    SetMirror(i, {});
    Changed(i);
  }
}

void PieceList::Changed(size_t i) {
  const auto piece_index = static_cast<uint32_t>(i);
  const bool first = changed_begin_ == changed_end_;
  changed_begin_ = first ? piece_index : std::min(changed_begin_, piece_index);
  changed_end_ = first ? piece_index + 1 : std::max(changed_end_, piece_index + 1);
}

std::pair<size_t, size_t> PieceList::TakeChanged() {
  const size_t begin = std::exchange(changed_begin_, 0), end = std::exchange(changed_end_, 0);
  return {std::min(begin, pieces_.size()), std::min(end, pieces_.size())};
}

// A small piece doubles; a larger one grows by eighths of the full length, so that what is held beyond the entries
// stays small, and each entry is copied a few times at most.
int PieceList::CapacityFor(int64_t entries) const {
  const int64_t step = std::max(shape_->growth > 0 ? shape_->growth : shape_->length / 8, shape_->min_capacity);
  int64_t capacity = shape_->min_capacity;
  while (capacity < entries && capacity < step) capacity *= 2;
  if (capacity < entries) capacity = (entries + step - 1) / step * step;
  capacity = (capacity + shape_->granularity - 1) / shape_->granularity * shape_->granularity;
  return static_cast<int>(std::min<int64_t>(capacity, shape_->length));
}

}  // namespace seine
