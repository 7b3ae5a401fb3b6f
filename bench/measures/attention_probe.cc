#include "bench/measures/attention_probe.h"

#include <algorithm>
#include <cmath>

#include "index/subspace/low_rank.h"
#include "kernels/ops/rows/rows.h"

namespace seine::bench {
namespace {

constexpr int64_t kWeighingPositions = 32;  // w

ConstRows RowsOf(const std::vector<float>& rows, int dim) {
  return {rows.data(), dim * sizeof(float), DType::kFloat32};
}

}  // namespace

AttentionProbe::AttentionProbe(const DatasetInfo& info, const Head& head, const std::vector<float>& values, int queries)
    : head_(head), values_(values), head_dim_(info.head_dim) {
  const int64_t weighing = std::min<int64_t>(kWeighingPositions, info.num_positions / 2);
  const int64_t left = info.num_positions - weighing, asked = std::min<int64_t>(queries, left);
  weighing_ = weighing * info.group;
  for (int64_t a = 0; a < asked; ++a) {
    const int64_t place = weighing + (a + 1) * left / asked - 1;
    const int64_t visible = head.num_tokens - info.num_positions + place + 1;
    for (int g = 0; g < info.group; ++g) {
      const float* query = head.queries.data() + (place * info.group + g) * head_dim_;
      asks_.push_back(
          {query, visible,
           FullAttention(RowsOf(head.keys, head_dim_), RowsOf(values, head_dim_), visible, head_dim_, query).output});
    }
  }
}

double AttentionProbe::Error(const std::vector<float>& key_rows, const std::vector<float>& value_rows) const {
  return MeanError(key_rows, value_rows, [](int64_t visible) { return visible; });
}

double AttentionProbe::Error(const std::vector<int32_t>& positions, const std::vector<float>& key_rows,
                             const std::vector<float>& value_rows) const {
  return MeanError(key_rows, value_rows, [&](int64_t visible) {
    return std::lower_bound(positions.begin(), positions.end(), visible) - positions.begin();
  });
}

// `visible`: how many of the rows a query sees that sees so many tokens.
template <typename Visible>
double AttentionProbe::MeanError(const std::vector<float>& key_rows, const std::vector<float>& value_rows,
                                 Visible visible) const {
  double sum = 0;
  for (const Ask& ask : asks_) {
    const std::vector<float> got = FullAttention(RowsOf(key_rows, head_dim_), RowsOf(value_rows, head_dim_),
                                                 visible(ask.visible), head_dim_, ask.query)
                                       .output;
    double error = 0, norm = 0;
    for (int j = 0; j < head_dim_; ++j) {
      error += std::pow(double{got[j]} - ask.exact[j], 2);
      norm += std::pow(ask.exact[j], 2);
    }
    sum += std::sqrt(error / norm);
  }
  return sum / static_cast<double>(asks_.size());
}

void AttentionProbe::Restore(int64_t begin, int64_t end, std::vector<float>* key_rows,
                             std::vector<float>* value_rows) const {
  const auto copy = [&](const std::vector<float>& from, std::vector<float>* to) {
    std::copy(from.begin() + begin * head_dim_, from.begin() + end * head_dim_, to->begin() + begin * head_dim_);
  };
  copy(head_.keys, key_rows);
  copy(values_, value_rows);
}

void AttentionProbe::RestoreDense(std::vector<float>* key_rows, std::vector<float>* value_rows) const {
  Restore(0, head_.zone_begin, key_rows, value_rows);
  Restore(head_.zone_end, head_.num_tokens, key_rows, value_rows);
}

void AttentionProbe::RestoreTop(double share, std::vector<float>* key_rows, std::vector<float>* value_rows) const {
  const int64_t count = head_.num_tokens;
  std::vector<float> residual(key_rows->size()), products(count * weighing_), errors(count);
  for (size_t i = 0; i < residual.size(); ++i) residual[i] = head_.keys[i] - (*key_rows)[i];
  cpu::DotRows(RowsOf(residual, head_dim_), count, head_dim_, head_.queries.data(), static_cast<int>(weighing_),
               products.data(), count);
  for (int64_t q = 0; q < weighing_; ++q) {
    for (int64_t t = 0; t < count; ++t) errors[t] += std::fabs(products[q * count + t]);
  }
  const int64_t kept = std::llround(share * static_cast<double>(head_.num_keys()));
  for (const int32_t t : FullRankSet(errors, kept)) Restore(t, t + 1, key_rows, value_rows);
}

}  // namespace seine::bench
