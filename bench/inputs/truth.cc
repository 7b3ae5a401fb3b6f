// See truth.h.
#include "bench/inputs/truth.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "bench/machine/parallel.h"

namespace seine::bench {
namespace {

// Keys in one pass over a few asks: their rows stay in the cache for all of them.
constexpr int64_t kTileKeys = 256;
constexpr int64_t kTileAsks = 8;

double LogSumExp(const float* logits, int64_t n, float scale) {
  const float largest = *std::max_element(logits, logits + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(scale) * (logits[i] - largest));
  return static_cast<double>(scale) * largest + std::log(sum);
}

// One number a key for the whole group, from the zone's logits [group][stride].
std::vector<float> Reduce(const float* logits, int64_t stride, int64_t n, const Ask& ask, const TruthOptions& o) {
  std::vector<float> reduced(logits, logits + n);
  if (o.scope == Scope::kPerQHead) return reduced;
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0, largest = -INFINITY;
    for (int g = 0; g < o.group; ++g) {
      const double logit = static_cast<double>(o.softmax_scale) * logits[g * stride + i];
      largest = std::max(largest, logit);
      sum += o.reduce == GqaReduce::kSoftmaxSum ? std::exp(logit - ask.log_sums[g]) : logit / o.group;
    }
    reduced[i] = static_cast<float>(o.reduce == GqaReduce::kMax ? largest : sum);
  }
  return reduced;
}

// Weight of one key: the group's summed softmax weights.
double WeightOf(const Ask& ask, const float* key, const TruthOptions& o) {
  double weight = 0;
  for (int g = 0; g < o.group; ++g) {
    const double logit = static_cast<double>(o.softmax_scale) * Dot(ask.queries + g * o.head_dim, key, o.head_dim);
    weight += std::exp(logit - ask.log_sums[g]);
  }
  return weight;
}

double WeightOf(const Ask& ask, const Head& head, const std::vector<int32_t>& positions, const TruthOptions& o) {
  double weight = 0;
  for (int32_t p : positions) weight += WeightOf(ask, &head.keys[static_cast<size_t>(p) * o.head_dim], o);
  return weight;
}

void Answer(const Head& head, const TruthOptions& o, Ask* asks, int64_t count) {
  const int64_t n = head.num_tokens, rows = count * o.group;
  std::vector<float> logits(rows * n);  // [count][group][num_tokens]
  for (int64_t begin = 0; begin < n; begin += kTileKeys) {
    const int64_t end = std::min(n, begin + kTileKeys);
    for (int64_t r = 0; r < rows; ++r) {
      const float* query = asks[r / o.group].queries + (r % o.group) * o.head_dim;
      for (int64_t i = begin; i < end; ++i) logits[r * n + i] = Dot(query, &head.keys[i * o.head_dim], o.head_dim);
    }
  }
  for (int64_t a = 0; a < count; ++a) {
    Ask& ask = asks[a];
    const float* own = &logits[a * o.group * n];
    for (int g = 0; g < o.group; ++g) {
      ask.log_sums.push_back(static_cast<float>(LogSumExp(own + g * n, n, o.softmax_scale)));
    }
    const std::vector<float> reduced = Reduce(own + head.zone_begin, n, head.num_keys(), ask, o);
    ask.top = TopIndices(reduced.data(), head.num_keys(), o.top_k);
    for (int32_t& p : ask.top) p += static_cast<int32_t>(head.zone_begin);
    ask.top_weight = WeightOf(ask, head, ask.top, o);
  }
}

}  // namespace

float Dot(const float* a, const float* b, int dim) {
  float sums[16] = {};
  for (int i = 0; i < dim; i += 16) {
    for (int l = 0; l < 16; ++l) sums[l] += a[i + l] * b[i + l];
  }
  for (int width = 8; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) sums[l] += sums[l + width];
  }
  return sums[0];
}

std::vector<int32_t> TopIndices(const float* scores, int64_t n, int count) {
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  count = static_cast<int>(std::min<int64_t>(count, n));
  std::nth_element(order.begin(), order.begin() + count - 1, order.end(),
                   [&](int32_t a, int32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<Ask> MakeAsks(const Head& head, int head_group, const TruthOptions& o) {
  const int64_t rows = static_cast<int64_t>(head.queries.size()) / o.head_dim;
  std::vector<Ask> asks(rows / o.group);
  for (size_t a = 0; a < asks.size(); ++a) {
    asks[a].queries = &head.queries[a * o.group * o.head_dim];
    asks[a].q_head = o.group == 1 ? static_cast<int>(a % head_group) : 0;
  }
  const int64_t count = static_cast<int64_t>(asks.size());
  ParallelFor((count + kTileAsks - 1) / kTileAsks, [&](int64_t tile) {
    const int64_t begin = tile * kTileAsks;
    Answer(head, o, &asks[begin], std::min(kTileAsks, count - begin));
  });
  return asks;
}

double RecallOf(const Ask& ask, const std::vector<int32_t>& positions) {
  std::vector<int32_t> sorted = positions, both;
  std::sort(sorted.begin(), sorted.end());
  std::set_intersection(ask.top.begin(), ask.top.end(), sorted.begin(), sorted.end(), std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(ask.top.size());
}

double AttentionMassOf(const Ask& ask, const Head& head, const TruthOptions& o, const std::vector<int32_t>& positions) {
  return WeightOf(ask, head, positions, o) / ask.top_weight;
}

}  // namespace seine::bench
