// Budgets, tokens that are always kept, and the selection, against a plain sort.
#include "index/eviction/select_kept.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "absl/strings/match.h"

namespace seine {
namespace {

using Kept = std::vector<std::vector<uint32_t>>;

class Budgets : public ::testing::Test {
 protected:
  // Heads of so many tokens each, with or without positions of their own.
  ScoreInput Input(const std::vector<int64_t>& counts, int64_t length) {
    ScoreInput input;
    input.backend = backend_.get();
    input.length = length;
    for (const int64_t count : counts) input.heads.push_back({.count = count});
    return input;
  }
  Scores Random(const std::vector<int64_t>& counts, int levels) {
    std::mt19937 random(7);
    Scores scores;
    for (const int64_t count : counts) {
      auto& head = scores.emplace_back(count);
      for (float& s : head) s = static_cast<float>(random() % levels) - levels / 2;
    }
    return scores;
  }
  std::unique_ptr<Backend> backend_ = MakeCpuBackend(2);
};

// The `m` best of (score, place), ties to the lowest place, ascending.
std::vector<uint32_t> Best(const std::vector<float>& scores, int64_t m) {
  std::vector<uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  order.resize(std::min<size_t>(m, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

TEST_F(Budgets, UniformKeepsTheBestWithTiesToTheLowestPosition) {
  for (const int levels : {1, 3, 1000}) {
    const std::vector<int64_t> counts = {500, 0, 1, 777};
    Scores scores = Random(counts, levels);
    for (const int64_t tokens : {1, 64, 500, 1000}) {
      const auto kept = SelectKept({.tokens = tokens}, {}, 1, 0, Input(counts, 800), &scores);
      ASSERT_TRUE(kept.ok());
      for (size_t h = 0; h < counts.size(); ++h) EXPECT_EQ((*kept)[h], Best(scores[h], tokens)) << tokens;
    }
  }
}

TEST_F(Budgets, RatiosRoundDownInDoublesAndKeepAtLeastOne) {
  EXPECT_EQ(KeptTokens({.ratio = .9}, 1000, {}), 99);  // int(1000 * (1 - .9)), as kvpress computes it
  EXPECT_EQ(KeptTokens({.ratio = .75}, 1000, {}), 250);
  EXPECT_EQ(KeptTokens({.ratio = .999}, 10, {}), 1);
  EXPECT_EQ(KeptTokens({.ratio = .5}, 0, {}), 0);
  EXPECT_EQ(KeptTokens({.tokens = 64}, 10, {}), 10);
}

TEST_F(Budgets, PyramidFallsLinearlyAndItsTotalIsExact) {
  for (const int layers : {1, 2, 7, 32}) {
    for (const double ratio : {.5, .75, .9}) {
      for (const double beta : {1.0, 4.0, 20.0}) {
        const BudgetConfig budget{.ratio = ratio, .heads = HeadBudget::kPyramid, .pyramid_ratio = beta};
        int64_t total = 0, last = 4096;
        for (int l = 0; l < layers; ++l) {
          const int64_t kept = KeptTokens(budget, 4096, {.layer = l, .num_layers = layers, .length = 4096});
          EXPECT_LE(kept, last + 1) << l;  // rounding may lift one by one
          EXPECT_GE(kept, 1);
          last = kept;
          total += kept;
        }
        EXPECT_EQ(total, std::llround(4096 * (1 - ratio) * layers)) << layers << " " << ratio << " " << beta;
      }
    }
  }
}

TEST_F(Budgets, AdaptiveTotalsAreExactAndEveryHeadHasItsSafeguard) {
  const std::vector<int64_t> counts = {300, 300, 300};
  Scores scores = Random(counts, 1000);
  for (float& s : scores[1]) s += 5000;  // the whole budget would go to this head
  const BudgetConfig budget{.tokens = 100, .heads = HeadBudget::kAdaptive};
  const auto kept = SelectKept(budget, {}, 1, 0, Input(counts, 300), &scores);
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ((*kept)[0], Best(scores[0], 20));
  EXPECT_EQ((*kept)[2], Best(scores[2], 20));
  EXPECT_EQ((*kept)[1], Best(scores[1], 260));
}

// A layer whose heads differ in length keeps its total: what one head lacks, others have.
TEST_F(Budgets, AdaptiveSpendsTheLayersBudgetWhenHeadsDiffer) {
  const std::vector<int64_t> counts = {250, 30, 180};
  Scores scores = Random(counts, 50);
  const auto kept = SelectKept({.tokens = 100, .heads = HeadBudget::kAdaptive}, {}, 1, 0, Input(counts, 250), &scores);
  ASSERT_TRUE(kept.ok());
  size_t total = 0;
  for (const auto& head : *kept) total += head.size();
  EXPECT_EQ(total, 300u);
}

TEST_F(Budgets, MoreTokensThanThereAreKeepAll) {
  const std::vector<int64_t> counts = {500, 1, 777};
  for (const HeadBudget heads : {HeadBudget::kUniform, HeadBudget::kAdaptive, HeadBudget::kPyramid}) {
    for (const int64_t tokens : {int64_t{1} << 31, int64_t{1} << 32, INT64_MAX - 1, INT64_MAX}) {
      const BudgetConfig budget{.tokens = tokens, .heads = heads};
      EXPECT_EQ(KeptOfHeads(budget, counts, {.layer = 1, .num_layers = 4, .length = 800}), counts) << tokens;
    }
  }
}

TEST_F(Budgets, WhatMustBeKeptIs) {
  const std::vector<int64_t> counts = {200};
  Scores scores = {Random(counts, 10)[0]};
  const KeepConfig keep{.sinks = 4, .recent = 10, .positions = {50, 60, 70, 1000}};
  const auto kept = SelectKept({.tokens = 30}, keep, 1, 0, Input(counts, 200), &scores);
  ASSERT_TRUE(kept.ok());
  ASSERT_EQ((*kept)[0].size(), 30u);
  for (const uint32_t must : {0, 3, 50, 60, 70, 190, 199}) {
    EXPECT_TRUE(std::binary_search((*kept)[0].begin(), (*kept)[0].end(), must)) << must;
  }
  const auto share = SelectKept({.tokens = 40}, {.recent_share = .1}, 1, 0, Input(counts, 200), &scores);
  for (uint32_t i = 196; i < 200; ++i) EXPECT_TRUE(std::binary_search((*share)[0].begin(), (*share)[0].end(), i));
  const absl::Status status = SelectKept({.tokens = 16}, keep, 1, 0, Input(counts, 200), &scores).status();
  EXPECT_EQ(status.message(), "keep: 17 tokens of KV head 0 must stay, its budget is 16");
}

TEST_F(Budgets, BadOnesAreNamed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::pair<BudgetConfig, const char*> budgets[] = {
      {{.tokens = -1}, "budget.tokens: -1 is negative"},
      {{}, "budget.tokens: neither"},
      {{.ratio = 1}, "budget.ratio: 1 is not in"},
      {{.ratio = nan}, "budget.ratio: nan is not in"},
      {{.tokens = 5, .ratio = .5}, "budget.ratio: given beside"},
      {{.tokens = 5, .heads = static_cast<HeadBudget>(7)}, "budget.heads: unknown value 7"},
      {{.tokens = 5, .safeguard = 1.5}, "budget.safeguard: 1.5"},
      {{.tokens = 5, .pyramid_ratio = .5}, "budget.pyramid_ratio: 0.5"},
  };
  for (const auto& [budget, error] : budgets) {
    EXPECT_TRUE(absl::StrContains(Validate(budget).message(), error)) << Validate(budget);
  }
  const std::pair<KeepConfig, const char*> keeps[] = {
      {{.sinks = -1}, "keep.sinks: -1"},
      {{.recent = -2}, "keep.recent: -2"},
      {{.recent_share = 1}, "keep.recent_share: 1 is not"},
      {{.positions = {1, -1}}, "keep.positions[1]: -1 is negative"},
      {{.positions = {3, 3}}, "keep.positions[1]: not ascending"},
  };
  for (const auto& [keep, error] : keeps) {
    EXPECT_TRUE(absl::StrContains(Validate(keep).message(), error)) << Validate(keep);
  }
}

}  // namespace
}  // namespace seine
