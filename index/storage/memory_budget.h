// Byte limits that several indexes share: a server makes one and hands it to every Index::Create. Thread-safe.
#ifndef SEINE_INDEX_STORAGE_MEMORY_BUDGET_H_
#define SEINE_INDEX_STORAGE_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace seine {

// Whose memory: a backend without a memory of its own keeps its codes in the host's (Backend::codes_on_device).
enum class Account : uint8_t { kHost = 0, kDevice = 1 };
inline constexpr int kAccounts = 2;

class MemoryBudget {
 public:
  // A limit of 0: count, but never refuse. `whole`, if given: a budget of which this one is a part; what is reserved
  // here is reserved there too.
  explicit MemoryBudget(int64_t limit_bytes, int64_t device_limit_bytes = 0,
                        std::shared_ptr<MemoryBudget> whole = nullptr)
      : limit_{limit_bytes, device_limit_bytes}, whole_(std::move(whole)) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // False, and nothing reserved, where `bytes` more would pass the limit, or that of the whole.
  bool TryReserve(int64_t bytes, Account account = Account::kHost) {
    if (!TryHold(bytes, account)) return false;
    if (whole_ == nullptr || whole_->TryReserve(bytes, account)) return true;
    used_[static_cast<int>(account)].fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  void Release(int64_t bytes, Account account = Account::kHost) {
    used_[static_cast<int>(account)].fetch_sub(bytes, std::memory_order_relaxed);
    if (whole_ != nullptr) whole_->Release(bytes, account);
  }

  // Another limit, from now on. What is held beyond it stays.
  void SetLimit(int64_t bytes, Account account) {
    limit_[static_cast<int>(account)].store(bytes, std::memory_order_relaxed);
  }
  int64_t limit_bytes(Account account = Account::kHost) const {
    return limit_[static_cast<int>(account)].load(std::memory_order_relaxed);
  }
  int64_t used_bytes(Account account = Account::kHost) const {
    return used_[static_cast<int>(account)].load(std::memory_order_relaxed);
  }
  // The most that was ever reserved at once.
  int64_t peak_bytes(Account account = Account::kHost) const {
    return peak_[static_cast<int>(account)].load(std::memory_order_relaxed);
  }
  bool is_part() const { return whole_ != nullptr; }
  // The budget that has no room for `bytes` more: this one, or the whole. For an error's text.
  const MemoryBudget& Refusing(int64_t bytes, Account account) const {
    const int64_t limit = limit_bytes(account);
    const bool full = limit > 0 && bytes > limit - used_bytes(account);
    return full || whole_ == nullptr ? *this : *whole_;
  }

 private:
  bool TryHold(int64_t bytes, Account account) {
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

  std::atomic<int64_t> limit_[kAccounts];
  std::atomic<int64_t> used_[kAccounts] = {}, peak_[kAccounts] = {};
  const std::shared_ptr<MemoryBudget> whole_;  // nullptr: none
};

}  // namespace seine

#endif  // SEINE_INDEX_STORAGE_MEMORY_BUDGET_H_
