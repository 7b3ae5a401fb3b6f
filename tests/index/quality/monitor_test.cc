// Live quality: what is compared is right under every selector, what is not is counted, and the budget holds.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <set>
#include <thread>

#include "tests/index/quality/live_index.h"
#include "tests/index/synthetic_model.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::BalancedConfig;
using testing::kFilled;
using testing::LiveIndex;
using testing::MadeUpModel;
using testing::Names;
using testing::Queries;
using testing::SmallConfig;

// Recall of one answer against the exact one of the same parameters, summed over sets.
double RecallSum(const Index& index, const SequenceHandle& seq, const float* queries, SearchParams params,
                 size_t* sets) {
  const ItemAnswer answer = index.Retrieve({{seq, 0, queries}}, params)->at(0);
  params.method = Method::kExact;
  const ItemAnswer exact = index.Retrieve({{seq, 0, queries}}, params)->at(0);
  double sum = 0;
  for (size_t s = 0; s < exact.positions.size(); ++s) {
    const std::set<int32_t> found(answer.positions[s].begin(), answer.positions[s].end());
    double both = 0;
    for (const int32_t p : exact.positions[s]) both += static_cast<double>(found.count(p));
    sum += both / static_cast<double>(exact.positions[s].size());
  }
  *sets += exact.positions.size();
  return sum;
}

SearchParams Selector(Scope scope, GqaReduce reduce, float mass_p = 0) {
  SearchParams params;
  params.top_k = mass_p > 0 ? 200 : 20;
  params.candidate_fraction = .05;
  params.rescore_k = 20;
  params.scope = scope;
  params.gqa_reduce = reduce;
  params.mass_p = mass_p;
  return params;
}

const std::vector<SearchParams>& Selectors() {
  static const auto* const kAll = new std::vector<SearchParams>{
      Selector(Scope::kPerQHead, GqaReduce::kMean),        Selector(Scope::kPerQHead, GqaReduce::kSoftmaxSum, .5f),
      Selector(Scope::kPerKvHead, GqaReduce::kMean),       Selector(Scope::kPerKvHead, GqaReduce::kMax),
      Selector(Scope::kPerKvHead, GqaReduce::kSoftmaxSum), Selector(Scope::kPerKvHead, GqaReduce::kMax, .5f)};
  return *kAll;
}

void ExpectRightRecall(LiveIndex* live, const SequenceHandle& seq) {
  double lost = 0;
  for (size_t i = 0; i < Selectors().size(); ++i) {
    SCOPED_TRACE(i);
    const QualityReading before = live->Compared();
    double sum = 0;
    size_t sets = 0;
    for (uint32_t q = 0; q < 4; ++q) {
      const std::vector<float> queries = Queries(live->index->config().geometry, q);
      sum += RecallSum(*live->index, seq, queries.data(), Selectors()[i], &sets);
    }
    const QualityReading now = live->Compared();
    EXPECT_EQ(now.samples - before.samples, 4) << "an exact search is no sample";
    EXPECT_EQ(now.recall.count() - before.recall.count(), static_cast<int64_t>(sets));
    EXPECT_NEAR(now.recall.sum() - before.recall.sum(), sum, 1e-4);
    if (Selectors()[i].mass_p == 0) lost += static_cast<double>(sets) - sum;
  }
  EXPECT_GT(lost, 1) << "it would show nothing";
  EXPECT_EQ(live->dropped(), 0);
}

TEST(QualityMonitorTest, RecallIsThatOfTheExactAnswer) {
  LiveIndex live(SmallConfig());
  ExpectRightRecall(&live, live.Filled(kFilled));
}

TEST(QualityMonitorTest, RecallOfHeadsThatHoldDifferentTokens) {
  LiveIndex live(SmallConfig());
  const SequenceHandle seq = live.Filled(kFilled);
  EvictParams evict;
  evict.scorer.name = "keydiff";
  evict.budget.tokens = 600;
  ASSERT_TRUE(live.index->Evict(seq, 0, evict, {}).ok());
  ExpectRightRecall(&live, seq);
}

TEST(QualityMonitorTest, RecallOfLowRankKeysIsOfWhatTheyRead) {
  IndexConfig config = SmallConfig(KvStore::kKeysValues);
  config.subspace.emplace();
  config.subspace->key_rank = config.subspace->value_rank = 32;
  LiveIndex live(config);
  ExpectRightRecall(&live, live.Filled(kFilled));
}

