#include "service/process/watchdog.h"

#include <utility>

#include "kernels/thread_name.h"

namespace seine {

Watchdog::Watchdog(Watch watch)
    : watch_(std::move(watch)), tick_(watch_.limit / kTicks), asks_([this] { Ask(); }), guards_([this] { Guard(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  asks_.join();
  guards_.join();
}

bool Watchdog::WaitOrEnd() {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, absl::ToChronoNanoseconds(tick_), [this] { return ended_; });
}

void Watchdog::Ask() {
  NameThread("watchdog-asks");
  do {
    if (!watch_.answers()) continue;
    silent_ticks_.store(0);
    watch_.on_answer();
  } while (!WaitOrEnd());
}

void Watchdog::Guard() {
  NameThread("watchdog");
  while (!WaitOrEnd()) {
    if (silent_ticks_.fetch_add(1) + 1 != kTicks) continue;
    watch_.on_silence();
    return;
  }
}

}  // namespace seine
