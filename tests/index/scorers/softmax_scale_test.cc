// Scorers that compute attention scale logits as the index's retrieval does, or as the call says; in float64.
#include <cmath>
#include <string>

#include "absl/strings/match.h"
#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::MakeIndex;
using testing::Names;
using testing::Queries;
using testing::SmallConfig;
using testing::TestBackend;
using testing::TokenRow;

constexpr int64_t kScaleTokens = 90, kQueries = 20;
constexpr int kScaledDim = 64, kKvHeads = 2, kGroup = 2;

class SoftmaxScale : public ::testing::Test {
 protected:
  SoftmaxScale() {
    const Geometry g = SmallConfig().geometry;
    for (int64_t p = 0; p < kScaleTokens; ++p) {
      const std::string row = TokenRow(g, p);
      const auto* halves = reinterpret_cast<const _Float16*>(row.data());
      keys_.insert(keys_.end(), halves, halves + kKvHeads * kScaledDim);
    }
    for (int64_t q = 0; q < kQueries; ++q) {
      const std::vector<float> one = Queries(g, static_cast<uint32_t>(q));
      queries_.insert(queries_.end(), one.begin(), one.end());
    }
  }

  double Dot(int64_t query, int q_head, int64_t token) const {
    const float* q = queries_.data() + (query * kKvHeads * kGroup + q_head) * kScaledDim;
    const double* k = keys_.data() + (token * kKvHeads + q_head / kGroup) * kScaledDim;
    double sum = 0;
    for (int j = 0; j < kScaledDim; ++j) sum += q[j] * k[j];
    return sum;
  }
  static std::vector<double> Softmax(std::vector<double> logits) {
    double sum = 0;
    for (double& x : logits) sum += x = std::exp(x);
    for (double& x : logits) x /= sum;
    return logits;
  }
  std::vector<double> Attention(int64_t query, int q_head, double scale) const {
    std::vector<double> logits;
    for (int64_t i = 0; i <= kScaleTokens - kQueries + query; ++i) logits.push_back(scale * Dot(query, q_head, i));
    logits = Softmax(logits);
    logits.resize(kScaleTokens);
    return logits;
  }

  // Definitions of the head comments of index/scorers, of one KV head; what they put above all else is left out.
  std::vector<double> Want(const std::string& scorer, int head, double scale) const {
    std::vector<double> want(kScaleTokens);
    if (scorer == "tova") {
      for (int q = 0; q < kKvHeads * kGroup; ++q) {
        const auto weights = Attention(kQueries - 1, q, scale);
        for (int64_t i = 0; i < kScaleTokens; ++i) want[i] += weights[i] / (kKvHeads * kGroup);
      }
      return {want.begin(), want.end() - 1};
    }
    for (int q = head * kGroup; q < (head + 1) * kGroup && scorer != "expected_attention"; ++q) {
      const int64_t first = scorer == "snapkv" ? kQueries - 8 : 0;
      for (int64_t n = first; n < kQueries; ++n) {
        const auto weights = Attention(n, q, scale);
        for (int64_t i = 0; i < kScaleTokens; ++i) {
          const int64_t see = kQueries - std::max<int64_t>(0, i - (kScaleTokens - kQueries));
          want[i] += weights[i] / kGroup / static_cast<double>(scorer == "snapkv" ? 8 : see);
        }
      }
    }
    if (scorer == "snapkv") want.resize(kScaleTokens - 8);
    if (scorer != "expected_attention") return want;
    for (int q = head * kGroup; q < (head + 1) * kGroup; ++q) {
      std::vector<double> logits;
      for (int64_t i = 4; i < kScaleTokens; ++i) {  // <k, mu> s + s^2 / 2 times the variance of <k, q>
        double mean = 0, square = 0;
        for (int64_t n = 0; n < kQueries; ++n) {
          mean += Dot(n, q, i) / kQueries;
          square += Dot(n, q, i) * Dot(n, q, i) / kQueries;
        }
        logits.push_back(scale * mean + scale * scale / 2 * (square - mean * mean));
      }
      logits = Softmax(logits);
      for (int64_t i = 4; i < kScaleTokens; ++i) want[i] += logits[i - 4] / kGroup;
    }
    return want;
  }

