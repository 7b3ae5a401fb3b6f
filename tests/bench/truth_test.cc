// The exact answer and its measures, against direct computations in double.
#include "bench/inputs/truth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bench/inputs/synthetic.h"

namespace seine::bench {
namespace {

constexpr int kTruthDim = 64, kGroup = 3;
constexpr int64_t kTruthTokens = 400, kPositions = 5;

Head MakeHead() {
  SyntheticHead made = MakeSynthetic({SyntheticKind::kRope, kTruthTokens, kPositions * kGroup, kTruthDim, 3});
  Head head;
  head.num_tokens = kTruthTokens;
  head.zone_begin = 8;
  head.zone_end = 8 + 320;
  head.keys = std::move(made.keys);
  head.queries = std::move(made.queries);
  return head;
}

TruthOptions Options(Scope scope, GqaReduce reduce) {
  return {kTruthDim, scope == Scope::kPerQHead ? 1 : kGroup,      20, scope,
          reduce,    1 / std::sqrt(static_cast<float>(kTruthDim))};
}

double Logit(const float* query, const Head& head, int64_t p) {
  double sum = 0;
  for (int i = 0; i < kTruthDim; ++i) sum += static_cast<double>(query[i]) * head.keys[p * kTruthDim + i];
  return sum / std::sqrt(static_cast<double>(kTruthDim));
}

// Reduced logit of every zone key, by the definition (docs/architecture.md, "Grouped queries").
std::vector<double> Scores(const Head& head, const float* queries, int group, GqaReduce reduce, bool q_head) {
  std::vector<double> totals, scores;
  for (int g = 0; g < group; ++g) {
    totals.push_back(0);
    for (int64_t t = 0; t < head.num_tokens; ++t) totals[g] += std::exp(Logit(queries + g * kTruthDim, head, t));
  }
  for (int64_t p = head.zone_begin; p < head.zone_end; ++p) {
    double sum = 0, largest = -INFINITY, softmax = 0;
    for (int g = 0; g < group; ++g) {
      const double logit = Logit(queries + g * kTruthDim, head, p);
      sum += logit / group;
      largest = std::max(largest, logit);
      softmax += std::exp(logit) / totals[g];
    }
    scores.push_back(q_head || reduce == GqaReduce::kMean ? sum : reduce == GqaReduce::kMax ? largest : softmax);
  }
  return scores;
}

std::vector<int32_t> Top(const std::vector<double>& scores, int k, int64_t first) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  order.resize(k);
  for (int32_t& p : order) p += static_cast<int32_t>(first);
  std::sort(order.begin(), order.end());
  return order;
}

TEST(TruthTest, EqualsDirectComputationForEveryScopeAndReduction) {
  const Head head = MakeHead();
  for (Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
    for (GqaReduce reduce : {GqaReduce::kSoftmaxSum, GqaReduce::kMax, GqaReduce::kMean}) {
      const TruthOptions options = Options(scope, reduce);
      const std::vector<Ask> asks = MakeAsks(head, kGroup, options);
      ASSERT_EQ(static_cast<int>(asks.size()), kPositions * kGroup / options.group);
      for (size_t a = 0; a < asks.size(); ++a) {
        EXPECT_EQ(asks[a].q_head, scope == Scope::kPerQHead ? static_cast<int>(a % kGroup) : 0);
        const auto scores = Scores(head, asks[a].queries, options.group, reduce, scope == Scope::kPerQHead);
        EXPECT_EQ(asks[a].top, Top(scores, options.top_k, head.zone_begin));
      }
    }
  }
}

TEST(TruthTest, MassIsTheShareOfSoftmaxWeight) {
  const Head head = MakeHead();
  const TruthOptions options = Options(Scope::kPerQHead, GqaReduce::kSoftmaxSum);
  const Ask ask = MakeAsks(head, kGroup, options)[4];
  std::vector<int32_t> answer(ask.top.begin(), ask.top.begin() + 7);
  answer.push_back(static_cast<int32_t>(head.zone_end - 1));
  double wanted = 0, whole = 0;
  for (int32_t p : answer) wanted += std::exp(Logit(ask.queries, head, p));
  for (int32_t p : ask.top) whole += std::exp(Logit(ask.queries, head, p));
  EXPECT_NEAR(AttentionMassOf(ask, head, options, answer), wanted / whole, 1e-5);
  EXPECT_NEAR(AttentionMassOf(ask, head, options, ask.top), 1, 1e-9);
  EXPECT_EQ(AttentionMassOf(ask, head, options, {}), 0);
}

TEST(TruthTest, RecallCountsWhatBothHold) {
  Ask ask;
  ask.top = {2, 4, 6, 8};
  EXPECT_EQ(RecallOf(ask, {8, 7, 2}), .5);
  EXPECT_EQ(RecallOf(ask, {8, 6, 4, 2, 1}), 1);
  EXPECT_EQ(RecallOf(ask, {2, 2, 2, 2}), .25);  // a position said twice counts once
  EXPECT_EQ(RecallOf(ask, {}), 0);
}

TEST(TruthTest, TiesGoToTheLowestIndex) {
  const float scores[] = {1, 3, 2, 3, 2, 2, 0};
  EXPECT_EQ(TopIndices(scores, 7, 3), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(TopIndices(scores, 7, 4), (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(TopIndices(scores, 7, 9).size(), 7u);
}

}  // namespace
}  // namespace seine::bench
