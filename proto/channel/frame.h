// Frames on a ring: written and put together piece by piece, without waiting. A caller that gets kWait waits for the
// ring's other end (wait.h) and calls again.
//
// Not thread-safe: an end belongs to one thread at a time.
#ifndef SEINE_PROTO_CHANNEL_FRAME_H_
#define SEINE_PROTO_CHANNEL_FRAME_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/channel/ring.h"

namespace seine::channel {

enum class Progress : uint8_t {
  kDone,      // a whole frame
  kWait,      // the other end has to read or write first
  kBroken,    // the other end's counter, or a frame's kind, is one that no honest side writes
  kTooLarge,  // a frame is announced that is larger than may be
};

class FrameWriter {
 public:
  explicit FrameWriter(RingWriter ring) : ring_(ring) {}

  // Begins a frame; the one before is done. `message` must live until this one is.
  Progress Write(FrameKind kind, std::string_view message);
  Progress Continue();
  // Writes a small frame if there is room for all of it now and none is midway. Whether it was written.
  bool TryWrite(FrameKind kind, std::string_view message);
  RingWriter& ring() { return ring_; }

 private:
  Progress Put(const void* data, size_t count, size_t* moved);

  RingWriter ring_;
  FrameHead head_ = {};
  size_t head_written_ = sizeof(FrameHead);
  std::string_view rest_;
};

class FrameReader {
 public:
  FrameReader(RingReader ring, uint32_t most_bytes) : ring_(ring), most_(most_bytes) {}

  // Takes what is there. kDone: kind() and message() are valid until the next call. May throw std::bad_alloc: memory
  // grows with the bytes that have come, not with those that are announced.
  Progress Read();
  FrameKind kind() const { return head_.kind; }
  std::string& message() { return message_; }
  bool midway() const { return head_read_ > 0 && !done_; }  // a part of a frame has come
  uint32_t announced_bytes() const { return head_.bytes; }
  RingReader& ring() { return ring_; }

 private:
  RingReader ring_;
  const uint32_t most_;
  FrameHead head_ = {};
  size_t head_read_ = 0, message_read_ = 0;
  bool done_ = false;
  std::string message_;
};

}  // namespace seine::channel

#endif  // SEINE_PROTO_CHANNEL_FRAME_H_
