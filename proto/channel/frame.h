// Messages on a ring, as frames: written and put together piece by piece, without waiting. A caller that gets kWait
// waits for the ring's other end (wait.h) and calls again.
//
// Not thread-safe: an end belongs to one thread at a time.
#ifndef SEINE_PROTO_CHANNEL_FRAME_H_
#define SEINE_PROTO_CHANNEL_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/channel/ring.h"

namespace seine::channel {

enum class Progress : uint8_t {
  kDone,      // a whole message
  kWait,      // the other end has to read or write first
  kBroken,    // the other end's counter, or a frame's kind, is one that no honest side writes, or tensors are too many
  kTooLarge,  // a frame is announced with which its message would be larger than may be
};

inline constexpr size_t kMostTensors = 1 << 16;  // before a message

class FrameWriter {
 public:
  explicit FrameWriter(RingWriter ring) : ring_(ring) {}

  // Begins a message, its tensors first; the one before is done. What is given must live until this one is.
  Progress Write(FrameKind kind, std::string_view message, std::span<const std::string_view> tensors = {});
  Progress Continue();
  // Writes a small message if there is room for all of it now and none is midway. Whether it was written.
  bool TryWrite(FrameKind kind, std::string_view message);
  RingWriter& ring() { return ring_; }

 private:
  void Begin(FrameKind kind, std::string_view bytes);
  Progress ContinueFrame();
  Progress Put(const void* data, size_t count, size_t* moved);
  bool midway() const { return head_written_ < sizeof(FrameHead) || !rest_.empty() || follows_; }

  RingWriter ring_;
  FrameHead head_ = {};
  size_t head_written_ = sizeof(FrameHead);
  std::string_view rest_;                      // of the frame
  std::span<const std::string_view> tensors_;  // not begun
  FrameKind kind_ = FrameKind::kMessage;
  std::string_view message_;
  bool follows_ = false;  // the message's own frame is not begun
};

class FrameReader {
 public:
  // `most_bytes` of a message and its tensors together.
  FrameReader(RingReader ring, uint32_t most_bytes) : ring_(ring), most_(most_bytes) {}

  // Takes what is there. kDone: what follows is valid until the next call. May throw std::bad_alloc: memory grows with
  // the bytes that have come, not with those that are announced.
  Progress Read();
  FrameKind kind() const { return head_.kind; }
  std::string& message() { return message_; }
  // What came before it. The caller may swap strings out, and should bring them back: their memory is used again.
  std::span<std::string> tensors() { return {tensors_.data(), num_tensors_}; }
  size_t bytes() const { return tensor_bytes_ + message_.size(); }                // of both
  bool midway() const { return (head_read_ > 0 || num_tensors_ > 0) && !done_; }  // a part of a message has come
  size_t announced_bytes() const { return tensor_bytes_ + head_.bytes; }
  size_t held() const;  // memory for messages, of this one and of those before
  void GiveBack();      // all of it, once a message was read
  RingReader& ring() { return ring_; }

 private:
  Progress ReadMessage();
  Progress ReadFrame();

  RingReader ring_;
  const uint32_t most_;
  FrameHead head_ = {};
  size_t head_read_ = 0, frame_read_ = 0, tensor_bytes_ = 0, num_tensors_ = 0;
  bool done_ = false;
  std::string message_;
  std::vector<std::string> tensors_;  // the first num_tensors_ are the message's
};

}  // namespace seine::channel

#endif  // SEINE_PROTO_CHANNEL_FRAME_H_
