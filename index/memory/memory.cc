// Admission and counting of an index's memory.
#include "index/memory/memory.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "index/stop_status.h"

namespace seine {

namespace {

absl::Status OverLimit(const char* whose, const MemoryBudget& budget, int64_t bytes, Account account) {
  const int64_t passing = account == Account::kHost ? budget.passing_bytes() + budget.uncounted_bytes() : 0;
  const std::string under_way = passing > 0 ? absl::StrCat(", and ", passing, " in and around messages,") : "";
  return absl::ResourceExhaustedError(
      absl::StrCat(account == Account::kDevice ? "device memory limit " : "memory limit ", whose, ": ", bytes,
                   " bytes more than the ", budget.used_bytes(account), " held", under_way, " would pass ",
                   budget.limit_bytes(account)));
}

}  // namespace

absl::Status StatusOf(const Backend& backend, Outcome outcome) {
  if (outcome == Outcome::kDone) return absl::OkStatus();
  if (outcome == Outcome::kStopped) return StopStatus();
  if (outcome == Outcome::kNoMemory) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory: the ", backend.name(), " backend has no room to work in"));
  }
  return absl::UnavailableError(absl::StrCat("the ", backend.name(), " device is lost (", backend.loss(),
                                             "), and the codes on it; stored keys and values can still be fetched"));
}

const MemoryBudget* MemoryLedger::TryReserve(int64_t bytes, Account account) {
  if (!own_.TryReserve(bytes, account)) return &own_;
  if (shared_ == nullptr || shared_->TryReserve(bytes, account)) return nullptr;
  own_.Release(bytes, account);
  return &shared_->Refusing(bytes, account);
}

absl::Status MemoryLedger::Refuse(const MemoryBudget& full, int64_t bytes, Account account) const {
  if (&full == &own_) return OverLimit("of the index", own_, bytes, account);
  if (&full != shared_.get()) {  // what others hold is not told
    return absl::ResourceExhaustedError(absl::StrCat("the server's memory limit leaves no room for ", bytes, " bytes"));
  }
  return OverLimit(full.is_part() ? "of the tenant (its quota)" : "of all indexes", full, bytes, account);
}

absl::Status MemoryLedger::Reserve(int64_t bytes, Account account) {
  while (const MemoryBudget* full = TryReserve(bytes, account)) {
    const bool may_help = reclaimer_ != nullptr && account == Account::kHost;
    if (may_help && full->MayFit(bytes) && reclaimer_->MakeRoom(*full, bytes)) continue;
    const absl::Status stopped = may_help ? StopStatus() : absl::OkStatus();
    return stopped.ok() ? Refuse(*full, bytes, account) : stopped;
  }
  return absl::OkStatus();
}

void MemoryLedger::Release(int64_t bytes, Account account) {
  own_.Release(bytes, account);
  if (shared_ != nullptr) shared_->Release(bytes, account);
}

Memory::Memory(MemoryLedger* ledger, MemoryKind kind, int64_t bytes) : ledger_(ledger), kind_(kind), bytes_(bytes) {
  ledger_->Count(kind_, bytes_);
}

Memory& Memory::operator=(Memory&& o) noexcept {
  std::swap(buffer_, o.buffer_);
  std::swap(pool_, o.pool_);
  std::swap(block_, o.block_);
  std::swap(ledger_, o.ledger_);
  std::swap(kind_, o.kind_);
  std::swap(bytes_, o.bytes_);
  return *this;
}

Memory::~Memory() {
  if (ledger_ == nullptr) return;
  if (pool_ != nullptr) pool_->Free(block_, bytes_);
  buffer_ = Buffer();
  ledger_->Count(kind_, -bytes_);
  ledger_->Release(bytes_, ledger_->AccountOf(kind_));
}

Memory Memory::Split(int64_t bytes) {
  Memory part;
  part.ledger_ = ledger_;
  part.kind_ = kind_;
  part.bytes_ = bytes;
  bytes_ -= bytes;
  return part;
}

Reservation::~Reservation() {
  for (int i = 0; i < kAccounts; ++i) {
    if (left_[i] > 0) ledger_->Release(left_[i], static_cast<Account>(i));
  }
}

absl::Status Reservation::Reserve(MemoryKind kind, int64_t bytes) {
  const Account account = ledger_->AccountOf(kind);
  if (absl::Status s = ledger_->Reserve(bytes, account); !s.ok()) return s;
  left_[static_cast<int>(account)] += bytes;
  return absl::OkStatus();
}

absl::Status Reservation::Allocate(MemoryKind kind, int64_t bytes, SlabPool* pool, Memory* out) {
  Buffer buffer;
  uint8_t* block = nullptr;
  if (pool != nullptr) {
    block = pool->Allocate(bytes);
  } else {
    buffer = ledger_->backend()->Allocate(static_cast<size_t>(bytes), SpaceOf(kind));
  }
  if (!buffer && block == nullptr) {
    const Backend& backend = *ledger_->backend();
    if (!backend.loss().empty()) return StatusOf(backend, Outcome::kLost);
    return absl::ResourceExhaustedError(absl::StrCat("out of memory: the ", ledger_->backend()->name(),
                                                     " backend could not allocate ", bytes, " bytes"));
  }
  *out = Charge(kind, bytes);
  out->buffer_ = std::move(buffer);
  out->pool_ = pool;
  out->block_ = block;
  return absl::OkStatus();
}

Memory Reservation::Charge(MemoryKind kind, int64_t bytes) {
  left_[static_cast<int>(ledger_->AccountOf(kind))] -= bytes;
  return Memory(ledger_, kind, bytes);
}

}  // namespace seine
