#include "index/fair_mutex.h"

#include <algorithm>
#include <chrono>

#include "kernels/stop.h"

namespace seine {

namespace {

// How long a waiting call may not look at its token.
constexpr std::chrono::milliseconds kPoll(2);

}  // namespace

bool FairMutex::Wait(bool shared, bool stoppable) {
  Waiter self;
  self.shared = shared;
  const StopToken* const token = stoppable ? current_stop_token : nullptr;
  std::unique_lock<std::mutex> lock(mutex_);
  Join(&self);
  Grant();  // whoever held it may have let it go before it was seen that somebody waits
  while (!self.granted) {
    if (token == nullptr) {
      self.wake.wait(lock);
    } else if (token->stop_requested()) {
      Leave(&self);
      Grant();  // readers may have waited behind this writer alone
      return false;
    } else {
      self.wake.wait_until(lock, std::min(token->deadline(), StopToken::Clock::now() + kPoll));
    }
  }
  return true;
}

// Out of turn of what kQueued keeps out: for the first in the queue.
bool FairMutex::Take(bool shared) {
  uint32_t state = state_.load(std::memory_order_relaxed);
  while ((state & kWriter) == 0 && (shared || state < kReader)) {
    const uint32_t next = shared ? state + kReader : state + kWriter;
    if (state_.compare_exchange_weak(state, next, std::memory_order_acquire, std::memory_order_relaxed)) return true;
  }
  return false;
}

void FairMutex::Join(Waiter* waiter) {
  waiter->before = last_;
  (last_ == nullptr ? first_ : last_->behind) = waiter;
  last_ = waiter;
  state_.fetch_or(kQueued, std::memory_order_relaxed);
}

void FairMutex::Leave(Waiter* waiter) {
  (waiter->before == nullptr ? first_ : waiter->before->behind) = waiter->behind;
  (waiter->behind == nullptr ? last_ : waiter->behind->before) = waiter->before;
}

// Lets in whoever is first, as long as that goes. What a waiter is may be gone as soon as mutex_ is let go.
void FairMutex::Grant() {
  while (first_ != nullptr && Take(first_->shared)) {
    Waiter* const waiter = first_;
    Leave(waiter);
    waiter->granted = true;
    waiter->wake.notify_one();
  }
  if (first_ == nullptr) state_.fetch_and(~kQueued, std::memory_order_relaxed);
}

void FairMutex::GrantQueued() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Grant();
}

}  // namespace seine