// The softmax on what is attended is what the log-sum-exps of both attentions say.
TEST(QualityMonitorTest, AttentionMassIsThatOfTheLogSumExps) {
  LiveIndex live(SmallConfig(KvStore::kKeysValues));
  const SequenceHandle seq = live.Filled(kFilled);
  SearchParams params = Selector(Scope::kPerQHead, GqaReduce::kMean);
  AttentionParams attention;
  attention.tail = false;
  attention.scale = .5f;
  const std::vector<float> queries = Queries(live.index->config().geometry, 1);
  const AttendAnswer some = live.index->Attend({{seq, 1, queries.data()}}, params, attention)->at(0);
  const QualityReading compared = live.Compared();
  params.method = Method::kExact;
  params.top_k = kFilled;
  const AttendAnswer all = live.index->Attend({{seq, 1, queries.data()}}, params, attention)->at(0);
  double mass = 0;
  for (size_t h = 0; h < all.log_sum_exp.size(); ++h) {
    mass += std::exp(static_cast<double>(some.log_sum_exp[h] - all.log_sum_exp[h]));
  }
  EXPECT_EQ(compared.attention_mass.count(), 4);
  EXPECT_NEAR(compared.attention_mass.sum(), mass, 1e-3);
  EXPECT_LT(mass, 3.9);
}

// What an alert compares: the means of what was found and of what the profile predicts, here after 63 steps, before
// the index learns what it is asked.
TEST(QualityMonitorTest, AnotherModelsProfilePromisesMoreThanIsFound) {
  const Geometry g = {.num_layers = 1, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64, .dtype = DType::kFloat16};
  const MadeUpModel model(g), stranger(g, 900, 8);
  const std::string rows = model.KeyRows(0, 4096);
  const auto shortfall = [&](const MadeUpModel& measured) {
    IndexConfig config = BalancedConfig(model, measured.Measure());
    config.codec.horizon = 16384;
    LiveIndex live(config);
    const SequenceHandle seq = *live.index->CreateSequence("");
    EXPECT_TRUE(live.index->Append(seq, 0, 0, testing::View(g, rows), {}).ok());
    SearchParams params = Selector(Scope::kPerQHead, GqaReduce::kMean);
    params.candidate_fraction = .01;
    params.rescore_k = 100;
    for (int step = 0; step < 63; ++step) {
      const std::vector<float> queries = model.Query(4095, step + 1);
      EXPECT_TRUE(live.index->Retrieve({{seq, 0, queries.data()}}, params)->at(0).status.ok());
      live.monitor->WaitUntilIdle();
    }
    const QualityReading compared = live.Compared();
    EXPECT_EQ(compared.samples, 63);
    EXPECT_EQ(compared.predicted_recall.count(), compared.recall.count());
    const double found = compared.recall.sum() / static_cast<double>(compared.recall.count());
    const double predicted = compared.predicted_recall.sum() / static_cast<double>(compared.predicted_recall.count());
    ::testing::Test::RecordProperty("found", std::to_string(found));
    ::testing::Test::RecordProperty("predicted", std::to_string(predicted));
    return predicted - found;
  };
  constexpr double kTolerated = .05;  // deploy/prometheus/alerts.yml, SeineRecallBelowPrediction
  EXPECT_LT(shortfall(model), kTolerated / 2);
  EXPECT_GT(shortfall(stranger), kTolerated);
}

TEST(QualityMonitorTest, GrownSequencesAreComparedAtTheirLengthThen) {
  LiveIndex live(SmallConfig());
  const SequenceHandle seq = live.Filled(kFilled);
  const std::vector<float> queries = Queries(live.index->config().geometry, 3);
  const SearchParams params = Selector(Scope::kPerQHead, GqaReduce::kMean);
  size_t sets = 0;
  const double recall = RecallSum(*live.index, seq, queries.data(), params, &sets);
  const double before = live.Compared().recall.sum();
  EXPECT_NEAR(before, recall, 1e-4);
  live.monitor->Hold(true);
  ASSERT_TRUE(live.index->Retrieve({{seq, 0, queries.data()}}, params).ok());
  ASSERT_TRUE(AppendNames(live.index.get(), seq, 0, kFilled, Names(kFilled + 1, 2000)).ok());
  live.monitor->Hold(false);
  EXPECT_NEAR(live.Compared().recall.sum() - before, recall, 1e-4);
  EXPECT_EQ(live.dropped(), 0);
}

TEST(QualityMonitorTest, WhatIsCutOrDeletedIsDroppedAndCounted) {
  LiveIndex live(SmallConfig());
  const SequenceHandle cut = live.Filled(kFilled), evicted = live.Filled(kFilled), deleted = live.Filled(kFilled);
  const std::vector<float> queries = Queries(live.index->config().geometry, 3);
  live.monitor->Hold(true);
  for (const SequenceHandle& seq : {cut, evicted, deleted}) {
    ASSERT_TRUE(live.index->Retrieve({{seq, 0, queries.data()}}, live.index->config().search).ok());
  }
  ASSERT_TRUE(live.index->Truncate(cut, 600).ok());
  EvictParams evict;
  evict.scorer.name = "keydiff";
  evict.budget.tokens = 500;
  ASSERT_TRUE(live.index->Evict(evicted, 0, evict, {}).ok());
  ASSERT_TRUE(live.index->DeleteSequence(deleted).ok());
  live.monitor->Hold(false);
  EXPECT_EQ(live.Compared().samples, 0);
  EXPECT_EQ(live.dropped(QualityDrop::kChanged), 2);
  EXPECT_EQ(live.dropped(QualityDrop::kGone), 1);
}

