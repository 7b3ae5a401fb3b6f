// A byte limit that several indexes share: a server makes one and hands it to every Index::Create. Thread-safe.
#ifndef SEINE_INDEX_MEMORY_BUDGET_H_
#define SEINE_INDEX_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>

namespace seine {

class MemoryBudget {
 public:
  // limit_bytes 0: count, but never refuse.
  explicit MemoryBudget(int64_t limit_bytes) : limit_(limit_bytes) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // False, and nothing reserved, where `bytes` more would pass the limit.
  bool TryReserve(int64_t bytes) {
    int64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (limit_ > 0 && bytes > limit_ - used) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }
  void Release(int64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  int64_t limit_bytes() const { return limit_; }
  int64_t used_bytes() const { return used_.load(std::memory_order_relaxed); }

 private:
  const int64_t limit_;
  std::atomic<int64_t> used_{0};
};

}  // namespace seine

#endif  // SEINE_INDEX_MEMORY_BUDGET_H_
