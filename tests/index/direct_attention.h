// Direct attention in float64 over named tokens, and an index that is asked to attend.
#ifndef SEINE_TESTS_INDEX_DIRECT_ATTENTION_H_
#define SEINE_TESTS_INDEX_DIRECT_ATTENTION_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/index/test_util.h"

namespace seine::testing {

// Element `i` of a row in any dtype.
inline double At(const std::string& row, DType dtype, int i) {
  if (dtype == DType::kFloat32) {
    float x;
    std::memcpy(&x, row.data() + 4 * i, 4);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, row.data() + 2 * i, 2);
  if (dtype == DType::kFloat16) {
    _Float16 half;
    std::memcpy(&half, &bits, 2);
    return static_cast<double>(half);
  }
  const uint32_t wide = uint32_t{bits} << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}

struct Exact {
  std::vector<double> output;
  double log_sum_exp = -INFINITY;
};

// Attention of a query head over tokens at `positions`, named first_name + position, in float64.
inline Exact Direct(const Geometry& g, const std::vector<float>& queries, int q_head,
                    const std::vector<int32_t>& positions, uint64_t first_name = 1, double scale = 0,
                    double softcap = 0) {
  const int begin = q_head / g.group() * g.head_dim;
  if (scale == 0) scale = 1 / std::sqrt(double(g.head_dim));
  Exact exact;
  exact.output.assign(g.head_dim, 0);
  double sum = 0;
  for (const int32_t position : positions) {
    const std::string key = TokenRow(g, first_name + position);
    const std::string value = TokenRow(g, first_name + position + kValueNames);
    double logit = 0;
    for (int j = 0; j < g.head_dim; ++j) {
      logit += At(key, g.dtype, begin + j) * double{queries[q_head * g.head_dim + j]};
    }
    logit *= scale;
    const double weight = std::exp(softcap > 0 ? softcap * std::tanh(logit / softcap) : logit);
    sum += weight;
    for (int j = 0; j < g.head_dim; ++j) exact.output[j] += weight * At(value, g.dtype, begin + j);
  }
  for (double& x : exact.output) x /= sum;
  if (sum > 0) exact.log_sum_exp = std::log(sum);
  return exact;
}

// What an answer says that a query head saw.
inline std::vector<int32_t> Seen(const Geometry& g, const ItemAnswer& answer, int q_head) {
  const int kv_head = q_head / g.group();
  const bool own = static_cast<int>(answer.positions.size()) == g.num_q_heads;
  std::vector<int32_t> seen = answer.positions[own ? q_head : kv_head];
  if (!answer.dense_positions.empty()) {
    seen.insert(seen.end(), answer.dense_positions[kv_head].begin(), answer.dense_positions[kv_head].end());
  } else {
    for (int32_t p = 0; p < answer.num_tokens; ++p) {
      if (p < answer.zone_begin || p >= answer.zone_end) seen.push_back(p);
    }
  }
  std::sort(seen.begin(), seen.end());
  return seen;
}

inline std::vector<int32_t> UpTo(int64_t n) {
  std::vector<int32_t> all(n);
  for (int64_t i = 0; i < n; ++i) all[i] = static_cast<int32_t>(i);
  return all;
}

class AttendTest : public ::testing::Test {
 protected:
  static IndexConfig Config(DType dtype = DType::kFloat16, int head_dim = 64) {
    IndexConfig config = SmallConfig(KvStore::kKeysValues);
    config.geometry = {.num_layers = 2, .num_q_heads = 6, .num_kv_heads = 2, .head_dim = head_dim, .dtype = dtype};
    return config;
  }
  static SearchParams Params(Scope scope = Scope::kPerQHead, int top_k = 20) {
    SearchParams params;
    params.scope = scope;
    params.top_k = top_k;
    params.candidate_fraction = .05;  // the codes are searched, however short the zone
    return params;
  }
  static AttendAnswer One(const Index& index, const SequenceHandle& seq, int layer, const std::vector<float>& queries,
                          const SearchParams& params,
                          const AttentionParams& attention = {.tail = false, .with_positions = true}) {
    auto answers = index.Attend({{seq, layer, queries.data()}}, params, attention);
    EXPECT_TRUE(answers.ok()) << answers.status();
    EXPECT_TRUE((*answers)[0].status.ok()) << (*answers)[0].status;
    return (*answers)[0];
  }
  static void ExpectDirect(const Geometry& g, const std::vector<float>& queries, const AttendAnswer& answer,
                           const std::vector<std::vector<int32_t>>& seen, uint64_t first_name = 1, double scale = 0,
                           double softcap = 0) {
    int64_t attended = 0;
    for (int h = 0; h < g.num_q_heads; ++h) {
      const std::vector<int32_t>& of_head = seen.size() == 1 ? seen[0] : seen[h];
      const Exact exact = Direct(g, queries, h, of_head, first_name, scale, softcap);
      EXPECT_NEAR(answer.log_sum_exp[h], exact.log_sum_exp, 1e-5) << h;
      for (int j = 0; j < g.head_dim; ++j) {
        ASSERT_NEAR(answer.output[h * g.head_dim + j], exact.output[j], 1e-5) << h << " " << j;
      }
      attended += static_cast<int64_t>(of_head.size());
    }
    EXPECT_EQ(answer.attended_tokens, attended);
  }
  // Against what the answer itself says that each head saw.
  static void ExpectAsSelected(const Geometry& g, const std::vector<float>& queries, const AttendAnswer& answer,
                               uint64_t first_name = 1) {
    std::vector<std::vector<int32_t>> seen;
    for (int h = 0; h < g.num_q_heads; ++h) seen.push_back(Seen(g, answer.selected, h));
    ExpectDirect(g, queries, answer, seen, first_name);
  }
  TestBackend backend_{2};
};

}  // namespace seine::testing

#endif  // SEINE_TESTS_INDEX_DIRECT_ATTENTION_H_
