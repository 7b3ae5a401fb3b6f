// Diagnosis: dimensions of synthetic manifolds, spreads, dilution, overlaps and correlations.
#include "index/eviction/diagnose.h"

#include <cmath>
#include <numeric>

#include "absl/strings/match.h"
#include "tests/index/scorers/synthetic_layer.h"

namespace seine {
namespace {

using testing::MadeUpLayer;

class DiagnoseTest : public ::testing::Test {
 protected:
  HeadDiagnosis One(MadeUpLayer* layer, const DiagnoseParams& params = {}) {
    auto heads = Diagnose(params, 1, layer->Input(backend_.get()));
    EXPECT_TRUE(heads.ok()) << heads.status();
    return heads->at(0);
  }
  std::unique_ptr<Backend> backend_ = MakeCpuBackend(2);
};

// Gaussian in `flat` dimensions of 64, shifted.
void MakeFlat(MadeUpLayer* l, int flat) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int i = 0; i < l->n; ++i) {
    for (int j = 0; j < l->dim; ++j) l->keys[0][i * l->dim + j] = j < flat ? normal(random) : 2.0f;
  }
}

TEST_F(DiagnoseTest, IntrinsicDimensionOfAKnownManifold) {
  for (const int flat : {2, 6}) {
    MadeUpLayer l(1, 1, 64, 2000, 0);
    MakeFlat(&l, flat);
    const HeadDiagnosis d = One(&l);
    EXPECT_NEAR(d.two_nn, flat, .15 * flat);
    EXPECT_NEAR(d.mle, flat, .2 * flat);
    EXPECT_EQ(d.pca95, flat);
    EXPECT_EQ(d.tokens, 2000);
  }
}

TEST_F(DiagnoseTest, SpreadsOfNormsAndCosines) {
  MadeUpLayer l(1, 1, 64, 4, 0);
  std::fill(l.keys[0].begin(), l.keys[0].end(), 0.0f);
  for (int i = 0; i < 4; ++i) l.keys[0][i * 64 + (i < 2 ? 0 : 1)] = i % 2 == 0 ? 3.0f : 5.0f;
  const HeadDiagnosis d = One(&l);
  EXPECT_NEAR(d.norm_mean, 4, 1e-6);
  EXPECT_NEAR(d.norm_std, 1, 1e-6);
  EXPECT_NEAR(d.cosine_mean, std::sqrt(.5), 1e-6);
  EXPECT_NEAR(d.cosine_std, 0, 1e-6);
  EXPECT_EQ(d.pca95, 2);
}

TEST_F(DiagnoseTest, DilutionShowsWhereWindowsTellMore) {
  MadeUpLayer even(1, 1, 64, 4000, 0);
  DiagnoseParams params;
  params.window = 500;
  EXPECT_NEAR(One(&even, params).dilution, 1, .1);
  MadeUpLayer topics(1, 1, 64, 4000, 0);
  for (int i = 0; i < topics.n; ++i) topics.keys[0][i * 64 + i / 500] += 60;
  EXPECT_GT(One(&topics, params).dilution, 3);
}

TEST_F(DiagnoseTest, OverlapsAndCorrelations) {
  MadeUpLayer l(1, 2, 64, 300, 40);
  DiagnoseParams params;
  params.scorers.resize(3);
  params.scorers[1].name = "manifoldkv";
  params.scorers[2].name = "h2o";
  const HeadDiagnosis d = One(&l, params);
  ASSERT_EQ(d.overlap.size(), 9u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(d.overlap[i * 4], 1);
    EXPECT_NEAR(d.correlation[i * 4], 1, 1e-12);
    EXPECT_EQ(d.overlap[i * 3 + (i + 1) % 3], d.overlap[(i + 1) % 3 * 3 + i]);
  }
  ASSERT_EQ(d.attention_correlation.size(), 3u);
  EXPECT_NEAR(d.attention_correlation[2], 1, 1e-12);
  EXPECT_LT(std::fabs(d.attention_correlation[0]), 1);
}

// Tokens that came after the last query: no attention is known of them, so that ranks are of the others alone.
TEST_F(DiagnoseTest, AttentionIsOfTheTokensThatQueriesSaw) {
  MadeUpLayer l(1, 1, 64, 300, 3);
  std::vector<float> given(300);
  DiagnoseParams params;
  params.scorers.resize(1);
  params.scorers[0].name = "client";
  const std::vector<int64_t> positions = {50, 90, 99};
  ScoreInput input = l.Input(backend_.get());
  input.query_positions = positions.data();
  // Mean attention of the queries that see a token, in float64; nothing of the 200 that none sees.
  for (int i = 0; i < 300; ++i) given[i] = -1;
  for (int i = 0; i < 100; ++i) {
    double sum = 0, seen = 0;
    for (int q = 0; q < 3; ++q) {
      if (positions[q] < i) continue;
      double all = 0, own = 0;
      for (int64_t j = 0; j <= positions[q]; ++j) {
        double dot = 0;
        for (int d = 0; d < 64; ++d) dot += double(l.Query(q, 0, 0)[d]) * l.Key(0, j)[d];
        all += std::exp(dot / 8);
        if (j == i) own = std::exp(dot / 8);
      }
      sum += own / all;
      ++seen;
    }
    given[i] = static_cast<float>(sum / seen);
  }
  input.given = {given.data()};
  auto heads = Diagnose(params, 1, input);
  ASSERT_TRUE(heads.ok()) << heads.status();
  ASSERT_EQ(heads->at(0).attention_correlation.size(), 1u);
  EXPECT_NEAR(heads->at(0).attention_correlation[0], 1, 1e-6);
  EXPECT_EQ(heads->at(0).attention_tokens, 100);
  const std::vector<int64_t> first = {0};
  input.query_positions = first.data();
  input.num_queries = 1;
  heads = Diagnose(params, 1, input);
  ASSERT_TRUE(heads.ok()) << heads.status();
  EXPECT_TRUE(heads->at(0).attention_correlation.empty());
  EXPECT_EQ(heads->at(0).attention_tokens, 1);
}

