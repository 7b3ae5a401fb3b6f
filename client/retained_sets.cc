#include "client/retained_sets.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace seine::client {
namespace {

// `from` without `taken`, both ascending.
std::vector<int32_t> Without(const std::vector<int32_t>& from, const std::vector<int32_t>& taken) {
  std::vector<int32_t> left;
  std::set_difference(from.begin(), from.end(), taken.begin(), taken.end(), std::back_inserter(left));
  return left;
}

void AddRange(int64_t begin, int64_t end, std::vector<int32_t>* head) {
  for (int64_t position = begin; position < end; ++position) head->push_back(static_cast<int32_t>(position));
}

}  // namespace

// Whether the report follows on the sets: what it drops is in them, and what is left has the counts that it states.
bool RetainedSets::Fits(const Retained& report) const {
  if (report.counts.size() != heads_.size()) return false;
  if (report.report == RetainedReport::kKept) return report.kept.size() == heads_.size();
  if (report.report != RetainedReport::kDropped || !in_step_ || report.evictions_before != evictions_) return false;
  if (report.num_tokens < num_tokens_) return false;
  if (!report.dropped.empty() && report.dropped.size() != heads_.size()) return false;
  const int64_t added = report.num_tokens - num_tokens_;
  for (size_t h = 0; h < heads_.size(); ++h) {
    const std::vector<int32_t> none, &gone = report.dropped.empty() ? none : report.dropped[h];
    if (heads_[h].size() + added != report.counts[h] + gone.size()) return false;
    const auto fresh = std::lower_bound(gone.begin(), gone.end(), num_tokens_);
    if (!std::includes(heads_[h].begin(), heads_[h].end(), gone.begin(), fresh)) return false;
    if (fresh != gone.end() && gone.back() >= report.num_tokens) return false;
  }
  return true;
}

bool RetainedSets::Update(const Retained& report) {
  dropped_.clear();
  in_step_ = Fits(report);
  if (!in_step_) return false;
  const bool whole = report.report == RetainedReport::kKept;
  if (!whole) dropped_ = report.dropped;
  bool any = false;
  for (size_t h = 0; h < heads_.size(); ++h) {
    AddRange(num_tokens_, report.num_tokens, &heads_[h]);
    if (whole) {
      any |= heads_[h] != report.kept[h];
      dropped_.push_back(Without(heads_[h], report.kept[h]));
      heads_[h] = report.kept[h];
    } else if (!dropped_.empty()) {
      heads_[h] = Without(heads_[h], dropped_[h]);
    }
  }
  if (whole && !any) dropped_.clear();
  num_tokens_ = report.num_tokens;
  evictions_ = report.evictions;
  return true;
}

void RetainedSets::Truncate(int64_t position) {
  for (std::vector<int32_t>& head : heads_) {
    head.erase(std::lower_bound(head.begin(), head.end(), position), head.end());
  }
  num_tokens_ = std::min(num_tokens_, std::max<int64_t>(0, position));
}

}  // namespace seine::client
