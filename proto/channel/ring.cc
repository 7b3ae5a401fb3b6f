#include "proto/channel/ring.h"

#include <algorithm>
#include <cstring>

#include "proto/channel/wait.h"

namespace seine::channel {

int64_t RingWriter::Room() {
  seen_ = cursors_->read.load(std::memory_order_acquire);
  const uint32_t used = at_ - seen_;
  return used > bytes_ ? kNonsense : bytes_ - used;
}

int64_t RingWriter::Put(const void* data, size_t count) {
  const int64_t room = Room();
  if (room == kNonsense) return kNonsense;
  const auto moved = static_cast<uint32_t>(std::min<size_t>(count, static_cast<size_t>(room)));
  const uint32_t place = at_ & (bytes_ - 1), first = std::min(moved, bytes_ - place);
  memcpy(ring_ + place, data, first);
  memcpy(ring_, static_cast<const uint8_t*>(data) + first, moved - first);
  at_ += moved;
  return moved;
}

void RingWriter::Publish() {
  cursors_->written.store(at_, std::memory_order_release);
  WakeSleeper(cursors_->written, cursors_->reader_sleeps);
}

int64_t RingReader::Take(void* out, size_t count) {
  const uint32_t there = cursors_->written.load(std::memory_order_acquire) - at_;
  if (there > bytes_) return kNonsense;
  const auto moved = static_cast<uint32_t>(std::min<size_t>(count, there));
  if (moved == 0) return 0;
  const uint32_t place = at_ & (bytes_ - 1), first = std::min(moved, bytes_ - place);
  memcpy(out, ring_ + place, first);
  memcpy(static_cast<uint8_t*>(out) + first, ring_, moved - first);
  at_ += moved;
  return moved;
}

void RingReader::Release() {
  if (released_ == at_) return;
  released_ = at_;
  cursors_->read.store(at_, std::memory_order_release);
  WakeSleeper(cursors_->read, cursors_->writer_sleeps);
}

}  // namespace seine::channel
