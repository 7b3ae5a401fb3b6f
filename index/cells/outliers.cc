// Outliers of a window, and sets that take them in.
#include "index/cells/outliers.h"

#include <algorithm>
#include <limits>

namespace seine {

uint64_t FindOutliers(const float* keys, int dim) {
  float squares[kWindowTokens], sorted[kWindowTokens];
  for (int i = 0; i < kWindowTokens; ++i) {
    squares[i] = 0;
    for (int j = 0; j < dim; ++j) squares[i] += keys[i * dim + j] * keys[i * dim + j];
  }
  std::copy_n(squares, kWindowTokens, sorted);
  std::sort(sorted, sorted + kWindowTokens);
  const float bound = std::min(kOutlierNorm * kOutlierNorm * sorted[kWindowTokens / 2], sorted[kMostOutliers]);
  uint64_t outliers = 0;
  for (int i = 0; i < kWindowTokens; ++i) {
    if (squares[i] < bound) outliers |= uint64_t{1} << i;
  }
  return outliers;
}

void AddOutliers(const uint64_t* outliers, int64_t num_windows, const host::AttentionTask& task, SearchOutput* found) {
  static thread_local std::vector<int32_t> cells, joined;
  static thread_local std::vector<float> dots, joined_logits;
  host::PrefetchRange(outliers, num_windows * sizeof(uint64_t));
  cells.clear();
  for (int64_t w = 0; w < num_windows; ++w) {
    for (uint64_t left = outliers[w]; left != 0; left &= left - 1) {
      cells.push_back(static_cast<int32_t>(task.zone_begin + w * kWindowTokens + __builtin_ctzll(left)));
    }
  }
  if (cells.empty()) return;
  const size_t count = cells.size();
  dots.resize(count * task.group);
  host::DotGather(task.keys, cells.data(), static_cast<int>(count), task.queries, task.group, dots.data());
  for (int g = 0; g < task.group; ++g) {
    std::vector<int32_t>& set = found->positions[g];
    std::vector<float>& logits = found->scores[g];
    float least = std::numeric_limits<float>::infinity();
    for (const float logit : logits) least = std::min(least, logit);
    const float* own = dots.data() + g * count;
    const auto enters = [&](float dot) { return dot * task.scale > least; };
    if (std::none_of(own, own + count, enters)) continue;  // as for most queries
    joined.clear();
    joined_logits.clear();
    const auto add = [](int32_t cell, float logit) {
      joined.push_back(cell);
      joined_logits.push_back(logit);
    };
    size_t s = 0;  // of the set
    for (size_t i = 0; i < count; ++i) {
      for (; s < set.size() && set[s] < cells[i]; ++s) add(set[s], logits[s]);
      if (s < set.size() && set[s] == cells[i]) continue;
      if (enters(own[i])) add(cells[i], own[i] * task.scale);
    }
    for (; s < set.size(); ++s) add(set[s], logits[s]);
    std::swap(joined, set);
    std::swap(joined_logits, logits);
  }
}

}  // namespace seine
