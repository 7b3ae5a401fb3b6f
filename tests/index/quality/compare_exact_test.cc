// CompareExact and DescribeStep: figures by layer and KV head, of the queries that a sequence was asked; what they
// refuse; that the first ends.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "kernels/stop.h"
#include "tests/index/quality/live_index.h"

namespace seine {
namespace {

using testing::kFilled;
using testing::LiveIndex;
using testing::Queries;
using testing::SmallConfig;

class CompareExactTest : public ::testing::Test {
 protected:
  CompareExactTest() {
    params_.search.top_k = 20;
    params_.search.rescore_k = 20;
    params_.search.candidate_fraction = .05;
    params_.search.scope = Scope::kPerQHead;
  }
  // Steps 0 to `steps` - 1 of every layer.
  void Ask(const SequenceHandle& seq, int steps) {
    for (int step = 0; step < steps; ++step) {
      const std::vector<float> queries = Rounded(step);
      for (int layer = 0; layer < 2; ++layer) {
        ASSERT_TRUE(index().Retrieve({{seq, layer, queries.data()}}, params_.search).ok());
      }
    }
  }
  // Queries that bfloat16, in which they are kept, holds as they are.
  std::vector<float> Rounded(uint32_t seed) const {
    std::vector<float> queries = Queries(index().config().geometry, seed);
    for (float& x : queries) x = std::round(x * 16) / 16;
    return queries;
  }
  double RecallOfHead(const SequenceHandle& seq, int layer, int kv_head, int steps) const {
    double sum = 0;
    for (int step = 0; step < steps; ++step) {
      const std::vector<float> queries = Rounded(step);
      SearchParams params = params_.search;
      const ItemAnswer answer = index().Retrieve({{seq, layer, queries.data()}}, params)->at(0);
      params.method = Method::kExact;
      const ItemAnswer exact = index().Retrieve({{seq, layer, queries.data()}}, params)->at(0);
      for (int s = 2 * kv_head; s < 2 * kv_head + 2; ++s) {
        const std::set<int32_t> found(answer.positions[s].begin(), answer.positions[s].end());
        for (const int32_t p : exact.positions[s]) sum += static_cast<double>(found.count(p)) / 20;
      }
    }
    return sum / (2 * steps);
  }
  Index& index() const { return *live_.index; }

