// One end of a ring in shared memory. What the other end writes is never believed: its counter is loaded once an
// operation and checked, and bytes are copied out before anybody looks at them. No operation waits or throws.
//
// Not thread-safe: an end belongs to one thread at a time.
#ifndef SEINE_PROTO_CHANNEL_RING_H_
#define SEINE_PROTO_CHANNEL_RING_H_

#include <cstddef>
#include <cstdint>

#include "proto/channel/memory.h"

namespace seine::channel {

// Bytes moved by an operation; kNonsense: the other end's counter is one that no honest side writes.
inline constexpr int64_t kNonsense = -1;

class RingWriter {
 public:
  // `bytes` of the ring, a power of two, as this side knows it, and not as the shared header says.
  RingWriter(Cursors* cursors, uint8_t* ring, uint32_t bytes) : cursors_(cursors), ring_(ring), bytes_(bytes) {}

  // Copies as much of the data as there is room for. The reader sees it from Publish on.
  int64_t Put(const void* data, size_t count);
  int64_t Room();
  // Shows what was put, and wakes a reader that sleeps.
  void Publish();
  // For a wait until there is more room: the reader's counter as Put saw it last.
  uint32_t seen() const { return seen_; }
  std::atomic<uint32_t>& word() { return cursors_->read; }
  std::atomic<uint32_t>& sleeps() { return cursors_->writer_sleeps; }

 private:
  Cursors* const cursors_;
  uint8_t* const ring_;
  const uint32_t bytes_;
  uint32_t at_ = 0, seen_ = 0;
};

class RingReader {
 public:
  RingReader(Cursors* cursors, const uint8_t* ring, uint32_t bytes) : cursors_(cursors), ring_(ring), bytes_(bytes) {}

  // Copies at most `count` of the bytes that are there. The writer has their room from Release on.
  int64_t Take(void* out, size_t count);
  // Gives back the room of what was taken, and wakes a writer that sleeps.
  void Release();
  // Whether nothing has come, or what has come was taken.
  bool empty() const { return cursors_->written.load(std::memory_order_acquire) == at_; }
  // For a wait until more has come.
  uint32_t seen() const { return at_; }
  std::atomic<uint32_t>& word() { return cursors_->written; }
  std::atomic<uint32_t>& sleeps() { return cursors_->reader_sleeps; }

 private:
  Cursors* const cursors_;
  const uint8_t* const ring_;
  const uint32_t bytes_;
  uint32_t at_ = 0, released_ = 0;
};

}  // namespace seine::channel

#endif  // SEINE_PROTO_CHANNEL_RING_H_
