// A message that is made anew again and again, and whose parts lie in one block: neither filling nor emptying it calls
// the allocator for them, unless it outgrows the block. protobuf's own Clear gives every part back.
#ifndef SEINE_PROTO_CHANNEL_BLOCK_MESSAGE_H_
#define SEINE_PROTO_CHANNEL_BLOCK_MESSAGE_H_

#include <google/protobuf/arena.h>

#include <cstddef>

namespace seine::channel {

// Not thread-safe. What it holds lives until Renew.
template <typename Message>
class BlockMessage {
 public:
  BlockMessage() : arena_(block_, sizeof(block_)) { Renew(); }
  BlockMessage(const BlockMessage&) = delete;
  BlockMessage& operator=(const BlockMessage&) = delete;

  // An empty message. All that outgrew the block is given back. May throw std::bad_alloc.
  Message& Renew() {
    arena_.Reset();
    message_ = google::protobuf::Arena::CreateMessage<Message>(&arena_);
    return *message_;
  }
  Message& operator*() { return *message_; }
  Message* operator->() { return message_; }
  Message* get() { return message_; }

 private:
  static constexpr size_t kBlockBytes = 8 << 10;  // a step of some sequences

  alignas(std::max_align_t) char block_[kBlockBytes];
  google::protobuf::Arena arena_;
  Message* message_;
};

}  // namespace seine::channel

#endif  // SEINE_PROTO_CHANNEL_BLOCK_MESSAGE_H_
