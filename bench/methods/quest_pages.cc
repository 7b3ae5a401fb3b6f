// See quest_pages.h.
#include "bench/methods/quest_pages.h"

#include <algorithm>
#include <numeric>

namespace seine::bench {

void QuestPages::Add(const float* keys, int64_t count) {
  for (int64_t page = 0; page < count / page_keys_; ++page) {
    const float* first = keys + page * page_keys_ * dim_;
    for (int j = 0; j < dim_; ++j) {
      float least = first[j], most = first[j];
      for (int64_t i = 1; i < page_keys_; ++i) {
        least = std::min(least, first[i * dim_ + j]);
        most = std::max(most, first[i * dim_ + j]);
      }
      least_.push_back(least);
      most_.push_back(most);
    }
  }
}

std::vector<float> QuestPages::Bounds(const float* query) const {
  std::vector<float> bounds(num_pages());
  for (int64_t page = 0; page < num_pages(); ++page) {
    float bound = 0;
    for (int j = 0; j < dim_; ++j) {
      bound += std::max(query[j] * least_[page * dim_ + j], query[j] * most_[page * dim_ + j]);
    }
    bounds[page] = bound;
  }
  return bounds;
}

std::vector<int64_t> QuestPages::Choose(const float* query, int64_t wanted, bool cut) const {
  const std::vector<float> bounds = Bounds(query);
  const int64_t pages = std::min(num_pages(), (wanted + page_keys_ - 1) / page_keys_);
  std::vector<int64_t> order(bounds.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + pages, order.end(),
                    [&](int64_t a, int64_t b) { return bounds[a] != bounds[b] ? bounds[a] > bounds[b] : a < b; });
  std::vector<int64_t> keys;
  for (int64_t p = 0; p < pages; ++p) {
    for (int64_t i = 0; i < page_keys_; ++i) keys.push_back(order[p] * page_keys_ + i);
  }
  if (cut && static_cast<int64_t>(keys.size()) > wanted) keys.resize(wanted);
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace seine::bench
