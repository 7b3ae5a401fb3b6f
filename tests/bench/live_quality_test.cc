// Live quality on recorded queries of a real model: what a monitor finds is what the bench finds offline, and the
// prediction tells a model's own profile from another's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "bench/measures/recall.h"
#include "bench/methods/seine_sequence.h"
#include "index/counts/counts.h"
#include "index/quality/monitor.h"
#include "profile/moments.h"
#include "profile/profile.h"
#include "profile/rope.h"

namespace seine::bench {
namespace {

constexpr int kLiveLayer = 15, kLiveQueries = 12;

std::unique_ptr<Dataset> RecordedLayer() {
  DatasetOptions o;
  o.trace = SEINE_TRACE;
  o.layers = {kLiveLayer};
  o.num_queries = kLiveQueries;
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

SeineOptions Balanced(const DatasetInfo& info, std::shared_ptr<const Profile> profile) {
  SeineOptions s;
  s.name = "live";
  s.search.scope = Scope::kPerQHead;
  s.codec = "balanced";
  s.profile = std::move(profile);
  s.rope = *ParseRope(info.rope_json, info.head_dim, info.rope_style, info.num_tokens);
  s.data = info;
  s.head_dim = info.head_dim;
  s.dtype = info.dtype;
  s.betas = {s.search.candidate_fraction = .05};
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

constexpr double kTolerated = .05;  // deploy/prometheus/alerts.yml, SeineRecallBelowPrediction

TEST(LiveQualityTest, RecallIsTheBenchsAndNearWhatTheProfilePredicts) {
  const auto dataset = RecordedLayer();
  const auto backend = MakeCpuBackend(1);
  const SeineOptions options = Balanced(dataset->info(), ShiftedProfile(0));
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
  EXPECT_NEAR(Mean(live.recall), rows->at(0).recall_at_k, .01);
  EXPECT_LT(Mean(live.predicted_recall) - Mean(live.recall), kTolerated);
}

TEST(LiveQualityTest, AnotherModelsProfilePromisesMoreThanIsFound) {
  const auto dataset = RecordedLayer();
  const auto backend = MakeCpuBackend(1);
  for (const int shift : {1, 22}) {
    const QualityReading live = AskLive(*dataset, Balanced(dataset->info(), ShiftedProfile(shift)), backend.get());
    EXPECT_GT(Mean(live.predicted_recall) - Mean(live.recall), kTolerated) << shift;
  }
}

}  // namespace
}  // namespace seine::bench
