#include "index/layer_gate.h"

#include <algorithm>
#include <numeric>

namespace seine {

bool LayerGate::Exact() {
  if (exact_left_.load(std::memory_order_relaxed) <= 0) return false;
  exact_left_.fetch_sub(1, std::memory_order_relaxed);
  exact_answers_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool LayerGate::Due(int64_t tokens) {
  if (bound_ <= 0) return false;
  const int64_t answer = answers_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (answer < next_check_.load(std::memory_order_relaxed)) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (exact() || answer < next_check_) return false;  // an answer that was under way when the layer stepped back
  const int64_t every = kEvery * std::max<int64_t>(1, tokens / kUsualTokens);
  next_check_ = answer < kEvery / 2 ? answer * 4 : (answer / every + 1) * every + phase_ * kPhase % every;
  ++checks_;
  return true;
}

bool LayerGate::Checked(double lost) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (exact()) return false;  // one that was under way when the layer lost too much
  ++num_checked_;
  sum_lost_ += lost;
  lost_.push_back(lost);
  if (lost_.size() > kKept) lost_.pop_front();
  const double mean = std::accumulate(lost_.begin(), lost_.end(), 0.0) / static_cast<double>(lost_.size());
  const bool too_much = (lost_.size() >= 4 && mean > bound_) || (lost_.size() >= 2 && mean > 2 * bound_);
  if (!too_much) return false;
  lost_then_ = mean;
  lost_.clear();
  answers_ = 0, next_check_ = first_check();
  exact_left_ = kPause << tries_;
  tries_ = std::min(tries_ + 1, kMostTries);
  return true;
}

LayerGate::Reading LayerGate::Read() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {num_checked_, sum_lost_, exact_answers_.load(std::memory_order_relaxed), exact(), lost_then_};
}

}  // namespace seine
