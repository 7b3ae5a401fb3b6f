#include "service/scheduling/sharing.h"

#include <algorithm>
#include <thread>

#include "kernels/machine/limits.h"
#include "kernels/stop.h"

namespace seine {
namespace {

constexpr std::chrono::nanoseconds kRemembered = std::chrono::seconds(10);
constexpr std::chrono::nanoseconds kLookAtStop = std::chrono::milliseconds(5);  // while long work waits

Sharing::Clock::rep Now() { return Sharing::Clock::now().time_since_epoch().count(); }

int HalfTheProcessors() {
  static const int half = std::max(1, DefaultThreads() / 2);
  return half;
}

}  // namespace

void Sharing::Saw(const TenantWork* tenant) {
  const TenantWork* const last = last_seen_.load(std::memory_order_relaxed);
  if (last == tenant || tenant == nullptr) return;
  last_seen_.store(tenant, std::memory_order_relaxed);
  if (last != nullptr) mixed_.store(Now(), std::memory_order_relaxed);
}

bool Sharing::several() const {
  const Clock::rep mixed = mixed_.load(std::memory_order_relaxed);
  return mixed != 0 && Clock::duration(Now() - mixed) < kRemembered;
}

bool Sharing::IsOverFairShare(const TenantWork* tenant) const {
  if (tenant == nullptr || tenant->short_running.load(std::memory_order_relaxed) < HalfTheProcessors()) return false;
  return several();
}

int Sharing::others_short(const TenantWork* tenant) const {
  return short_running_.load() - tenant->short_running.load(std::memory_order_relaxed);
}

void Sharing::Begin(TenantWork* tenant) {
  Saw(tenant);
  tenant->short_running.fetch_add(1, std::memory_order_relaxed);
  short_running_.fetch_add(1);
}

void Sharing::End(TenantWork* tenant) {
  short_running_.fetch_sub(1);
  tenant->short_running.fetch_sub(1, std::memory_order_relaxed);
  if (waiting_.load() == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  ended_.notify_all();
}

void Sharing::Await(const TenantWork* tenant, Clock::time_point until) {
  const auto stopped = [] { return current_stop_token != nullptr && current_stop_token->stop_requested(); };
  waiting_.fetch_add(1);
  std::unique_lock<std::mutex> lock(mutex_);
  for (auto now = Clock::now(); now < until && others_short(tenant) > 0 && !stopped(); now = Clock::now()) {
    ended_.wait_until(lock, std::min(until, now + kLookAtStop));
  }
  lock.unlock();
  waiting_.fetch_sub(1);
}

bool LongWork::Yield() {
  if (!held()) {
    // The kernel lets a thread compute to the end of its slice, some milliseconds, whoever wakes: here it looks again.
    if (sharing_.several()) std::this_thread::yield();
    return false;
  }
  const auto now = Sharing::Clock::now();
  credit_ = std::min(kMostCredit, credit_ + (now - resumed_));
  resumed_ = now;
  if (credit_ <= std::chrono::nanoseconds::zero()) return false;
  sharing_.Await(tenant_, now + credit_);
  resumed_ = Sharing::Clock::now();
  credit_ -= resumed_ - now;
  tenant_->Yielded((resumed_ - now).count());
  return true;
}

}  // namespace seine
