// What lies in the memory of a same-host channel: a page of counters, then two rings of bytes, requests and answers.
// The server makes it as a sealed memfd and passes its descriptor (shared_memory_service.proto).
//
//   [0, 4096)                    Header
//   [4096, 4096 + n)             ring of requests: the client writes, the server reads
//   [4096 + n, 4096 + 2 n)       ring of answers: the server writes, the client reads
//
// A ring carries frames: a FrameHead, then `bytes` bytes. A message in protobuf's form is a frame; before it, a frame
// each, may come the bytes of its tensors (tensors.h). A frame may be larger than its ring: it is then written while it
// is read. Counters are bytes modulo 2^32, so that a ring's length divides them.
//
// Neither side believes the other: a counter is loaded once and checked, and a message is copied out before it is
// parsed (ring.h).
#ifndef SEINE_PROTO_CHANNEL_MEMORY_H_
#define SEINE_PROTO_CHANNEL_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace seine::channel {

inline constexpr uint64_t kMagic = 0x4c4843454e494553;  // "SEINECHL"
inline constexpr uint32_t kLayout = 2;                  // another number: other rules
inline constexpr size_t kHeaderBytes = 4096;
inline constexpr int64_t kLeastRing = 64 << 10, kMostRing = 16 << 20, kUsualRing = 1 << 20;
inline constexpr size_t kTokenBytes = 16;
inline constexpr char kWelcome = 'S';  // the byte that comes with the descriptor

enum class FrameKind : uint32_t {
  kMessage = 1,  // a DecodeRequest or DecodeResponse
  kEnd = 2,      // nothing follows. Of the client without bytes; of the server with a Status that says why
  kTensor = 3,   // the bytes of one of the tensors of the message that follows, in which they are missing
};

struct FrameHead {
  uint32_t bytes;
  FrameKind kind;
};

// One ring's counters, each in a cache line of the side that writes it. Both are futex words: who waits for a counter
// says so beside it, so that the other side makes a system call only then.
struct Cursors {
  alignas(64) std::atomic<uint32_t> written;
  std::atomic<uint32_t> reader_sleeps;
  alignas(64) std::atomic<uint32_t> read;
  std::atomic<uint32_t> writer_sleeps;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

struct Header {
  uint64_t magic;
  uint32_t layout, ring_bytes;
  Cursors requests, answers;
};
static_assert(sizeof(Header) <= kHeaderBytes);

constexpr bool IsRingSize(int64_t bytes) {
  return bytes >= kLeastRing && bytes <= kMostRing && (bytes & (bytes - 1)) == 0;
}
constexpr size_t MemoryBytes(int64_t ring_bytes) { return kHeaderBytes + 2 * static_cast<size_t>(ring_bytes); }

}  // namespace seine::channel

#endif  // SEINE_PROTO_CHANNEL_MEMORY_H_
