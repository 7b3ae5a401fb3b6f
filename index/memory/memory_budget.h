// Byte limits that several indexes share: a server makes one and hands it to every Index::Create. Thread-safe.
#ifndef SEINE_INDEX_MEMORY_MEMORY_BUDGET_H_
#define SEINE_INDEX_MEMORY_MEMORY_BUDGET_H_

#include <algorithm>
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
  // So much of the host's memory may be held beyond the limit, and beyond that of the whole, from now on.
  void SetSlack(int64_t bytes) {
    slack_.store(bytes, std::memory_order_relaxed);
    if (whole_ != nullptr) whole_->SetSlack(bytes);
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
  // Takes bytes of the host's memory that pass through, such as messages under way. They count in the limit, yet
  // passing_room() is theirs even where everything else is taken, a quarter of it for small ones alone. Returns false,
  // and takes nothing, where there is no room. Only the whole budget is asked so, never a part.
  bool TryPass(int64_t bytes, bool is_small) {
    passing_.fetch_add(bytes);
    if (!IsOver(is_small)) return true;
    passing_.fetch_sub(bytes);
    return false;
  }
  void Pass(int64_t bytes) { passing_.fetch_add(bytes); }  // whatever the limit
  void EndPass(int64_t bytes) { passing_.fetch_sub(bytes); }
  // Sets what the process was seen to hold beyond what is counted and what is allowed for. It counts in the limit, too.
  void SetUncounted(int64_t bytes) { uncounted_.store(bytes); }
  int64_t uncounted_bytes() const { return uncounted_.load(std::memory_order_relaxed); }
  int64_t passing_bytes() const { return passing_.load(std::memory_order_relaxed); }
  int64_t passing_room() const { return std::max(limit_bytes() / kPassingShare, kLeastPassing); }
  static constexpr int64_t kPassingShare = 32, kLeastPassing = int64_t{16} << 20;

  // Whether TryReserve would find room for `bytes` of the host's memory here, were it asked now.
  bool HasRoom(int64_t bytes) const {
    return limit_bytes() == 0 || (bytes <= limit_bytes() - used_bytes() && !IsOver(/*is_small=*/false, bytes));
  }
  // Whether what is stored and uncounted fills the limit but for a share, so that large messages may soon lack room.
  bool IsTight() const {
    const int64_t limit = limit_bytes();
    return limit > 0 && used_bytes() > limit - limit / kPassingShare - uncounted_bytes();
  }
  // False where not even all of the limit would do.
  bool MayFit(int64_t bytes, Account account = Account::kHost) const {
    return limit_bytes(account) == 0 || bytes <= limit_bytes(account);
  }
  bool is_part() const { return whole_ != nullptr; }
  // Whether what is reserved here is reserved in `o`.
  bool CountsIn(const MemoryBudget& o) const { return this == &o || (whole_ != nullptr && whole_->CountsIn(o)); }
  // The budget that has no room for `bytes` more: this one, or the whole. For an error's text.
  const MemoryBudget& Refusing(int64_t bytes, Account account) const {
    const int64_t limit = limit_bytes(account);
    const bool full = limit > 0 && bytes > limit - used_bytes(account);
    return full || whole_ == nullptr ? *this : *whole_;
  }

 private:
  // Returns true if what is held and what passes, and `more`, take more than both may. Uncounted bytes never refuse
  // small ones.
  bool IsOver(bool is_small, int64_t more = 0) const {
    const int64_t limit = limit_bytes(), room = passing_room();
    const int64_t counted = used_[0].load() + passing_.load() + more - slack_.load(std::memory_order_relaxed);
    if (limit == 0) return false;
    // A limit may be the largest number that there is.
    return is_small ? counted - room > limit : counted + uncounted_.load() - (room - room / 4) > limit;
  }
  bool TryHold(int64_t bytes, Account account) {
    const int64_t limit = limit_bytes(account);
    const int64_t slack = account == Account::kHost ? slack_.load(std::memory_order_relaxed) : 0;
    std::atomic<int64_t>& held = used_[static_cast<int>(account)];
    int64_t used = held.load(std::memory_order_relaxed);
    do {
      if (limit > 0 && bytes - slack > limit - used) return false;
    } while (!held.compare_exchange_weak(used, used + bytes));
    if (account == Account::kHost && IsOver(/*is_small=*/false)) {
      held.fetch_sub(bytes, std::memory_order_relaxed);
      return false;
    }
    std::atomic<int64_t>& peak = peak_[static_cast<int>(account)];
    int64_t highest = peak.load(std::memory_order_relaxed);
    while (used + bytes > highest && !peak.compare_exchange_weak(highest, used + bytes, std::memory_order_relaxed)) {
    }
    return true;
  }

  std::atomic<int64_t> limit_[kAccounts];
  std::atomic<int64_t> used_[kAccounts] = {}, peak_[kAccounts] = {};
  std::atomic<int64_t> passing_{0}, uncounted_{0}, slack_{0};
  const std::shared_ptr<MemoryBudget> whole_;  // nullptr: none
};

}  // namespace seine

#endif  // SEINE_INDEX_MEMORY_MEMORY_BUDGET_H_
