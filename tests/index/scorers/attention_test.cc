// The scorers that look at queries, against their definitions in float64.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>

#include "absl/strings/match.h"
#include "tests/index/scorers/synthetic_layer.h"

namespace seine {
namespace {

using testing::MadeUpLayer;
using testing::ScoresOf;

// weights[i] of query q over tokens at `positions`, those after the query's own position 0.
std::vector<double> Softmax(const MadeUpLayer& l, int q, int h, int g, int query_position) {
  std::vector<double> weights(l.n);
  double sum = 0;
  for (int i = 0; i <= query_position; ++i) {
    double dot = 0;
    for (int j = 0; j < l.dim; ++j) dot += static_cast<double>(l.Query(q, h, g)[j]) * l.Key(h, i)[j];
    sum += weights[i] = std::exp(dot / std::sqrt(l.dim));
  }
  for (double& w : weights) w /= sum;
  return weights;
}

class AttentionScorers : public ::testing::Test {
 protected:
  std::unique_ptr<Backend> backend_ = MakeCpuBackend(2);
};

TEST_F(AttentionScorers, SnapKvPoolsTheMeanOfTheWindow) {
  constexpr int kWindow = 8;
  MadeUpLayer l(2, 3, 64, 90, 20);
  ScorerConfig config;
  config.name = "snapkv";
  config.query_window = kWindow;
  for (const int kernel : {1, 5}) {
    config.kernel = kernel;
    const Scores scores = ScoresOf(config, l.Input(backend_.get()));
    for (int h = 0; h < 2; ++h) {
      std::vector<double> mean(l.n);
      for (int q = 20 - kWindow; q < 20; ++q) {
        for (int g = 0; g < 3; ++g) {
          const auto w = Softmax(l, q, h, g, l.n - 20 + q);
          for (int i = 0; i < l.n; ++i) mean[i] += w[i] / (kWindow * 3);
        }
      }
      const int n = l.n - kWindow;
      for (int i = 0; i < n; ++i) {
        double pooled = 0;
        for (int j = std::max(0, i - kernel / 2); j <= std::min(n - 1, i + kernel / 2); ++j) pooled += mean[j] / kernel;
        EXPECT_NEAR(scores[h][i], pooled, 2e-6) << i;
      }
      for (int i = n; i < l.n; ++i)
        EXPECT_GT(scores[h][i], *std::max_element(scores[h].begin(), scores[h].begin() + n));
    }
  }
}

TEST_F(AttentionScorers, TovaIsTheLastQuerysMeanOverAllHeads) {
  MadeUpLayer l(2, 2, 64, 70, 3);
  const Scores scores = ScoresOf("tova", l.Input(backend_.get()));
  std::vector<double> mean(l.n);
  for (int h = 0; h < 2; ++h) {
    for (int g = 0; g < 2; ++g) {
      const auto w = Softmax(l, 2, h, g, l.n - 1);
      for (int i = 0; i < l.n; ++i) mean[i] += w[i] / 4;
    }
  }
  for (int i = 0; i + 1 < l.n; ++i) EXPECT_NEAR(scores[0][i], mean[i], 2e-6);
  EXPECT_EQ(scores[0], scores[1]);
  EXPECT_EQ(std::max_element(scores[0].begin(), scores[0].end()) - scores[0].begin(), l.n - 1);
}

TEST_F(AttentionScorers, TovaWhereHeadsHoldDifferentTokens) {
  MadeUpLayer l(2, 1, 64, 40, 1);
  const std::vector<int32_t> even = {0, 2, 4, 6, 8}, low = {0, 1, 2, 3, 4};
  ScoreInput input = l.Input(backend_.get());
  input.heads[0].count = input.heads[1].count = 5;
  ScoreInput alone = input;  // the first five rows, at other positions
  input.heads[0].positions = even.data();
  input.heads[1].positions = low.data();
  const Scores scores = ScoresOf("tova", input);
  EXPECT_EQ(scores[0][0], scores[1][0]);  // position 0, in both
  EXPECT_EQ(scores[0][1], scores[1][2]);  // position 2
  EXPECT_NE(scores[0][3], scores[1][3]);  // 6 and 3, each in one head
}

TEST_F(AttentionScorers, H2oDividesByTheQueriesThatSeeAToken) {
  MadeUpLayer l(2, 2, 64, 30, 30);
  const Scores scores = ScoresOf("h2o", l.Input(backend_.get()));
  for (int h = 0; h < 2; ++h) {
    std::vector<double> sum(l.n);
    for (int q = 0; q < 30; ++q) {
      for (int g = 0; g < 2; ++g) {
        const auto w = Softmax(l, q, h, g, q);
        for (int i = 0; i < l.n; ++i) sum[i] += w[i] / 2;
      }
    }
    for (int i = 0; i < l.n; ++i) EXPECT_NEAR(scores[h][i], sum[i] / (l.n - i), 2e-6);
  }
}

// Positions decide what a query sees, not places: the tokens kept of a longer sequence.
TEST_F(AttentionScorers, RetainedTokensAreSeenByPosition) {
  MadeUpLayer l(1, 1, 64, 10, 2);
  const std::vector<int32_t> positions = {0, 3, 5, 9, 20, 40, 60, 80, 98, 99};
  ScoreInput input = l.Input(backend_.get());
  input.length = 100;
  input.heads[0].positions = positions.data();
  const Scores scores = ScoresOf("h2o", input);
  const auto before = Softmax(l, 0, 0, 0, 8), last = Softmax(l, 1, 0, 0, 9);  // the query at 98 sees nine of them
  for (int i = 0; i < 9; ++i) EXPECT_NEAR(scores[0][i], (before[i] + last[i]) / 2, 2e-6);
  EXPECT_NEAR(scores[0][9], last[9], 2e-6);
}

// Queries that an index kept: of any positions, each seeing the tokens up to its own; fewer than asked for will do, and
// what came after the last of them, or from the first of a window on, is above all others.
TEST_F(AttentionScorers, KeptQueriesSeeUpToTheirOwnPositions) {
  MadeUpLayer l(2, 2, 64, 80, 4);
  const int64_t positions[] = {30, 31, 50, 70};
  ScoreInput input = l.Input(backend_.get());
  input.query_positions = positions;
  std::vector<double> sums(80), last(80);
  for (int q = 0; q < 4; ++q) {
    for (int g = 0; g < 2; ++g) {
      const auto w = Softmax(l, q, 1, g, static_cast<int>(positions[q]));
      for (int i = 0; i < 80; ++i) sums[i] += w[i] / 2;
      for (int i = 0; i < 80 && q == 3; ++i) last[i] += w[i] / 4;
    }
  }
  for (int g = 0; g < 2; ++g) {
    const auto w = Softmax(l, 3, 0, g, 70);
    for (int i = 0; i < 80; ++i) last[i] += w[i] / 4;
  }
  const Scores h2o = ScoresOf("h2o", input), tova = ScoresOf("tova", input);
  ScorerConfig config;
  config.name = "snapkv";
  config.kernel = 1;
  const Scores snapkv = ScoresOf(config, input);  // its window of 64 is not there
  config.query_window = 4;
  const Scores narrow = ScoresOf(config, input);
  for (int i = 0; i < 80; ++i) {
    const int seers = (i <= 30) + (i <= 31) + (i <= 50) + (i <= 70);
    if (seers > 0) {
      EXPECT_NEAR(h2o[1][i], sums[i] / seers, 2e-6) << i;
    } else {
      EXPECT_GT(h2o[1][i], 1) << i;
    }
    if (i < 70) {
      EXPECT_NEAR(tova[1][i], last[i], 2e-6) << i;
    } else {
      EXPECT_GT(tova[1][i], 1) << i;
    }
    if (i < 30) {
      EXPECT_NEAR(snapkv[1][i], sums[i] / 4, 2e-6) << i;
    } else {
      EXPECT_GT(snapkv[1][i], 1) << i;
    }
    if (i <= 70) {  // the window of four ends at 76, but what came after the last query nobody has judged
      EXPECT_NEAR(narrow[1][i], sums[i] / seers, 2e-6) << i;
    } else {
      EXPECT_GT(narrow[1][i], 1) << i;
    }
  }
}

// The same queries at the same positions: kept or given makes no difference. Only those past the sinks have a say.
TEST_F(AttentionScorers, KeptQueriesOfTheLastPositionsAreAsGiven) {
  MadeUpLayer l(2, 2, 64, 40, 40);
  std::vector<int64_t> positions(40);
  std::iota(positions.begin(), positions.end(), 0);
  for (const char* name : {"tova", "h2o", "snapkv", "expected_attention"}) {
    ScorerConfig config;
    config.name = name;
    if (config.name == "snapkv") config.query_window = 9;
    ScoreInput input = l.Input(backend_.get());
    const Scores given = ScoresOf(config, input);
    input.query_positions = positions.data();
    EXPECT_EQ(ScoresOf(config, input), given) << name;
  }
  ScorerConfig expected;
  expected.name = "expected_attention";
  ScoreInput input = l.Input(backend_.get());
  input.query_positions = positions.data();
  input.num_queries = 4;  // all of the sinks'
  Scores scores;
  EXPECT_TRUE(
      absl::StrContains((*MakeScorer(expected))->Score(input, &scores).message(), "queries: expected_attention"));
}

// The positions ahead are no loop: a call may ask for as many as there are.
TEST_F(AttentionScorers, ExpectedAttentionLooksAsFarAheadAsItIsTold) {
  MadeUpLayer l(2, 2, 64, 60, 60);
  const Rope rope = *ParseRope(R"({"rope_theta": 10000.0})", 64, Rope::Style::kHalfSplit, 60);
  ScoreInput input = l.Input(backend_.get());
  input.rope = &rope;
  ScorerConfig config;
  config.name = "expected_attention";
  config.future = 1 << 24;
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& head : ScoresOf(config, input)) {
    for (const float score : head) EXPECT_TRUE(std::isfinite(score));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(AttentionScorers, ExpectedAttentionIsTheGaussianMeanOverPositionsToCome) {
  constexpr int kSink = 4, kFuture = 32, kDim = 64;
  MadeUpLayer l(2, 2, kDim, 60, 60);
  for (float& x : l.queries) x *= .5f;
  const Rope rope = *ParseRope(R"({"rope_theta": 10000.0})", kDim, Rope::Style::kHalfSplit, 60);
  ScoreInput input = l.Input(backend_.get());
  input.rope = &rope;
  ScorerConfig config;
  config.name = "expected_attention";
  config.sink = kSink;
  config.future = kFuture;
  config.epsilon = .01;
  const Scores scores = ScoresOf(config, input);
  for (int h = 0; h < 2; ++h) {
    std::vector<double> want(l.n);
    for (int g = 0; g < 2; ++g) {
      std::vector<std::vector<double>> x;
      std::vector<double> mean(kDim);
      for (int q = kSink; q < 60; ++q) {
        x.emplace_back(l.Query(q, h, g), l.Query(q, h, g) + kDim);
        UndoRope(rope, q, x.back().data());
        for (int j = 0; j < kDim; ++j) mean[j] += x.back()[j] / (60 - kSink);
      }
      // k^T R is the mean of k turned back over the positions to come.
      std::vector<double> logits(l.n);
      double sum = 0;
      for (int i = kSink; i < l.n; ++i) {
        std::vector<double> turned(kDim);
        for (int p = 60; p < 60 + kFuture; ++p) {
          std::vector<double> k(l.Key(h, i), l.Key(h, i) + kDim);
          UndoRope(rope, p, k.data());
          for (int j = 0; j < kDim; ++j) turned[j] += k[j] / kFuture;
        }
        double along = 0, spread = 0;
        for (int j = 0; j < kDim; ++j) along += turned[j] * mean[j];
        for (const auto& row : x) {
          double dot = 0;
          for (int j = 0; j < kDim; ++j) dot += turned[j] * (row[j] - mean[j]);
          spread += dot * dot / static_cast<double>(x.size());
        }
        sum += logits[i] = std::exp(along / std::sqrt(kDim) + spread / (2 * kDim));
      }
      for (int i = kSink; i < l.n; ++i) want[i] += logits[i] / sum / 2;
    }
    for (int i = kSink; i < l.n; ++i) {
      double norm = 0;
      for (int j = 0; j < kDim; ++j) norm += std::pow(l.values[h][i * kDim + j], 2);
      EXPECT_NEAR(scores[h][i], (want[i] + .01) * std::sqrt(norm), 1e-4 * std::sqrt(norm)) << i;
    }
    for (int i = 0; i < kSink; ++i)
      EXPECT_GT(scores[h][i], *std::max_element(scores[h].begin() + kSink, scores[h].end()));
  }
}

TEST_F(AttentionScorers, MissingQueriesAndValuesAreNamed) {
  MadeUpLayer l(1, 1, 64, 100, 10);
  const auto error = [&](const char* name, const ScoreInput& input) {
    ScorerConfig config;
    config.name = name;
    Scores scores;
    return std::string((*MakeScorer(config))->Score(input, &scores).message());
  };
  ScoreInput input = l.Input(backend_.get());
  EXPECT_NE(error("snapkv", input).find("queries: snapkv needs those of the last 64 positions, 10 given"),
            std::string::npos);
  input.heads[0].values.chunks = nullptr;
  EXPECT_NE(error("expected_attention", input).find("scorer.value_norms"), std::string::npos);
  input.queries = nullptr;
  for (const char* name : {"snapkv", "tova", "h2o", "expected_attention"}) {
    EXPECT_EQ(error(name, input).rfind("given.queries: ", 0), 0u) << name;
  }
  EXPECT_EQ(error("qfilters", input).rfind("given.filters: ", 0), 0u);
  EXPECT_EQ(error("client", input).rfind("given.scores: ", 0), 0u);
}

}  // namespace
}  // namespace seine
