// Live quality on recorded queries of a real model: what a monitor finds is what the bench finds offline, and the
// prediction tells a model's own profile from another's.
#include <gtest/gtest.h>

#include <memory>

#include "bench/measures/recall.h"
#include "bench/methods/seine_sequence.h"
#include "index/counts/counts.h"
#include "index/quality/monitor.h"
#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

constexpr int kLayer = 15, kQueries = 12;

std::unique_ptr<Dataset> Trace() {
  DatasetOptions o;
  o.trace = SEINE_TRACE;
  o.layers = {kLayer};
  o.num_queries = kQueries;
  auto dataset = Dataset::Open(o);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return *std::move(dataset);
}

// Each layer has the moments of the one `shift` further on.
std::shared_ptr<const Profile> ShiftedProfile(int shift) {
  auto profile = ReadProfile(SEINE_TEST_PROFILE);
  EXPECT_TRUE(profile.ok()) << profile.status();
  std::rotate(profile->layers.begin(), profile->layers.begin() + shift, profile->layers.end());
  return std::make_shared<const Profile>(*std::move(profile));
}

SeineOptions Balanced(const DatasetInfo& info, std::shared_ptr<const Profile> profile, double beta) {
  SeineOptions s;
  s.name = "live";
  s.search.scope = Scope::kPerQHead;
  s.search.beta = beta;
  s.codec = "balanced";
  s.profile = std::move(profile);
  s.rope = *ParseRope(info.rope_json, info.rope_style, info.head_dim);
  s.data = info;
  s.head_dim = info.head_dim;
  s.dtype = info.dtype;
  s.betas = {beta};
  return s;
}

// All recorded queries asked of an index that a monitor watches, each KV head an index.
QualityReading AskLive(const Dataset& dataset, SeineOptions options, Backend* backend) {
  const DatasetInfo& info = dataset.info();
  QualityReading all;
  options.group = info.group;
  for (int h = 0; h < info.num_heads(); ++h) {
    const Head head = *dataset.Load(h);
    const auto counts = std::make_shared<Counts>();
    const auto monitor = std::make_shared<QualityMonitor>(QualityOptions{1, 1});
    const IndexConfig config = *ConfigOf(options, head, info.query_start);
    const auto index = *Index::Create(config, backend, nullptr, counts, monitor);
    const SequenceHandle seq = *index->CreateSequence("");
    EXPECT_TRUE(index->Append(seq, 0, 0, {head.tokens.data(), head.num_tokens, head.tokens.size()}, {}).ok());
    for (int64_t p = 0; p < info.num_positions; ++p) {
      const float* queries = head.queries.data() + p * info.group * info.head_dim;
      EXPECT_TRUE(index->Retrieve({{seq, 0, queries}}, config.search)->at(0).status.ok());
      monitor->WaitUntilIdle();
    }
    all += index->counts()->quality();
  }
  EXPECT_EQ(all.samples, info.num_heads() * info.num_positions);
  return all;
}

double Mean(const RatioReading& reading) { return reading.sum() / static_cast<double>(reading.count()); }

TEST(LiveQualityTest, RecallIsTheBenchsAndWhatTheProfilePredicts) {
  const auto dataset = Trace();
  const auto backend = MakeCpuBackend(1);
  const auto profile = ShiftedProfile(0);
  for (const double beta : {.01, .02, .05}) {
    SCOPED_TRACE(beta);
    const SeineOptions options = Balanced(dataset->info(), profile, beta);
    RecallOptions recall;
    recall.truth = {options.head_dim,
                    1,
                    100,
                    Scope::kPerQHead,
                    GqaReduce::kSoftmaxSum,
                    1 / std::sqrt(static_cast<float>(options.head_dim))};
    recall.cold = false;
    recall.timed_asks = 1;
    std::vector<std::unique_ptr<Method>> methods;
    methods.push_back(MakeSeineMethod(options, backend.get()));
    MemoryProbe probe(backend.get());
    const auto rows = MeasureRecall(*dataset, recall, methods, &probe);
    ASSERT_TRUE(rows.ok()) << rows.status();
    const QualityReading live = AskLive(*dataset, options, backend.get());
    std::printf("beta %.2f: offline %.4f live %.4f predicted %.4f mass %.4f\n", beta, rows->at(0).recall_at_k,
                Mean(live.recall), Mean(live.predicted_recall), Mean(live.attention_mass));
    EXPECT_NEAR(Mean(live.recall), rows->at(0).recall_at_k, .01);
    EXPECT_NEAR(Mean(live.predicted_recall), Mean(live.recall), .03);
  }
}

TEST(LiveQualityTest, AnotherModelsProfilePromisesMoreThanIsFound) {
  const auto dataset = Trace();
  const auto backend = MakeCpuBackend(1);
  for (const double beta : {.01, .02, .05}) {
    for (const int shift : {1, 7, 15, 22}) {
      const QualityReading live =
          AskLive(*dataset, Balanced(dataset->info(), ShiftedProfile(shift), beta), backend.get());
      std::printf("beta %.2f shift %d: live %.4f predicted %.4f\n", beta, shift, Mean(live.recall),
                  Mean(live.predicted_recall));
    }
  }
}

}  // namespace
}  // namespace seine::bench