  void Expect(const Index& index, const SequenceHandle& sequence, const ScorerInputs& given, double scale) {
    for (const char* name : {"snapkv", "tova", "h2o", "expected_attention"}) {
      ScorerConfig config;
      config.name = name;
      if (config.name == "snapkv") config.query_window = 8, config.kernel = 1;
      if (config.name == "expected_attention") config.value_norms = false;
      const auto scores = index.Score(sequence, 0, config, given);
      ASSERT_TRUE(scores.ok()) << scores.status();
      for (int h = 0; h < kKvHeads; ++h) {
        const std::vector<double> want = Want(name, h, scale);
        for (size_t i = config.name == "expected_attention" ? 4 : 0; i < want.size(); ++i) {
          ASSERT_NEAR(scores->scores[h][i], want[i], 1e-6 + 3e-5 * want[i]) << name << " head " << h << " token " << i;
        }
      }
    }
  }

  ScorerInputs Given() const { return {.queries = queries_.data(), .num_queries = kQueries}; }

  TestBackend backend_;
  std::vector<double> keys_;    // [tokens, KV heads, dim]
  std::vector<float> queries_;  // [queries, query heads, dim]
};

TEST_F(SoftmaxScale, IsTheIndexs) {
  for (const float scale : {0.0f, .125f, .03f, .4f}) {
    SCOPED_TRACE(scale);
    IndexConfig config = SmallConfig();
    config.search.softmax_scale = scale;
    const auto index = MakeIndex(config, &backend_);
    const SequenceHandle sequence = *index->CreateSequence("");
    ASSERT_TRUE(AppendNames(index.get(), sequence, 0, 0, Names(0, kScaleTokens)).ok());
    Expect(*index, sequence, Given(), scale == 0 ? .125 : scale);
  }
}

TEST_F(SoftmaxScale, IsTheCallsWhereItStatesOne) {
  IndexConfig config = SmallConfig();
  config.search.softmax_scale = .4f;
  const auto index = MakeIndex(config, &backend_);
  const SequenceHandle sequence = *index->CreateSequence("");
  ASSERT_TRUE(AppendNames(index.get(), sequence, 0, 0, Names(0, kScaleTokens)).ok());
  ScorerInputs given = Given();
  given.softmax_scale = .05f;
  Expect(*index, sequence, given, .05f);
  for (const float bad : {-1.0f, INFINITY, NAN}) {
    given.softmax_scale = bad;
    const absl::Status status = index->Score(sequence, 0, {}, given).status();
    EXPECT_TRUE(absl::StrContains(status.message(), "softmax_scale: ")) << status;
  }
}

// Diagnosis ranks attention by the same scale: h2o is it.
TEST_F(SoftmaxScale, IsDiagnosedWith) {
  const auto index = MakeIndex(SmallConfig(), &backend_);
  const SequenceHandle sequence = *index->CreateSequence("");
  ASSERT_TRUE(AppendNames(index.get(), sequence, 0, 0, Names(0, kScaleTokens)).ok());
  DiagnoseParams params;
  params.scorers.resize(1);
  params.scorers[0].name = "client";
  for (const float scale : {0.0f, .01f, .5f}) {
    ScorerInputs given = Given();
    given.softmax_scale = scale;
    std::vector<std::vector<float>> attention;
    for (int h = 0; h < kKvHeads; ++h) {
      const std::vector<double> want = Want("h2o", h, scale == 0 ? .125 : scale);
      attention.emplace_back(want.begin(), want.end());
    }
    given.scores = {attention[0], attention[1]};
    const auto heads = index->Diagnose(sequence, 0, params, given);
    ASSERT_TRUE(heads.ok()) << heads.status();
    for (const HeadDiagnosis& head : *heads) EXPECT_NEAR(head.attention_correlation.at(0), 1, 1e-4) << scale;
  }
}

}  // namespace
}  // namespace seine
