// A shared mutex that is taken in the order of asking: whoever asks later, reader or writer, waits behind whoever waits
// already. So a writer waits for the readers before it alone, and readers for the writers before them. Readers that
// wait one behind the other get in together.
//
// It is a SharedMutex as std::shared_lock and std::unique_lock take one. A thread that holds it must not ask for it
// again, shared or not: behind a waiting writer it would wait for itself.
#ifndef SEINE_INDEX_FAIR_MUTEX_H_
#define SEINE_INDEX_FAIR_MUTEX_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace seine {

class FairMutex {
 public:
  FairMutex() = default;
  FairMutex(const FairMutex&) = delete;
  FairMutex& operator=(const FairMutex&) = delete;

  void lock() {
    if (!try_lock()) Wait(false, false);
  }
  bool try_lock() {
    uint32_t free = 0;
    return state_.compare_exchange_strong(free, kWriter, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void unlock() {
    if ((state_.fetch_sub(kWriter, std::memory_order_release) & kQueued) != 0) GrantQueued();
  }

  void lock_shared() {
    if (!try_lock_shared()) Wait(true, false);
  }
  bool try_lock_shared() {
    uint32_t state = state_.load(std::memory_order_relaxed);
    while ((state & (kWriter | kQueued)) == 0) {
      if (state_.compare_exchange_weak(state, state + kReader, std::memory_order_acquire, std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }
  void unlock_shared() {
    const uint32_t before = state_.fetch_sub(kReader, std::memory_order_release);
    if ((before & kQueued) != 0 && before / kReader == 1) GrantQueued();
  }

  // The same, but false, with nothing held, where the current call is stopped while it waits (stop.h).
  bool LockUnlessStopped() { return try_lock() || Wait(false, true); }
  bool LockSharedUnlessStopped() { return try_lock_shared() || Wait(true, true); }

 private:
  struct Waiter {
    bool shared = false, granted = false;
    Waiter *before = nullptr, *behind = nullptr;
    std::condition_variable wake;
  };
  static constexpr uint32_t kWriter = 1, kQueued = 2, kReader = 4;  // a reader is counted in units of kReader

  bool Wait(bool shared, bool stoppable);
  bool Take(bool shared);
  void Join(Waiter* waiter);
  void Leave(Waiter* waiter);
  void Grant();
  void GrantQueued();

  std::atomic<uint32_t> state_{0};  // kQueued while somebody waits: then nobody takes it but in turn
  std::mutex mutex_;
  Waiter *first_ = nullptr, *last_ = nullptr;  // guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_INDEX_FAIR_MUTEX_H_
