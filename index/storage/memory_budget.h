// Byte limits that several indexes share: a server makes one and hands it to every Index::Create. Thread-safe.
#ifndef SEINE_INDEX_STORAGE_MEMORY_BUDGET_H_
#define SEINE_INDEX_STORAGE_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>

namespace seine {

// Whose memory: a backend without a memory of its own keeps its codes in the host's (Backend::codes_on_device).
enum class Account : uint8_t { kHost = 0, kDevice = 1 };
inline constexpr int kAccounts = 2;

class MemoryBudget {
 public:
  // A limit of 0: count, but never refuse.
  explicit MemoryBudget(int64_t limit_bytes, int64_t device_limit_bytes = 0)
      : limit_{limit_bytes, device_limit_bytes} {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // False, and nothing reserved, where `bytes` more would pass the limit.
  bool TryReserve(int64_t bytes, Account account = Account::kHost) {
    const int64_t limit = limit_bytes(account);
    std::atomic<int64_t>& held = used_[static_cast<int>(account)];
    int64_t used = held.load(std::memory_order_relaxed);
    do {
      if (limit > 0 && bytes > limit - used) return false;
    } while (!held.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    std::atomic<int64_t>& peak = peak_[static_cast<int>(account)];
    int64_t highest = peak.load(std::memory_order_relaxed);
    while (used + bytes > highest && !peak.compare_exchange_weak(highest, used + bytes, std::memory_order_relaxed)) {
    }
    return true;
  }
  void Release(int64_t bytes, Account account = Account::kHost) {
    used_[static_cast<int>(account)].fetch_sub(bytes, std::memory_order_relaxed);
  }

  int64_t limit_bytes(Account account = Account::kHost) const { return limit_[static_cast<int>(account)]; }
  int64_t used_bytes(Account account = Account::kHost) const {
    return used_[static_cast<int>(account)].load(std::memory_order_relaxed);
  }
  // The most that was ever reserved at once.
  int64_t peak_bytes(Account account = Account::kHost) const {
    return peak_[static_cast<int>(account)].load(std::memory_order_relaxed);
  }

 private:
  const int64_t limit_[kAccounts];
  std::atomic<int64_t> used_[kAccounts] = {}, peak_[kAccounts] = {};
};

}  // namespace seine

#endif  // SEINE_INDEX_STORAGE_MEMORY_BUDGET_H_
