#include "index/bytes/state_reader.h"

#include <numeric>

#include "absl/strings/str_cat.h"

namespace seine {

StateReader::StateReader(uint32_t version, std::string state, std::vector<int64_t> part_bytes, MemoryLedger* ledger,
                         ReadObjects known)
    : version_(version),
      state_(std::move(state)),
      objects_(std::move(known)),
      part_bytes_(std::move(part_bytes)),
      reservation_(ledger) {
  Admit(MemoryKind::kStore, std::accumulate(part_bytes_.begin(), part_bytes_.end(), int64_t{0}));
}

void StateReader::Fail(absl::string_view what) {
  status_.Update(absl::DataLossError(absl::StrCat("the snapshot contradicts itself: ", what)));
}

void StateReader::GetBytes(void* data, size_t bytes) {
  if (!Check(bytes <= state_.size() - at_, "it ends too early") || bytes == 0) return;
  std::memcpy(data, state_.data() + at_, bytes);
  at_ += bytes;
}

std::string StateReader::GetString() {
  const auto size = Get<uint64_t>();
  if (!Check(size <= state_.size() - at_, "a text is longer than what holds it")) return {};
  std::string text = state_.substr(at_, size);
  at_ += size;
  return text;
}

void StateReader::AddPayload(Payload payload) {
  if (!ok() || payload.bytes == 0) return;
  const int64_t left = ended_ < part_bytes_.size() ? part_bytes_[ended_] - part_bytes_so_far_ : 0;
  if (!Check(payload.bytes > 0 && payload.bytes <= left, "a section is too short")) return;
  part_bytes_so_far_ += payload.bytes;
  parts_.back().push_back(std::move(payload));
}

void StateReader::EndPart() {
  if (!Check(ended_ < part_bytes_.size(), "there are too few sections")) return;
  if (!Check(part_bytes_so_far_ == part_bytes_[ended_], "a section is too long")) return;
  ++ended_;
  part_bytes_so_far_ = 0;
  parts_.emplace_back();
}

bool StateReader::Admit(MemoryKind kind, int64_t bytes) {
  if (!ok() || bytes <= admitted_) return ok();
  Fail(reservation_.Reserve(kind, bytes - admitted_));
  if (ok()) admitted_ = bytes;
  return ok();
}

bool StateReader::Allocate(MemoryKind kind, int64_t bytes, SlabPool* pool, Memory* out) {
  if (!Admit(kind, bytes)) return false;
  Fail(reservation_.Allocate(kind, bytes, pool, out));
  if (ok()) admitted_ -= bytes;
  return ok();
}

bool StateReader::Charge(MemoryKind kind, int64_t bytes, Memory* out) {
  if (!Admit(kind, bytes)) return false;
  *out = reservation_.Charge(kind, bytes);
  admitted_ -= bytes;
  return true;
}

}  // namespace seine
