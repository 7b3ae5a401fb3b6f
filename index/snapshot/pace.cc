#include "index/snapshot/pace.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace seine {

namespace {

constexpr int64_t kRecent = 50'000'000;    // ns; a model that is slow asks each layer after some milliseconds
constexpr int64_t kShort = 20'000;         // ns; a shorter piece is none, for no sleep is shorter than that
constexpr int64_t kMostPause = 5'000'000;  // ns; a piece that takes long must not end the work

std::atomic<int64_t> last_step{-kRecent};  // by the coarse clock, ns

int64_t Now(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

bool BesideSteps() { return Now(CLOCK_MONOTONIC_COARSE) - last_step.load(std::memory_order_relaxed) < kRecent; }

}  // namespace

void NoteStep() {
  const int64_t now = Now(CLOCK_MONOTONIC_COARSE);
  if (last_step.load(std::memory_order_relaxed) != now) last_step.store(now, std::memory_order_relaxed);
}

Pace::Pace() : resumed_(Now(CLOCK_THREAD_CPUTIME_ID)) {}

void Pace::Pause() {
  const int64_t now = Now(CLOCK_THREAD_CPUTIME_ID), worked = now - resumed_;
  if (worked < kShort) return;
  resumed_ = now;
  if (!BesideSteps()) return;
  std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(kMostPause, kPauses * worked)));
}

}  // namespace seine
