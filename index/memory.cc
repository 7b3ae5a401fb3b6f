// Admission and counting of an index's memory.
#include "index/memory.h"

#include "absl/strings/str_cat.h"

namespace seine {

namespace {

absl::Status OverLimit(const char* whose, const MemoryBudget& budget, int64_t bytes) {
  return absl::ResourceExhaustedError(absl::StrCat("memory limit ", whose, ": ", bytes, " bytes more than the ",
                                                   budget.used_bytes(), " held would pass ", budget.limit_bytes()));
}

}  // namespace

absl::Status MemoryLedger::Reserve(int64_t bytes) {
  if (!own_.TryReserve(bytes)) return OverLimit("of the index", own_, bytes);
  if (shared_ != nullptr && !shared_->TryReserve(bytes)) {
    own_.Release(bytes);
    return OverLimit("of all indexes", *shared_, bytes);
  }
  return absl::OkStatus();
}

void MemoryLedger::Release(int64_t bytes) {
  own_.Release(bytes);
  if (shared_ != nullptr) shared_->Release(bytes);
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
  if (pool_ != nullptr) pool_->Free(block_);
  buffer_ = Buffer();
  ledger_->Count(kind_, -bytes_);
  ledger_->Release(bytes_);
}

absl::Status Reservation::Reserve(int64_t bytes) {
  if (absl::Status s = ledger_->Reserve(bytes); !s.ok()) return s;
  left_ += bytes;
  return absl::OkStatus();
}

absl::Status Reservation::Allocate(MemoryKind kind, int64_t bytes, SlabPool* pool, Memory* out) {
  Buffer buffer;
  uint8_t* block = nullptr;
  if (pool != nullptr) {
    block = pool->Allocate();
  } else {
    buffer = ledger_->backend()->Allocate(static_cast<size_t>(bytes));
  }
  if (!buffer && block == nullptr) {
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
  left_ -= bytes;
  return Memory(ledger_, kind, bytes);
}

}  // namespace seine
