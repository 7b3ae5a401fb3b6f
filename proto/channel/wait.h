// Waiting for the other side of a channel: it spins for a bounded time, then sleeps in a futex.
#ifndef SEINE_PROTO_CHANNEL_WAIT_H_
#define SEINE_PROTO_CHANNEL_WAIT_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace seine::channel {

// Looks at `word` until it is not `seen`, at most until `until`. Whether it has changed. The first moments it only
// pauses; later it also yields, so that the other side runs where cores are few.
bool SpinWhileEqual(const std::atomic<uint32_t>& word, uint32_t seen, std::chrono::steady_clock::time_point until);

// Sleeps until somebody wakes the word, unless it is not `seen` any more; at most `most`. `sleeps` is 1 meanwhile. It
// may return early: the caller looks again.
void SleepWhileEqual(std::atomic<uint32_t>& word, uint32_t seen, std::atomic<uint32_t>& sleeps,
                     std::chrono::nanoseconds most);

// Wakes who sleeps on the word, whether or not it says so.
void Wake(std::atomic<uint32_t>& word);

// After a change of `word`: wakes who sleeps on it, without a system call where nobody says so.
inline void WakeSleeper(std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleeps) {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the change is seen, or the sleeper is
  if (sleeps.load(std::memory_order_relaxed) != 0) Wake(word);
}

}  // namespace seine::channel

#endif  // SEINE_PROTO_CHANNEL_WAIT_H_