// Spearman's correlation of x and y over [begin, end), by counting.
double RankCorrelation(const std::vector<float>& x, const std::vector<float>& y, int begin, int end) {
  const auto rank = [&](const std::vector<float>& of, int i) {
    double below = 0, same = 0;
    for (int j = begin; j < end; ++j) below += of[j] < of[i], same += of[j] == of[i];
    return below + (same - 1) / 2;
  };
  double xy = 0, xx = 0, yy = 0;
  const double middle = (end - begin - 1) / 2.0;
  for (int i = begin; i < end; ++i) {
    const double a = rank(x, i) - middle, b = rank(y, i) - middle;
    xy += a * b, xx += a * a, yy += b * b;
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

// What SnapKV, TOVA, H2O and Expected Attention keep in any case is above all others to them, and no score: their
// windows, the last query's own token, what came after the last query, sinks.
TEST_F(DiagnoseTest, WhatIsAlwaysKeptIsLeftOutOfCorrelations) {
  constexpr int kTokens = 180, kQueries = 40;
  for (const int64_t newest : {kTokens - 1, kTokens - 30}) {
    MadeUpLayer l(2, 2, 64, kTokens, kQueries);
    ScoreInput input = l.Input(backend_.get());
    std::vector<int64_t> positions(kQueries);
    for (int q = 0; q < kQueries; ++q) positions[q] = newest - kQueries + 1 + q;
    if (newest < kTokens - 1) input.query_positions = positions.data();
    DiagnoseParams params;
    const char* names[] = {"keydiff", "snapkv", "tova", "expected_attention", "h2o"};
    for (const char* name : names) params.scorers.emplace_back().name = name;
    params.scorers[1].query_window = 24;
    params.scorers[3].sink = 9;
    const int last = static_cast<int>(newest), window = std::max(last - kQueries + 1, kTokens - 24);
    const int begin[] = {0, 0, 0, 9, 0}, end[] = {kTokens, std::min(window, last + 1), last, kTokens, last + 1};
    auto heads = Diagnose(params, 1, input);
    ASSERT_TRUE(heads.ok()) << heads.status();
    for (int h = 0; h < 2; ++h) {
      std::vector<std::vector<float>> scores;
      for (const ScorerConfig& config : params.scorers) scores.push_back(testing::ScoresOf(config, input)[h]);
      for (int a = 0; a < 5; ++a) {
        for (int b = 0; b < 5; ++b) {
          EXPECT_NEAR(heads->at(h).correlation[a * 5 + b],
                      RankCorrelation(scores[a], scores[b], std::max(begin[a], begin[b]), std::min(end[a], end[b])),
                      1e-9)
              << newest << " " << h << " " << names[a] << " " << names[b];
        }
        EXPECT_NEAR(heads->at(h).attention_correlation[a],
                    RankCorrelation(scores[a], scores[4], begin[a], std::min(end[a], last + 1)), 1e-9)
            << newest << " " << h << " " << names[a];
      }
    }
  }
}

TEST_F(DiagnoseTest, FewOrEqualTokensAndBadInput) {
  MadeUpLayer l(1, 1, 64, 5, 0);
  std::fill(l.keys[0].begin(), l.keys[0].end(), 1.0f);
  const HeadDiagnosis d = One(&l);
  EXPECT_EQ(d.two_nn, 0);
  EXPECT_EQ(d.mle, 0);
  EXPECT_EQ(d.dilution, 0);
  MadeUpLayer none(1, 1, 64, 0, 0);
  EXPECT_EQ(One(&none).tokens, 0);
  DiagnoseParams params;
  params.scorers.resize(17);
  EXPECT_TRUE(absl::StrContains(Diagnose(params, 1, l.Input(backend_.get())).status().message(), "scorers: 17 given"));
  params.scorers.resize(1);
  params.window = 0;
  EXPECT_TRUE(absl::StrContains(Diagnose(params, 1, l.Input(backend_.get())).status().message(), "window: 0"));
  params.window = (1 << 24) + 1;
  EXPECT_TRUE(absl::StartsWith(Diagnose(params, 1, l.Input(backend_.get())).status().message(), "window: 16777217"));
  params.window = 64;
  params.scorers[0].name = "tova";
  EXPECT_TRUE(absl::StrContains(Diagnose(params, 1, l.Input(backend_.get())).status().message(), "queries: tova"));
}

}  // namespace
}  // namespace seine
