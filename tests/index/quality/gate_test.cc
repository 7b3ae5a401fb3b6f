// An index that watches itself: what the gate finds lost is right, and a layer that loses too much attends exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "tests/index/direct_attention.h"
#include "tests/index/quality/live_index.h"

namespace seine {
namespace {

using testing::Direct;
using testing::Exact;
using testing::LiveIndex;
using testing::Queries;
using testing::SmallConfig;
using testing::UpTo;

constexpr int64_t kWatched = 6000;

IndexConfig WatchedConfig(double gate) {
  IndexConfig config = SmallConfig(KvStore::kKeysValues);
  config.gate = gate;
  return config;
}

// Few candidates, so that something is lost.
SearchParams PoorParams(Scope scope = Scope::kPerQHead) {
  SearchParams params;
  params.top_k = 20;
  params.rescore_k = 20;
  params.candidate_fraction = .02;
  params.scope = scope;
  return params;
}

AttendAnswer AnswerOf(const LiveIndex& live, const SequenceHandle& seq, int layer, const std::vector<float>& queries,
                      const SearchParams& params, const AttentionParams& attention = {}) {
  const auto answers = live.index->Attend({{seq, layer, queries.data()}}, params, attention);
  EXPECT_TRUE(answers.ok()) << answers.status();
  live.monitor->WaitUntilIdle();
  return answers->at(0);
}

// Answers until the layer attends exactly; -1: it never does.
int AnswersUntilExact(const LiveIndex& live, const SequenceHandle& seq, int layer) {
  for (int i = 1; i <= 300; ++i) {
    const auto queries = Queries(live.index->config().geometry, 100 + i);
    if (AnswerOf(live, seq, layer, queries, PoorParams()).path == SearchMode::kGate) return i;
  }
  return -1;
}

double MassOf(const Geometry& g, const std::vector<float>& queries, int q_head, const std::vector<int32_t>& positions,
              double of_all) {
  return positions.empty() ? 0 : std::exp(Direct(g, queries, q_head, positions).log_sum_exp - of_all);
}

TEST(GateTest, WhatIsLostIsTheExactSetsMassLessTheAnswers) {
  LiveIndex live(WatchedConfig(1), {0, 1});
  const Geometry& g = live.index->config().geometry;
  const SequenceHandle seq = live.Filled(kWatched);
  double lost = 0;
  int checks = 0;
  for (int i = 1; i <= 60; ++i) {
    const auto queries = Queries(g, 7 + i);
    const SearchParams params = PoorParams(Scope::kPerQHead);
    AnswerOf(live, seq, 1, queries, params);
    if (i != 3 && i != 12 && i != 48) continue;  // layer 1's
    const int head = checks++ % g.num_kv_heads;
    SearchParams exactly = params;
    exactly.method = Method::kExact;
    const ItemAnswer found = live.index->Retrieve({{seq, 1, queries.data()}}, params)->at(0);
    const ItemAnswer best = live.index->Retrieve({{seq, 1, queries.data()}}, exactly)->at(0);
    EXPECT_EQ(found.positions.size(), best.positions.size());
    for (int q = head * g.group(); q < (head + 1) * g.group(); ++q) {
      const double of_all = Direct(g, queries, q, UpTo(kWatched)).log_sum_exp;
      lost += (MassOf(g, queries, q, best.positions[q], of_all) - MassOf(g, queries, q, found.positions[q], of_all)) /
              g.group();
    }
  }
  const IndexStats stats = live.index->stats();
  EXPECT_EQ(stats.gate_checks, 3);
  EXPECT_GT(lost, 0);
  EXPECT_NEAR(stats.gate_lost, lost, 1e-5);
  EXPECT_TRUE(stats.gate_layers.empty());
  EXPECT_EQ(live.Compared().samples, 0);  // live quality counts what it samples by chance
}

TEST(GateTest, ALayerThatLosesTooMuchAttendsExactly) {
  std::mutex mutex;
  std::vector<std::tuple<std::string, int, double>> told;
  LiveIndex live(WatchedConfig(1e-9), {0, 1}, [&](const IndexConfig& index, int layer, double lost) {
    const std::lock_guard<std::mutex> lock(mutex);
    told.emplace_back(index.name, layer, lost);
  });
  const Geometry& g = live.index->config().geometry;
  const SequenceHandle seq = live.Filled(kWatched);
  const int until = AnswersUntilExact(live, seq, 1);
  EXPECT_GE(until, 13);  // two checks, at least
  EXPECT_LE(until, 193);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(std::get<0>(told[0]), "test");
  EXPECT_EQ(std::get<1>(told[0]), 1);
  EXPECT_GT(std::get<2>(told[0]), 1e-9);
  // It is exact whatever is asked; its sequences are alike.
  const SequenceHandle other = live.Filled(kWatched - 133, "other");
  for (const auto& [of, tokens] : {std::pair{seq, kWatched}, {other, kWatched - 133}}) {
    for (const Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
      const auto queries = Queries(g, 4321);
      const AttendAnswer answer = AnswerOf(live, of, 1, queries, PoorParams(scope), {.softcap = 3});
      EXPECT_EQ(answer.path, SearchMode::kGate);
      EXPECT_EQ(answer.num_tokens, tokens);
      EXPECT_EQ(answer.attended_tokens, tokens * g.num_q_heads);
      EXPECT_EQ(answer.prompt_tokens, 0);
      for (int q = 0; q < g.num_q_heads; ++q) {
        const Exact exact = Direct(g, queries, q, UpTo(tokens), 1, 0, 3);
        EXPECT_NEAR(answer.log_sum_exp[q], exact.log_sum_exp, 1e-4);
        for (int d = 0; d < g.head_dim; ++d) ASSERT_NEAR(answer.output[q * g.head_dim + d], exact.output[d], 1e-4);
      }
    }
  }
  EXPECT_NE(AnswerOf(live, seq, 0, Queries(g, 1), PoorParams()).path, SearchMode::kGate);  // the other layer
  const IndexStats stats = live.index->stats();
  EXPECT_EQ(stats.gate_answers, 1 + 4);
  ASSERT_EQ(stats.gate_layers.size(), 1u);
  EXPECT_EQ(stats.gate_layers[0].first, 1);
  EXPECT_EQ(stats.gate_layers[0].second, std::get<2>(told[0]));
}

TEST(GateTest, WhoAsksForSetsOrScoresGetsThem) {
  LiveIndex live(WatchedConfig(1e-9), {0, 1});
  const Geometry& g = live.index->config().geometry;
  const SequenceHandle seq = live.Filled(kWatched);
  ASSERT_GT(AnswersUntilExact(live, seq, 0), 0);
  const auto queries = Queries(g, 4);
  EXPECT_EQ(live.index->Retrieve({{seq, 0, queries.data()}}, PoorParams())->at(0).path, SearchMode::kIndex);
  const AttendAnswer with = AnswerOf(live, seq, 0, queries, PoorParams(), {.with_positions = true});
  EXPECT_EQ(with.path, SearchMode::kIndex);
  EXPECT_FALSE(with.selected.positions[0].empty());
  SearchParams exact = PoorParams();
  exact.method = Method::kExact;
  EXPECT_EQ(AnswerOf(live, seq, 0, queries, exact).path, SearchMode::kExact);
}

TEST(GateTest, WhatIsNotAttendedWholeIsNotWatched) {
  LiveIndex live(WatchedConfig(1e-9), {0, 1});
  const SequenceHandle seq = live.Filled(kWatched);
  SearchParams fewer = PoorParams();
  fewer.candidates = 300;
  for (int i = 0; i < 150; ++i) {
    const auto queries = Queries(live.index->config().geometry, i);
    ASSERT_TRUE(live.index->Retrieve({{seq, 0, queries.data()}}, PoorParams()).ok());
    AnswerOf(live, seq, 0, queries, fewer);
    AnswerOf(live, seq, 0, queries, PoorParams(), {.with_positions = true});
  }
  EXPECT_EQ(live.index->stats().gate_checks, 0);
}

TEST(GateTest, ShortSequencesStayDense) {
  LiveIndex live(WatchedConfig(1e-9), {0, 1});
  ASSERT_GT(AnswersUntilExact(live, live.Filled(kWatched), 0), 0);
  const SequenceHandle empty = *live.index->CreateSequence("empty");
  const auto queries = Queries(live.index->config().geometry, 3);
  const AttendAnswer answer = AnswerOf(live, empty, 0, queries, PoorParams());
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.path, SearchMode::kDense);
}

TEST(GateTest, ASoftCapBendsWhatIsLost) {
  double lost[2];
  for (const float cap : {0.0f, .1f}) {
    LiveIndex live(WatchedConfig(1), {0, 1});
    const SequenceHandle seq = live.Filled(kWatched);
    for (int i = 0; i < 40; ++i) {
      AnswerOf(live, seq, 0, Queries(live.index->config().geometry, i), PoorParams(), {.softcap = cap});
    }
    lost[cap > 0] = live.index->stats().gate_lost;
  }
  EXPECT_GT(lost[0], 2 * lost[1]);  // all weigh nearly the same under it
}

TEST(GateTest, NothingIsWatchedWhereAnswersDifferOnPurpose) {
  IndexConfig without = WatchedConfig(0), evicting = WatchedConfig(1e-9);
  evicting.eviction.emplace();
  evicting.eviction->budget.tokens = 2048;
  for (const IndexConfig& config : {without, evicting}) {
    LiveIndex live(config, {0, 1});
    EXPECT_EQ(AnswersUntilExact(live, live.Filled(kWatched), 0), -1);
    EXPECT_EQ(live.index->stats().gate_checks, 0);
  }
}

TEST(GateTest, AGoodCodeIsLeftAlone) {
  LiveIndex live(WatchedConfig(kGateBound), {0, 1});
  const SequenceHandle seq = live.Filled(kWatched);
  for (int i = 0; i < 140; ++i) {
    SearchParams params;
    params.top_k = 50;
    EXPECT_NE(AnswerOf(live, seq, 0, Queries(live.index->config().geometry, i), params).path, SearchMode::kGate);
  }
  const IndexStats stats = live.index->stats();
  EXPECT_EQ(stats.gate_checks, 4);
  EXPECT_LT(stats.gate_lost / 4, .01);
}

TEST(GateTest, ABoundIsAShare) {
  testing::TestBackend backend;
  for (const double gate : {-.1, 1.5, std::nan("")}) {
    const auto index = Index::Create(WatchedConfig(gate), &backend);
    ASSERT_FALSE(index.ok());
    EXPECT_NE(index.status().message().find("retrieval.gate"), std::string::npos) << index.status();
  }
}

}  // namespace
}  // namespace seine
