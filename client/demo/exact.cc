// Exact logits, top k and softmax masses.
#include "client/demo/exact.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace seine::demo {

ExactHead::ExactHead(absl::Span<const float> keys, int64_t num_tokens, int num_kv_heads, int kv_head, int head_dim)
    : capacity_(num_tokens), head_dim_(head_dim), columns_(num_tokens * head_dim), logits_(num_tokens) {
  for (int64_t token = 0; token < num_tokens; ++token) {
    const float* row = keys.data() + (token * num_kv_heads + kv_head) * head_dim;
    for (int d = 0; d < head_dim; ++d) columns_[d * capacity_ + token] = row[d];
  }
}

Quality ExactHead::Judge(absl::Span<const float> query, absl::Span<const int32_t> set, int64_t num_tokens,
                         int64_t zone_begin, int64_t zone_end) {
  std::fill_n(logits_.begin(), num_tokens, 0.0f);
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
  for (int d = 0; d < head_dim_; ++d) {
    const float* column = columns_.data() + d * capacity_;
    const float q = query[d] * scale;
    for (int64_t token = 0; token < num_tokens; ++token) logits_[token] += q * column[token];
  }

  const size_t k = std::min<size_t>(set.size(), zone_end - zone_begin);
  order_.resize(zone_end - zone_begin);
  std::iota(order_.begin(), order_.end(), static_cast<int32_t>(zone_begin));
  const auto better = [&](int32_t a, int32_t b) {
    return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;  // ties: the lower position
  };
  std::nth_element(order_.begin(), order_.begin() + k, order_.end(), better);
  std::sort(order_.begin(), order_.begin() + k);

  const float top = *std::max_element(logits_.begin(), logits_.begin() + num_tokens);
  const auto weight = [&](int64_t token) { return std::exp(static_cast<double>(logits_[token] - top)); };
  const auto mass = [&](int64_t begin, int64_t end) {
    double sum = 0;
    for (int64_t token = begin; token < end; ++token) sum += weight(token);
    return sum;
  };
  double of_set = 0, of_truth = 0;
  size_t found = 0;
  for (int32_t token : set) {
    of_set += weight(token);
    found += std::binary_search(order_.begin(), order_.begin() + k, token);
  }
  for (size_t i = 0; i < k; ++i) of_truth += weight(order_[i]);
  const double of_dense = mass(0, zone_begin) + mass(zone_end, num_tokens);
  Quality quality;
  quality.recall = k > 0 ? static_cast<double>(found) / k : 1;
  quality.attention_mass = of_truth > 0 ? of_set / of_truth : 1;
  const double of_all = of_dense + mass(zone_begin, zone_end);
  quality.attention_covered = (of_set + of_dense) / of_all;
  quality.dense_covered = of_dense / of_all;
  quality.exact_covered = (of_truth + of_dense) / of_all;
  return quality;
}

}  // namespace seine::demo
