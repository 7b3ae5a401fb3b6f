// The exact peer of the step bench is exact: attention in fp64 gives the same on every SIMD target.
#include "bench/inputs/exact_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/targets.h"
#include "kernels/math.h"

namespace seine::bench {
namespace {

// Random fp16 rows, and what they say in fp32.
std::vector<float> FillRandom(Buffer* rows, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> read;
  auto* halves = reinterpret_cast<uint16_t*>(rows->data());
  for (size_t i = 0; i < rows->size() / 2; ++i) {
    halves[i] = FloatToHalf(normal(*random));
    read.push_back(HalfToFloat(halves[i]));
  }
  return read;
}

// Softmax attention of one query in fp64; returns the log-sum-exp.
double AttendPlainly(const float* query, const float* keys, const float* values, int64_t tokens, int dim,
                     std::vector<double>* output) {
  std::vector<double> logits(tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int j = 0; j < dim; ++j) logits[t] += static_cast<double>(query[j]) * keys[t * dim + j];
    logits[t] /= std::sqrt(dim);
  }
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  output->assign(dim, 0);
  for (int64_t t = 0; t < tokens; ++t) {
    const double weight = std::exp(logits[t] - most);
    sum += weight;
    for (int j = 0; j < dim; ++j) (*output)[j] += weight * values[t * dim + j];
  }
  for (double& v : *output) v /= sum;
  return most + std::log(sum);
}

void ExpectExact(int dim, int group, int64_t tokens) {
  SCOPED_TRACE(testing::Message() << dim << " dims, group " << group << ", " << tokens << " tokens");
  constexpr int kHeads = 2;
  const auto backend = MakeCpuBackend(2);
  LayerRows rows;
  rows.num_tokens = tokens;
  rows.num_kv_heads = kHeads;
  rows.head_dim = dim;
  rows.keys = backend->Allocate(kHeads * rows.head_bytes(), MemorySpace::kStore);
  rows.values = backend->Allocate(kHeads * rows.head_bytes(), MemorySpace::kStore);
  std::mt19937 random(static_cast<unsigned>(dim + group + tokens));
  const std::vector<float> keys = FillRandom(&rows.keys, &random), values = FillRandom(&rows.values, &random);
  std::normal_distribution<float> normal;
  std::vector<float> queries(kHeads * group * dim), output, log_sum_exp;
  for (float& q : queries) q = 4 * normal(random);
  AttendExactly(rows, queries.data(), group, backend.get(), &output, &log_sum_exp);
  std::vector<double> plain;
  for (int q = 0; q < kHeads * group; ++q) {
    const int64_t head = q / group * tokens * dim;
    EXPECT_NEAR(log_sum_exp[q], AttendPlainly(&queries[q * dim], &keys[head], &values[head], tokens, dim, &plain),
                2e-5);
    for (int j = 0; j < dim; ++j) ASSERT_NEAR(output[q * dim + j], plain[j], 2e-5) << q << ", " << j;
  }
}

TEST(ExactAttentionTest, EqualsAttentionInDoublePrecisionOnEveryTarget) {
  for (const std::string& target : cpu::SupportedTargets()) {
    SCOPED_TRACE(target);
    ASSERT_TRUE(cpu::ForceTarget(target));
    for (const int dim : {64, 80, 128}) {
      for (const int group : {1, 2, 3, 4, 7}) {
        for (const int64_t tokens : {1, 63, 64, 201}) ExpectExact(dim, group, tokens);
      }
    }
  }
  ASSERT_TRUE(cpu::ForceTarget(""));
}

}  // namespace
}  // namespace seine::bench
