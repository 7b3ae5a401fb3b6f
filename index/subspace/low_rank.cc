#include "index/subspace/low_rank.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/host.h"

namespace seine {

namespace {

// Turns logits into weights that sum to 1; returns their log-sum-exp.
double Softmax(std::vector<float>* logits) {
  if (logits->empty()) return -std::numeric_limits<double>::infinity();
  const float largest = *std::max_element(logits->begin(), logits->end());
  double sum = 0;
  for (float& x : *logits) sum += x = std::exp(x - largest);
  for (float& x : *logits) x = static_cast<float>(x / sum);
  return largest + std::log(sum);
}

// sum_t weights[t] rows[t], rows [count, dim].
std::vector<float> Mix(const std::vector<float>& weights, const float* rows, int64_t stride, int dim) {
  std::vector<float> mixed(host::PaddedColumns(dim));
  const int count = static_cast<int>(weights.size());
  host::MatMul({weights.data(), count, 1}, rows, stride, 1, dim, count, false, mixed.data(), 0);
  mixed.resize(dim);
  return mixed;
}

}  // namespace

std::vector<float> QueryWeightedErrors(const float* residuals, const int32_t* positions, int64_t count, int head_dim,
                                       const RecentQueries& queries) {
  const ConstRows rows = {residuals, head_dim * sizeof(float), DType::kFloat32};
  std::vector<float> products(static_cast<size_t>(queries.group) * count), errors(count);
  std::vector<int64_t> seen(count);  // queries that see the token
  for (int64_t i = 0; i < queries.num_positions; ++i) {
    host::DotRows(rows, count, head_dim, queries.rows + i * queries.stride, queries.group, products.data(), count);
    for (int64_t t = 0; t < count; ++t) {
      if (positions[t] > queries.positions[i]) continue;
      for (int q = 0; q < queries.group; ++q) errors[t] += std::fabs(products[q * count + t]);
      seen[t] += queries.group;
    }
  }
  for (int64_t t = 0; t < count; ++t) {
    if (seen[t] > 0) errors[t] /= std::sqrt(static_cast<float>(head_dim)) * static_cast<float>(seen[t]);
  }
  return errors;
}

std::vector<float> PooledErrors(const std::vector<float>& errors, int width) {
  const auto count = static_cast<int64_t>(errors.size());
  std::vector<float> pooled(errors.size());
  for (int64_t t = 0; t < count; ++t) {
    const int64_t begin = std::max<int64_t>(0, t - width / 2), end = std::min(count, t + width / 2 + 1);
    const float sum = std::accumulate(errors.begin() + begin, errors.begin() + end, 0.0f);
    pooled[t] = sum / static_cast<float>(end - begin);
  }
  return pooled;
}

std::vector<int32_t> FullRankSet(const std::vector<float>& errors, int64_t count) {
  std::vector<int32_t> places(errors.size());
  std::iota(places.begin(), places.end(), 0);
  const auto kept = std::min<int64_t>(count, static_cast<int64_t>(places.size()));
  const auto larger = [&errors](int32_t a, int32_t b) {
    return errors[a] != errors[b] ? errors[a] > errors[b] : a < b;
  };
  std::partial_sort(places.begin(), places.begin() + kept, places.end(), larger);
  places.resize(kept);
  std::sort(places.begin(), places.end());
  return places;
}

AttentionOutput FullAttention(const ConstRows& keys, const ConstRows& values, int64_t count, int head_dim,
                              const float* query) {
  std::vector<float> logits(count), rows(static_cast<size_t>(count) * head_dim);
  host::DotRows(keys, count, head_dim, query, 1, logits.data(), count);
  for (float& x : logits) x /= std::sqrt(static_cast<float>(head_dim));
  host::ToFloat(values, static_cast<int>(count), head_dim, rows.data());
  AttentionOutput out;
  out.log_sum_exp = Softmax(&logits);
  out.output = Mix(logits, rows.data(), head_dim, head_dim);
  return out;
}

AttentionOutput LowRankAttention(const Basis& key_basis, const float* key_codes, const Basis& value_basis,
                                 const float* value_codes, int64_t count, const float* query) {
  const int dim = key_basis.head_dim, stride = key_basis.stride();
  std::vector<float> projected(stride), logits(count);
  Project(key_basis, query, 1, projected.data(), stride);
  // The padding of codes and query is zero, so whole lanes may be multiplied.
  host::DotRows({key_codes, stride * sizeof(float), DType::kFloat32}, count, stride, projected.data(), 1, logits.data(),
                count);
  for (float& x : logits) x /= std::sqrt(static_cast<float>(dim));
  AttentionOutput out;
  out.log_sum_exp = Softmax(&logits);
  std::vector<float> mixed = Mix(logits, value_codes, value_basis.stride(), value_basis.stride());
  out.output.resize(dim);
  Reconstruct(value_basis, mixed.data(), value_basis.stride(), 1, out.output.data());
  return out;
}

}  // namespace seine
