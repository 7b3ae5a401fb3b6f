// Memory of an index: every buffer is admitted against the limits before it is allocated, and counted while it lives.
#ifndef SEINE_INDEX_MEMORY_MEMORY_H_
#define SEINE_INDEX_MEMORY_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "index/memory/memory_budget.h"
#include "index/memory/reclaimer.h"
#include "index/memory/slab_pool.h"
#include "kernels/backend.h"

namespace seine {

// kQuery: queries kept for scorers. kOther: the sequences' own objects. kSubspace: low-rank tokens, bases and what they
// learn from.
enum class MemoryKind : uint8_t { kCode = 0, kStore = 1, kOther = 2, kQuery = 3, kSubspace = 4 };
inline constexpr int kMemoryKinds = 5;
inline MemorySpace SpaceOf(MemoryKind kind) {
  return kind == MemoryKind::kCode ? MemorySpace::kCodes : MemorySpace::kStore;
}

// OK, RESOURCE_EXHAUSTED where the backend ran out of memory, UNAVAILABLE where its device is lost, or StopStatus().
absl::Status StatusOf(const Backend& backend, Outcome outcome);

// What one index holds, under its own limits and, if given, those shared with other indexes. Thread-safe.
class MemoryLedger {
 public:
  // `reclaimer`, if given, is asked for room before memory of the host is refused.
  MemoryLedger(Backend* backend, int64_t limit_bytes, int64_t device_limit_bytes, std::shared_ptr<MemoryBudget> shared,
               Reclaimer* reclaimer = nullptr)
      : backend_(backend),
        code_blocks_(backend, MemorySpace::kCodes),
        store_blocks_(backend, MemorySpace::kStore),
        own_(limit_bytes, device_limit_bytes),
        shared_(std::move(shared)),
        reclaimer_(reclaimer) {}
  MemoryLedger(const MemoryLedger&) = delete;
  MemoryLedger& operator=(const MemoryLedger&) = delete;

  Backend* backend() const { return backend_; }
  // Whence blocks of any size come that are written once.
  SlabPool* pool(MemoryKind kind) { return SpaceOf(kind) == MemorySpace::kCodes ? &code_blocks_ : &store_blocks_; }
  int64_t held(MemoryKind kind) const { return held_[static_cast<int>(kind)].load(std::memory_order_relaxed); }
  Account AccountOf(MemoryKind kind) const {
    return backend_->codes_on_device() && kind == MemoryKind::kCode ? Account::kDevice : Account::kHost;
  }

  // RESOURCE_EXHAUSTED naming the limit that is passed; then nothing is reserved.
  absl::Status Reserve(int64_t bytes, Account account);
  void Release(int64_t bytes, Account account);
  // As MemoryBudget::SetSlack, of the index's own limit and of those that it shares.
  void SetSlack(int64_t bytes) {
    own_.SetSlack(bytes);
    if (shared_ != nullptr) shared_->SetSlack(bytes);
  }
  // Whether what is reserved here is reserved in `budget`.
  bool CountsIn(const MemoryBudget& budget) const {
    return own_.CountsIn(budget) || (shared_ != nullptr && shared_->CountsIn(budget));
  }
  void Count(MemoryKind kind, int64_t bytes) {
    held_[static_cast<int>(kind)].fetch_add(bytes, std::memory_order_relaxed);
  }

 private:
  // nullptr once they are reserved, else the budget that has no room.
  const MemoryBudget* TryReserve(int64_t bytes, Account account);
  absl::Status Refuse(const MemoryBudget& full, int64_t bytes, Account account) const;

  Backend* const backend_;
  SlabPool code_blocks_, store_blocks_;
  MemoryBudget own_;
  const std::shared_ptr<MemoryBudget> shared_;
  Reclaimer* const reclaimer_;  // nullptr: there is none
  std::atomic<int64_t> held_[kMemoryKinds] = {};
};

// A counted share of a ledger: a backend's buffer, a pool's block, or bytes that live elsewhere. Move-only.
class Memory {
 public:
  Memory() = default;
  Memory(Memory&& o) noexcept { *this = std::move(o); }
  Memory& operator=(Memory&& o) noexcept;
  ~Memory();

  uint8_t* data() const { return pool_ != nullptr ? block_ : buffer_.data(); }
  int64_t bytes() const { return bytes_; }
  // Moves `bytes` of a charge into one of its own, which stays counted when this goes. Only where nothing is at data().
  Memory Split(int64_t bytes);

 private:
  friend class Reservation;
  Memory(MemoryLedger* ledger, MemoryKind kind, int64_t bytes);  // `bytes` are reserved already

  Buffer buffer_;
  SlabPool* pool_ = nullptr;
  uint8_t* block_ = nullptr;  // of pool_
  MemoryLedger* ledger_ = nullptr;
  MemoryKind kind_ = MemoryKind::kOther;
  int64_t bytes_ = 0;
};

// Bytes admitted but not yet allocated; what is left goes back at the end.
class Reservation {
 public:
  explicit Reservation(MemoryLedger* ledger) : ledger_(ledger) {}
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation();

  absl::Status Reserve(MemoryKind kind, int64_t bytes);
  // Out of the reserved bytes, a block of `pool`, or a buffer of the backend where that is nullptr. RESOURCE_EXHAUSTED
  // where there is no memory.
  absl::Status Allocate(MemoryKind kind, int64_t bytes, SlabPool* pool, Memory* out);
  // The same without a buffer: bytes that live elsewhere.
  Memory Charge(MemoryKind kind, int64_t bytes);

 private:
  MemoryLedger* const ledger_;
  int64_t left_[kAccounts] = {};
};

}  // namespace seine

#endif  // SEINE_INDEX_MEMORY_MEMORY_H_
