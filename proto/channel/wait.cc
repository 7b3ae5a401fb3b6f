#include "proto/channel/wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <thread>

namespace seine::channel {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kPauses = 16;                                  // between two looks at the clock, about half a microsecond
constexpr auto kUnyielding = std::chrono::nanoseconds(500);  // an answer that comes at once

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The word is in memory that two processes share: no private futex.
void Futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

bool SpinWhileEqual(const std::atomic<uint32_t>& word, uint32_t seen, Clock::time_point until) {
  if (word.load(std::memory_order_acquire) != seen) return true;
  const Clock::time_point begin = Clock::now();
  for (Clock::time_point now = begin; now < until; now = Clock::now()) {
    for (int i = 0; i < kPauses; ++i) {
      if (word.load(std::memory_order_acquire) != seen) return true;
      Pause();
    }
    if (now - begin > kUnyielding) std::this_thread::yield();
  }
  return word.load(std::memory_order_acquire) != seen;
}

void SleepWhileEqual(std::atomic<uint32_t>& word, uint32_t seen, std::atomic<uint32_t>& sleeps,
                     std::chrono::nanoseconds most) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
  const timespec timeout = {static_cast<time_t>(seconds.count()), static_cast<long>((most - seconds).count())};
  sleeps.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with WakeSleeper's
  if (word.load(std::memory_order_acquire) == seen) Futex(word, FUTEX_WAIT, seen, &timeout);
  sleeps.store(0, std::memory_order_relaxed);
}

// All: a client may put sleepers of its own before the one that counts.
void Wake(std::atomic<uint32_t>& word) { Futex(word, FUTEX_WAKE, INT_MAX, nullptr); }

}  // namespace seine::channel
