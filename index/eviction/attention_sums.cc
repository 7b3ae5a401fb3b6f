#include "index/eviction/attention_sums.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "index/bytes/state_reader.h"
#include "index/bytes/state_writer.h"

namespace seine {

namespace {

constexpr int64_t kLeastRoom = 64;  // tokens

// A quarter more than is needed, so that a token that comes alone rarely costs a copy.
int64_t RoomFor(int64_t tokens) { return std::max(kLeastRoom, tokens + tokens / 4); }

}  // namespace

absl::StatusOr<AttentionSums::Staged> AttentionSums::NewBlock(int64_t capacity) const {
  const int64_t bytes = capacity * heads_ * static_cast<int64_t>(sizeof(float));
  Reservation reservation(ledger_);
  if (absl::Status s = reservation.Reserve(MemoryKind::kStore, bytes); !s.ok()) return s;
  Block block;
  block.capacity = capacity;
  if (absl::Status s = reservation.Allocate(MemoryKind::kStore, bytes, nullptr, &block.memory); !s.ok()) return s;
  return Staged(std::move(block));
}

absl::StatusOr<AttentionSums::Staged> AttentionSums::StageRoom(int64_t most) const {
  if (!on_) return Staged();
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t held = block_ ? block_->capacity : 0;
  if (held >= most && block_ && block_.unique()) return Staged();
  absl::StatusOr<Staged> staged = NewBlock(held >= most ? held : RoomFor(most));
  if (!staged.ok()) return staged;
  for (int h = 0; h < heads_ && block_; ++h) std::copy_n(block_->row(h), held, (*staged)->row(h));
  return staged;
}

void AttentionSums::CommitRoom(Staged staged, absl::Span<const int64_t> before, absl::Span<const int64_t> after) {
  if (!on_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (staged) block_ = std::move(staged);
  for (int h = 0; h < heads_; ++h) std::fill(block_->row(h) + before[h], block_->row(h) + after[h], 0.0f);
}

absl::StatusOr<AttentionSums::Staged> AttentionSums::StageKept(const std::vector<std::vector<uint32_t>>& places) const {
  if (!on_) return Staged();
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t most = 0;
  for (const auto& head : places) most = std::max(most, head.size());
  absl::StatusOr<Staged> staged = NewBlock(RoomFor(static_cast<int64_t>(most)));
  if (!staged.ok()) return staged;
  for (int h = 0; h < heads_; ++h) {
    const float* from = block_->row(h);
    std::transform(places[h].begin(), places[h].end(), (*staged)->row(h),
                   [from](uint32_t place) { return from[place]; });
  }
  return staged;
}

void AttentionSums::CommitKept(Staged staged) {
  if (!on_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  block_ = std::move(staged);
}

void AttentionSums::Truncate(int64_t position) {
  const std::lock_guard<std::mutex> lock(mutex_);
  counted_to_ = std::min(counted_to_, position);
}

AttentionSums::State AttentionSums::SaveCheckpoint() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {block_, counted_to_};
}

void AttentionSums::Restore(State state) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::swap(block_, state.block);  // the other is freed after the lock
  counted_to_ = state.counted_to;
}

bool AttentionSums::Own() {
  if (!block_) return false;
  if (block_.unique()) return true;
  absl::StatusOr<Staged> own = NewBlock(block_->capacity);
  if (!own.ok()) return false;
  std::copy_n(block_->row(0), block_->capacity * heads_, (*own)->row(0));
  block_ = *std::move(own);
  return true;
}

bool AttentionSums::Part() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !block_ || Own();
}

void AttentionSums::Save(absl::Span<const int64_t> sizes, StateWriter* writer) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  writer->Put(counted_to_);
  const int64_t most = *std::max_element(sizes.begin(), sizes.end());
  writer->Put<int64_t>(block_ ? std::min(block_->capacity, RoomFor(most)) : 0);
  for (int h = 0; h < heads_ && block_; ++h) {
    writer->PutPayload(block_->row(h), sizes[h] * static_cast<int64_t>(sizeof(float)));
  }
}

void AttentionSums::Load(absl::Span<const int64_t> sizes, int64_t length, StateReader* reader) {
  const int64_t most = *std::max_element(sizes.begin(), sizes.end());
  counted_to_ = reader->GetWithin(0, length, "queries beyond the last token were counted");
  const int64_t capacity = reader->GetWithin(0, on_ ? RoomFor(most) : 0, "sums of attention take too much");
  if (!reader->Check(!on_ || capacity >= most, "sums of attention are missing") || capacity == 0) return;
  Block block;
  block.capacity = capacity;
  const int64_t bytes = capacity * heads_ * static_cast<int64_t>(sizeof(float));
  if (!reader->Allocate(MemoryKind::kStore, bytes, nullptr, &block.memory)) return;
  for (int h = 0; h < heads_; ++h) {
    float* const row = block.row(h);
    reader->GetPayload(row, sizes[h] * static_cast<int64_t>(sizeof(float)), [row, size = sizes[h]](const uint8_t*) {
      return std::all_of(row, row + size, [](float x) { return std::isfinite(x); });
    });
  }
  block_ = CowPtr<Block>(std::move(block));
}

bool AttentionSums::Add(int64_t position, absl::Span<const host::AttendedRows> heads) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!on_ || position < counted_to_) return true;
  if (!Own()) return false;
  for (int h = 0; h < heads_; ++h) {
    float* sums = block_->row(h);
    assert(heads[h].places.size() == heads[h].weights.size());
    for (size_t i = 0; i < heads[h].places.size(); ++i) sums[heads[h].places[i]] += heads[h].weights[i];
  }
  counted_to_ = position + 1;
  return true;
}

bool AttentionSums::AddAll(int64_t position, const Scores& paid) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!on_ || position < counted_to_) return true;
  if (!Own()) return false;
  for (int h = 0; h < heads_; ++h) {
    float* sums = block_->row(h);
    for (size_t i = 0; i < paid[h].size(); ++i) sums[i] += paid[h][i];
  }
  counted_to_ = position + 1;
  return true;
}

int64_t AttentionSums::counted_to() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counted_to_;
}

Scores AttentionSums::Sums(absl::Span<const int64_t> sizes) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Scores sums(heads_);
  for (int h = 0; h < heads_ && block_; ++h) sums[h].assign(block_->row(h), block_->row(h) + sizes[h]);
  return sums;
}

int64_t AttentionSums::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return block_ ? block_->memory.bytes() : 0;
}

}  // namespace seine
