#include "service/transport/sockets/read_turns.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace seine {
namespace {

using Recvmsg = ssize_t (*)(int, msghdr*, int);
using Poll = int (*)(pollfd*, nfds_t, int);

constexpr int kConnections = 1 << 16;   // descriptors above take no turns: seined may open fewer
constexpr int64_t kTurn = 50'000;       // ns, of who makes work with each byte
constexpr int64_t kLongTurn = 500'000;  // of others: prompts come in long messages
constexpr int32_t kLeast = 2 << 10;     // bytes at once: 120 PINGs, some 35 us
constexpr int32_t kFirst = 64 << 10;
constexpr int32_t kMost = 4 << 20;   // gRPC's own limit
constexpr int32_t kSlow = 64 << 10;  // who may read fewer bytes at once makes work with each

// One thread at a time reads a connection; gRPC orders them.
struct Turn {
  std::atomic<uint64_t> round{0};  // of the thread's polls in which it began
  std::atomic<int64_t> begun{0};   // ns
  std::atomic<int64_t> read{0};    // ns, when the last read ended
  std::atomic<int32_t> most{0};    // bytes to read at once; 0: it takes no turns
  std::atomic<int8_t> empty{0};    // so many of the next reads find nothing
};
std::array<Turn, kConnections> turns;

// Unique among threads. A thread that reads a connection twice in the same round has not polled meanwhile.
thread_local uint64_t round = 0;
void NextRound() {
  static std::atomic<uint64_t> threads{0};
  if (round == 0) round = ++threads << 40;
  ++round;
}

int64_t Nanoseconds() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

ssize_t Empty() {
  errno = EAGAIN;
  return -1;
}

// Reads so few bytes that to act on them takes about half a turn, by what the last ones took.
ssize_t ReadInTurn(Recvmsg real, Turn& turn, int socket, msghdr* message) {
  const bool polled = turn.round.load(std::memory_order_relaxed) != round;
  if (const int8_t empty = turn.empty.load(std::memory_order_relaxed); empty > 0 && !polled) {
    turn.empty.store(static_cast<int8_t>(empty - 1), std::memory_order_relaxed);
    return Empty();
  }
  const int64_t now = Nanoseconds();
  int32_t most = turn.most.load(std::memory_order_relaxed);
  if (polled || turn.begun.load(std::memory_order_relaxed) == 0) {
    turn.round.store(round, std::memory_order_relaxed);
    turn.begun.store(now, std::memory_order_relaxed);
  } else {
    const int64_t took = now - turn.read.load(std::memory_order_relaxed);
    if (took < kTurn / 2) most = std::min(2 * most, kMost);
    if (took > kTurn) most = std::max(most / 2, kLeast);
    turn.most.store(most, std::memory_order_relaxed);
    if (now - turn.begun.load(std::memory_order_relaxed) > (most < kSlow ? kTurn : kLongTurn)) {
      turn.begun.store(0, std::memory_order_relaxed);
      turn.empty.store(1, std::memory_order_relaxed);  // twice: where it had read something, gRPC comes again at once
      if (most < kSlow) sched_yield();                 // who waits for an answer comes before more of this
      return Empty();
    }
  }
  iovec* const parts = message->msg_iov;
  const size_t count = message->msg_iovlen;
  size_t used = 0, room = most, whole = 0;  // of the last part
  while (used < count && whole == 0 && room > 0) {
    iovec& part = parts[used++];
    if (part.iov_len > room) whole = std::exchange(part.iov_len, room);
    room -= part.iov_len;
  }
  message->msg_iovlen = used;
  const ssize_t got = real(socket, message, 0);
  message->msg_iovlen = count;
  if (whole != 0) parts[used - 1].iov_len = whole;
  // Else gRPC would fill its buffer before it acts.
  turn.empty.store(got == most && (whole != 0 || used < count) ? 1 : 0, std::memory_order_relaxed);
  turn.read.store(Nanoseconds(), std::memory_order_relaxed);
  return got;
}

}  // namespace

void TakeTurns(int connection) {
  if (connection >= kConnections) return;
  const char* const engine = getenv("GRPC_POLL_STRATEGY");
  const bool polls = engine != nullptr && std::string_view(engine) == "poll";
  Turn& turn = turns[connection];
  turn.round.store(0, std::memory_order_relaxed);
  turn.begun.store(0, std::memory_order_relaxed);
  turn.empty.store(0, std::memory_order_relaxed);
  turn.most.store(polls ? kFirst : 0, std::memory_order_relaxed);
}

}  // namespace seine

// By their symbols, for libraries to find: the names themselves are those of inline functions where a build checks its
// calls.
extern "C" {
__attribute__((visibility("default"))) ssize_t SeineRecvmsg(int socket, msghdr* message, int flags) __asm__("recvmsg");
__attribute__((visibility("default"))) int SeinePoll(pollfd* waiting, nfds_t count, int timeout) __asm__("poll");

ssize_t SeineRecvmsg(int socket, msghdr* message, int flags) {
  static const auto real = reinterpret_cast<seine::Recvmsg>(dlsym(RTLD_NEXT, "recvmsg"));
  if (flags != 0 || socket < 0 || socket >= seine::kConnections) return real(socket, message, flags);
  seine::Turn& turn = seine::turns[socket];
  if (turn.most.load(std::memory_order_relaxed) == 0) return real(socket, message, flags);
  return seine::ReadInTurn(real, turn, socket, message);
}

int SeinePoll(pollfd* waiting, nfds_t count, int timeout) {
  static const auto real = reinterpret_cast<seine::Poll>(dlsym(RTLD_NEXT, "poll"));
  seine::NextRound();
  return real(waiting, count, timeout);
}
}