  LiveIndex live_{SmallConfig(), {0, 1}};
  ComparisonParams params_;
};

TEST_F(CompareExactTest, TellsEachHeadsRecall) {
  const SequenceHandle seq = live_.Filled(kFilled), other = live_.Filled(kFilled);
  Ask(seq, 5);
  const int64_t candidates = index().counts()->totals().candidates, scans = live_.counts->stage(Stage::kScan).count();
  params_.samples = 10;
  const auto report = index().CompareExact({}, params_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->compared, 10);
  EXPECT_EQ(report->dropped, 0);
  EXPECT_EQ(index().counts()->totals().candidates, candidates) << "nothing is counted";
  EXPECT_EQ(live_.counts->stage(Stage::kScan).count(), scans);
  ASSERT_EQ(report->heads.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const HeadComparison& head = report->heads[i];
    EXPECT_EQ(head.layer, i / 2);
    EXPECT_EQ(head.kv_head, i % 2);
    EXPECT_EQ(head.sets, 10);
    EXPECT_NEAR(head.recall, RecallOfHead(seq, head.layer, head.kv_head, 5), 1e-9);
    EXPECT_LT(head.recall, .99);
    EXPECT_LE(head.least_recall, head.recall);
    EXPECT_GT(head.attention_mass, 0);
    EXPECT_LE(head.attention_mass, 1 + 1e-6);
    EXPECT_FALSE(head.predicted_recall) << "rsq promises nothing";
  }
}

TEST_F(CompareExactTest, SamplesAreSpreadOverWhatWasAsked) {
  const SequenceHandle a = live_.Filled(kFilled), b = live_.Filled(kFilled);
  Ask(a, 8);
  Ask(b, 2);
  const auto compared = [&](int samples, std::vector<int> layers, const std::vector<SequenceHandle>& of) {
    params_.samples = samples;
    params_.layers = std::move(layers);
    const auto report = index().CompareExact(of, params_);
    EXPECT_TRUE(report.ok()) << report.status();
    return std::pair(report->compared, report->heads.size());
  };
  EXPECT_EQ(compared(4, {}, {}), std::pair(int64_t{4}, size_t{4}));
  EXPECT_EQ(compared(2, {}, {}).first, 2);                                   // not every layer's turn comes
  EXPECT_EQ(compared(1000, {}, {}), std::pair(int64_t{20}, size_t{4}));      // all there is
  EXPECT_EQ(compared(1000, {1, 1}, {b}), std::pair(int64_t{2}, size_t{2}));  // a layer named twice is one
  EXPECT_EQ(compared(1000, {0}, {a, b}), std::pair(int64_t{10}, size_t{2}));
}

TEST_F(CompareExactTest, RefusesWhatCannotBeCompared) {
  const SequenceHandle seq = live_.Filled(kFilled);
  const auto status = [&](const ComparisonParams& params, const std::vector<SequenceHandle>& of = {}) {
    return index().CompareExact(of, params).status();
  };
  EXPECT_EQ(status(params_).code(), absl::StatusCode::kFailedPrecondition) << "nothing was asked";
  Ask(seq, 1);
  EXPECT_TRUE(status(params_).ok());
  EXPECT_EQ(status(params_, {{"nobody", 0}}).code(), absl::StatusCode::kNotFound);
  const auto wrong = [&](auto spoil) {
    ComparisonParams params = params_;
    spoil(&params);
    return std::string(status(params).message());
  };
  EXPECT_EQ(wrong([](auto* p) { p->samples = 0; }), "samples: 0 is not in [1, 10000]");
  EXPECT_EQ(wrong([](auto* p) { p->samples = 10'001; }), "samples: 10001 is not in [1, 10000]");
  EXPECT_EQ(wrong([](auto* p) { p->layers = {0, 2}; }), "layers[1]: 2 is not in [0, 2)");
  EXPECT_EQ(wrong([](auto* p) { p->search.method = Method::kExact; }), "exact: is what the answers are compared with");
  EXPECT_NE(wrong([](auto* p) { p->search.top_k = 0; }), "");
  LiveIndex without_keys(SmallConfig(KvStore::kNone));
  EXPECT_EQ(without_keys.index->CompareExact({}, params_).status().code(), absl::StatusCode::kFailedPrecondition);
}

// Mean over the group of the softmax of a KV head's queries over all its stored keys, in float64.
std::vector<double> ExactShares(const Index& index, const SequenceHandle& seq, int layer, int kv_head,
                                const std::vector<float>& queries, int64_t tokens) {
  const Geometry& g = index.config().geometry;
  std::vector<int32_t> all(tokens);
  std::iota(all.begin(), all.end(), 0);
  std::string keys;
  EXPECT_TRUE(index.Gather(seq, layer, kv_head, all, &keys, nullptr).ok());
  const auto* const halves = reinterpret_cast<const uint16_t*>(keys.data());
  std::vector<double> shares(tokens, 0.0);
  for (int q = 0; q < g.group(); ++q) {
    const float* const query = queries.data() + (int64_t{kv_head} * g.group() + q) * g.head_dim;
    std::vector<double> weights(tokens);
    double sum = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      double dot = 0;
      for (int d = 0; d < g.head_dim; ++d) dot += double{query[d]} * double{HalfToFloat(halves[t * g.head_dim + d])};
      sum += weights[t] = std::exp(dot / std::sqrt(g.head_dim));
    }
    for (int64_t t = 0; t < tokens; ++t) shares[t] += weights[t] / sum / g.group();
  }
  return shares;
}

TEST_F(CompareExactTest, TheLatestStepIsDescribed) {
  const SequenceHandle seq = live_.Filled(kFilled);
  const auto code = [&](int layer) { return index().DescribeStep(seq, layer).status().code(); };
  EXPECT_EQ(code(0), absl::StatusCode::kFailedPrecondition) << "nothing was asked";
  EXPECT_EQ(code(2), absl::StatusCode::kInvalidArgument);
  Ask(seq, 3);
  const std::vector<float> queries = Rounded(2);
  const SearchParams usual = index().config().search;
  const ItemAnswer answer = index().Retrieve({{seq, 1, queries.data()}}, usual)->at(0);
  const int64_t candidates = index().counts()->totals().candidates;
  const auto step = index().DescribeStep(seq, 1);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(index().counts()->totals().candidates, candidates) << "nothing is counted";
  EXPECT_EQ(step->num_tokens, kFilled);
  EXPECT_EQ(step->position, kFilled - 1);
  ASSERT_EQ(step->sets.size(), 2u);
  for (int h = 0; h < 2; ++h) {
    const StepSet& set = step->sets[h];
    EXPECT_EQ(set.kv_head, h);
    EXPECT_EQ(set.q_head, 2 * h);
    EXPECT_EQ(set.positions, answer.positions[h]);
    const std::vector<double> shares = ExactShares(index(), seq, 1, h, queries, kFilled);
    ASSERT_EQ(set.weights.size(), set.positions.size());
    double found = 0;
    for (size_t i = 0; i < set.weights.size(); ++i) {
      EXPECT_NEAR(set.weights[i], shares[set.positions[i]], 1e-5);
      found += shares[set.positions[i]];
    }
    EXPECT_NEAR(set.found, found, 1e-5);
    EXPECT_NEAR(set.sink, std::accumulate(shares.begin(), shares.begin() + answer.zone_begin, 0.0), 1e-5);
    EXPECT_NEAR(set.local, std::accumulate(shares.begin() + answer.zone_end, shares.end(), 0.0), 1e-5);
    EXPECT_NEAR(set.sink + set.local + set.found + set.tail, 1, 1e-5);
    EXPECT_GT(set.tail, .01);
    EXPECT_GT(set.recall, .5);
  }
  LiveIndex without_keys(SmallConfig(KvStore::kNone));
  EXPECT_EQ(without_keys.index->DescribeStep(without_keys.Filled(kFilled), 0).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(CompareExactTest, EndsWhereItIsStopped) {
  const SequenceHandle seq = live_.Filled(kFilled);
  Ask(seq, 3);
  const StopToken stopped;
  stopped.Stop();
  const StopScope scope(&stopped);
  EXPECT_EQ(index().CompareExact({}, params_).status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace seine
