// How a call that nobody waits for any more comes to an end: its token is looked at between pieces of heavy work.
//
//   StopToken token(deadline);    // lives as long as the call; any thread may call token.Stop()
//   const StopScope scope(&token);
//   index->Retrieve(...);         // CANCELLED, DEADLINE_EXCEEDED or UNAVAILABLE soon after the token has stopped
//
// The scope makes a token current on its thread, and the thread pool hands it on to the threads that help.
#ifndef SEINE_KERNELS_STOP_H_
#define SEINE_KERNELS_STOP_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "kernels/yield.h"

namespace seine {

enum class StopReason : uint8_t {
  kNone = 0,
  kCancelled = 1,
  kDeadline = 2,
  kShutdown = 3,  // the server ends
};

// Once stopped, it stays so, for the first reason. Thread-safe.
class StopToken {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StopToken(Clock::time_point deadline = Clock::time_point::max()) : deadline_(deadline) {}
  StopToken(const StopToken&) = delete;
  StopToken& operator=(const StopToken&) = delete;

  void Stop(StopReason reason = StopReason::kCancelled) const {
    StopReason none = StopReason::kNone;
    reason_.compare_exchange_strong(none, reason, std::memory_order_relaxed);
  }
  Clock::time_point deadline() const { return deadline_; }
  // Reads the clock where there is a deadline.
  bool stop_requested() const { return reason() != StopReason::kNone; }
  StopReason reason() const {
    const StopReason known = reason_.load(std::memory_order_relaxed);
    if (known != StopReason::kNone || deadline_ == Clock::time_point::max() || Clock::now() < deadline_) return known;
    Stop(StopReason::kDeadline);
    return reason_.load(std::memory_order_relaxed);
  }

 private:
  const Clock::time_point deadline_;
  mutable std::atomic<StopReason> reason_{StopReason::kNone};
};

// The current token of this thread; nullptr: nothing stops what it does.
inline thread_local constinit const StopToken* current_stop_token = nullptr;

// Whether the call that this thread works for is to end. Long work makes way here (yield.h), but for what must be
// finished once it is begun.
inline bool StopRequested() {
  if (current_stop_token == nullptr) return false;
  if (current_yielder != nullptr) current_yielder->Yield();
  return current_stop_token->stop_requested();
}

// Makes a token current until the scope ends. nullptr: for what must be finished once it is begun.
class StopScope {
 public:
  explicit StopScope(const StopToken* token) : outer_(current_stop_token) { current_stop_token = token; }
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;
  ~StopScope() { current_stop_token = outer_; }

 private:
  const StopToken* const outer_;
};

}  // namespace seine

#endif  // SEINE_KERNELS_STOP_H_
