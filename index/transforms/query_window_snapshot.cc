// The sample of queries in snapshots: a part of QueryWindow (query_window.h).
#include <algorithm>
#include <utility>

#include "index/bytes/state_reader.h"
#include "index/bytes/state_writer.h"
#include "index/transforms/query_window.h"

namespace seine {

bool QueryWindow::CopyFrom(const QueryWindow& source) {
  const std::scoped_lock lock(mutex_, source.mutex_);
  for (const Chunk& chunk : source.chunks_) {
    Reservation reservation(ledger_);
    if (!reservation.Reserve(MemoryKind::kOther, chunk_bytes()).ok()) return false;
    Chunk& copy = chunks_.emplace_back(Chunk{reservation.Charge(MemoryKind::kOther, chunk_bytes()),
                                             std::make_unique_for_overwrite<uint16_t[]>(kChunk * row_)});
    const auto held =
        static_cast<int64_t>(source.positions_.size()) - static_cast<int64_t>(chunks_.size() - 1) * kChunk;
    std::copy_n(chunk.rows.get(), std::clamp<int64_t>(held, 0, kChunk) * row_, copy.rows.get());
  }
  steps_.store(source.steps_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  positions_ = source.positions_;
  next_ = source.next_;
  refitted_at_ = source.refitted_at_;
  judged_ = source.judged_;
  losses_ = source.losses_;
  return true;
}

void QueryWindow::Save(StateWriter* writer) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  writer->Put(steps_.load(std::memory_order_relaxed));
  writer->Put(refitted_at_);
  writer->Put<int32_t>(next_);
  writer->PutVector(positions_);
  const auto steps = static_cast<int64_t>(positions_.size());
  for (int64_t first = 0; first < steps; first += kChunk) {
    writer->PutPayload(chunks_[first / kChunk].rows.get(),
                       std::min<int64_t>(kChunk, steps - first) * row_ * static_cast<int64_t>(sizeof(uint16_t)));
  }
  const bool judged = judged_ != nullptr && writer->Knows(judged_.get());
  writer->Put<uint8_t>(judged ? 1 : 0);
  if (!judged) return;
  writer->PutRef(judged_.get());
  writer->PutVector(losses_);
}

void QueryWindow::Load(StateReader* reader) {
  steps_ = reader->GetWithin(0, INT64_MAX / 4, "steps are negative");
  refitted_at_ = reader->GetWithin(0, steps_, "a step to come was looked at");
  next_ = static_cast<int>(reader->Get<int32_t>());
  positions_ = reader->GetVector<int64_t>();
  const auto steps = static_cast<int64_t>(positions_.size());
  // Until all places are taken, the next is the first that is free.
  if (!reader->Check(steps <= kSteps && next_ >= 0 && next_ < kSteps && (steps == kSteps || next_ == steps),
                     "too many queries were seen"))
    return;
  for (const int64_t position : positions_) reader->Check(position >= 0 && position <= INT32_MAX, "a query is too far");
  for (int64_t first = 0; first < steps && reader->ok(); first += kChunk) {
    Chunk chunk;
    if (!reader->Charge(MemoryKind::kOther, chunk_bytes(), &chunk.charge)) return;
    chunk.rows = std::make_unique_for_overwrite<uint16_t[]>(kChunk * row_);
    const int64_t count = std::min<int64_t>(kChunk, steps - first) * row_;
    const uint16_t* const rows = chunk.rows.get();
    reader->GetPayload(chunk.rows.get(), count * static_cast<int64_t>(sizeof(uint16_t)), [rows, count](const uint8_t*) {
      constexpr uint16_t kExponent = 0x7f80;  // of a bfloat16
      return std::all_of(rows, rows + count, [](uint16_t x) { return (x & kExponent) != kExponent; });
    });
    chunks_.push_back(std::move(chunk));
  }
  bool is_new = false;
  if (!reader->GetBool()) return;
  auto* const judged = reader->GetRef<std::shared_ptr<const LayerCodecs>>(&is_new);
  losses_ = reader->GetVector<double>();
  if (judged == nullptr || !reader->Check(!is_new && losses_.size() == (*judged)->heads.size(), "losses of no codec"))
    return;
  judged_ = *judged;
}

}  // namespace seine
