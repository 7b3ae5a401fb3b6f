// Keeping queries.
#include "index/transforms/query_window.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace seine {

namespace {

// Nearest bfloat16, ties to even. Finite in, finite out but for the last half step below infinity, which no query has:
// its norm would overflow.
uint16_t ToBFloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float FromBFloat16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

}  // namespace

QueryWindow::Added QueryWindow::Add(int64_t position, const float* queries) {
  const int64_t step = steps_.fetch_add(1, std::memory_order_relaxed) + 1;
  Added added;
  added.renewed = step == kFewest || step == kSteps || step % (int64_t{kSteps} * kSpacing) == 0;
  if (step > kSteps && step % kSpacing != 0) return added;
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return added;
  const auto chunk = static_cast<size_t>(next_ / kChunk);
  if (chunk == chunks_.size()) {
    const int64_t bytes = chunk_bytes();
    Reservation reservation(ledger_);
    added.refused = !reservation.Reserve(MemoryKind::kOther, bytes).ok();
    if (added.refused) return added;
    chunks_.push_back(
        {reservation.Charge(MemoryKind::kOther, bytes), std::make_unique_for_overwrite<uint16_t[]>(kChunk * row_)});
  }
  uint16_t* to = chunks_[chunk].rows.get() + next_ % kChunk * row_;
  for (int64_t i = 0; i < row_; ++i) to[i] = ToBFloat16(queries[i]);
  if (static_cast<size_t>(next_) == positions_.size()) positions_.push_back(0);
  positions_[next_] = position;
  next_ = (next_ + 1) % kSteps;
  return added;
}

SeenQueries QueryWindow::Seen() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  SeenQueries seen;
  seen.positions = positions_;
  seen.rows.reserve(positions_.size() * row_);
  for (size_t i = 0; i < positions_.size(); ++i) {
    const uint16_t* from = chunks_[i / kChunk].rows.get() + static_cast<int64_t>(i % kChunk) * row_;
    std::transform(from, from + row_, std::back_inserter(seen.rows), FromBFloat16);
  }
  return seen;
}

int QueryWindow::held() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(positions_.size());
}

std::vector<float> QueryWindow::Step(int step) const {
  std::vector<float> out(row_);
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint16_t* from = chunks_[step / kChunk].rows.get() + int64_t{step % kChunk} * row_;
  std::transform(from, from + row_, out.begin(), FromBFloat16);
  return out;
}

std::pair<std::vector<float>, int64_t> QueryWindow::Latest() const {
  std::pair<std::vector<float>, int64_t> latest = {{}, -1};
  const std::lock_guard<std::mutex> lock(mutex_);
  if (positions_.empty()) return latest;
  const auto step = static_cast<int64_t>((next_ + positions_.size() - 1) % positions_.size());
  const uint16_t* const from = chunks_[step / kChunk].rows.get() + step % kChunk * row_;
  std::transform(from, from + row_, std::back_inserter(latest.first), FromBFloat16);
  latest.second = positions_[step];
  return latest;
}

bool QueryWindow::MayRefit() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return steps_.load(std::memory_order_relaxed) >= 2 * refitted_at_;
}

void QueryWindow::Refitted() {
  const std::lock_guard<std::mutex> lock(mutex_);
  refitted_at_ = steps_.load(std::memory_order_relaxed);
}

void QueryWindow::SetLosses(std::shared_ptr<const LayerCodecs> codecs, std::vector<double> losses) {
  const std::lock_guard<std::mutex> lock(mutex_);
  judged_.swap(codecs);  // what was there goes after the lock
  losses_ = std::move(losses);
}

std::vector<double> QueryWindow::LossesOf(const LayerCodecs* codecs) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return codecs == judged_.get() ? losses_ : std::vector<double>();
}

}  // namespace seine