TEST(QualityMonitorTest, MoreThanMayWaitIsDroppedAndCounted) {
  constexpr int kMore = 9;
  LiveIndex live(SmallConfig());
  const SequenceHandle seq = live.Filled(kFilled);
  const std::vector<float> queries = Queries(live.index->config().geometry, 3);
  live.monitor->Hold(true);
  for (size_t i = 0; i < QualityMonitor::kMostWaiting + kMore; ++i) {
    ASSERT_TRUE(live.index->Retrieve({{seq, 0, queries.data()}}, live.index->config().search).ok());
  }
  EXPECT_EQ(live.dropped(QualityDrop::kBudget), kMore);
  live.index.reset();  // with it goes what waits
  EXPECT_EQ(live.dropped(QualityDrop::kGone), static_cast<int64_t>(QualityMonitor::kMostWaiting));
}

TEST(QualityMonitorTest, WhatHasNothingToCompareIsNoSample) {
  const std::vector<float> queries = Queries(SmallConfig().geometry, 3);
  LiveIndex dense(SmallConfig()), without_keys(SmallConfig(KvStore::kNone)), off(SmallConfig(), {0, 1});
  const SequenceHandle short_one = dense.Filled(60), keyless = without_keys.Filled(kFilled),
                       unseen = off.Filled(kFilled);
  const std::pair<LiveIndex*, SequenceHandle> all[] = {{&dense, short_one}, {&without_keys, keyless}, {&off, unseen}};
  for (const auto& [live, seq] : all) {
    ASSERT_TRUE(live->index->Retrieve({{seq, 0, queries.data()}}, live->index->config().search).ok());
    EXPECT_EQ(live->Compared().samples + live->dropped(), 0);
  }
}

TEST(QualityMonitorTest, TheShareIsWhatIsChosen) {
  constexpr int kSteps = 2000;
  LiveIndex live(SmallConfig(), {.05, 1});
  const SequenceHandle seq = live.Filled(200);
  const std::vector<float> queries = Queries(live.index->config().geometry, 3);
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_TRUE(live.index->Retrieve({{seq, 0, queries.data()}}, live.index->config().search).ok());
  }
  const auto chosen = static_cast<double>(live.Compared().samples + live.dropped());
  EXPECT_NEAR(chosen, kSteps * .05, 6 * std::sqrt(kSteps * .05));
}

TEST(QualityMonitorTest, ComparisonsTakeTheirShareOfACore) {
  LiveIndex live(SmallConfig(), {1, .02});
  const SequenceHandle seq = live.Filled(8000);
  const std::vector<float> queries = Queries(live.index->config().geometry, 3);
  const auto began = std::chrono::steady_clock::now();
  // So long, and so often that more must be chosen than may wait, however slow the machine is.
  int steps = 0;
  while (std::chrono::steady_clock::now() - began < std::chrono::milliseconds(400) || steps < 1000) {
    ++steps;
    ASSERT_TRUE(live.index->Retrieve({{seq, 0, queries.data()}}, live.index->config().search).ok());
  }
  const auto elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  EXPECT_GT(live.dropped(QualityDrop::kBudget), 0);
  live.index.reset();
  const double busy = static_cast<double>(live.counts->quality_busy_ns()) * 1e-9;
  EXPECT_GT(busy, 0);
  EXPECT_LT(busy, .02 * elapsed + .02);  // and one run
}

// Under ThreadSanitizer no race may show, and every item is compared or counted as dropped.
TEST(QualityMonitorTest, WritersRaceWithComparisons) {
  constexpr int kThreads = 3, kSteps = 40;
  auto live = std::make_unique<LiveIndex>(SmallConfig(KvStore::kKeysValues));
  Index* const index = live->index.get();
  std::atomic<int> asked{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const std::string id = "t" + std::to_string(t);
      const std::vector<float> queries = Queries(index->config().geometry, t);
      for (int step = 0; step < kSteps; ++step) {
        const SequenceHandle seq = *index->CreateSequence(id);
        wrong += !AppendNames(index, seq, 0, 0, Names(t, 300)).ok();
        const std::vector<RetrieveItem> items = {{seq, 0, queries.data()}};
        wrong += !index->Retrieve(items, index->config().search)->at(0).status.ok();
        wrong += !index->Attend(items, index->config().search, AttentionParams())->at(0).status.ok();
        wrong += !AppendNames(index, seq, 0, 300, Names(1000 + t, 100)).ok();
        wrong += !index->Retrieve(items, index->config().search)->at(0).status.ok();
        asked += 3;
        if (step % 3 == 0) wrong += !index->Truncate(seq, 250).ok();
        wrong += !index->DeleteSequence(seq).ok();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(live->Compared().samples + live->dropped(), asked);
  live->monitor->Hold(true);
  const SequenceHandle seq = live->Filled(300);
  const std::vector<float> queries = Queries(index->config().geometry, 5);
  ASSERT_TRUE(index->Retrieve({{seq, 0, queries.data()}}, index->config().search).ok());
  live->monitor->Hold(false);
  live.reset();  // while it may be at work
}

}  // namespace
}  // namespace seine
