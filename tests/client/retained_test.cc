// An engine that follows what the heads retain from the answers of a real server alone, over every way that an append
// goes: its sets are the index's.
#include "client/retained_sets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/match.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine {
namespace {

using client::Client;
using client::Retained;
using client::RetainedReport;
using client::RetainedSets;
using client::Sequence;
using client::Transport;

using Positions = std::vector<std::vector<int32_t>>;

constexpr int kLayers = RandomModel::kLayers;
constexpr int64_t kBudget = 40, kInterval = 10, kLongest = 6000;

v1::IndexSpec EvictingSpec(const std::string& name, v1::HeadBudget heads = v1::HEAD_BUDGET_UNIFORM) {
  v1::IndexSpec spec = RandomModel::Spec(name, v1::KV_STORE_KEYS);
  v1::EvictionSettings& eviction = *spec.mutable_eviction();
  eviction.mutable_scorer()->set_name("keydiff");
  eviction.mutable_budget()->set_tokens(kBudget);
  eviction.mutable_budget()->set_heads(heads);
  eviction.mutable_keep()->set_sinks(2);
  eviction.set_interval(kInterval);
  return spec;
}

class RetainedSetsTest : public testing::Test {
 protected:
  // One sequence as its engine has it. Tokens that part two forks differ by where they are taken from the model.
  struct Engine {
    Sequence sequence;
    std::vector<RetainedSets> layers = std::vector<RetainedSets>(kLayers, RetainedSets(RandomModel::kKvHeads));
    int64_t lengths[kLayers] = {};
    bool behind[kLayers] = {};  // an answer was lost, and none has been taken since
  };

  static void SetUpTestSuite() {
    server_ = new Server();
    client_ = server_->Connect().release();
    ASSERT_NE(client_, nullptr);
  }
  static void TearDownTestSuite() {
    delete client_;
    delete server_;
  }

  int64_t Pick(int64_t below) { return static_cast<int64_t>(random_() % below); }

  client::AppendItem Item(const Engine& engine, int layer, int64_t tokens, RetainedReport report) {
    const int64_t from = Pick(kLongest - tokens);
    client::AppendItem item{engine.sequence, layer, engine.lengths[layer], model_.Keys(layer, from, tokens), {}};
    item.report = report;
    return item;
  }

  // Takes an answer, unless it is lost on its way.
  void Tell(Engine* engine, int layer, const Retained& report) {
    const bool lost = Pick(30) == 0;
    const bool taken = !lost && engine->layers[layer].Update(report);
    EXPECT_TRUE(lost || taken || engine->behind[layer]) << "a false alarm";
    engine->behind[layer] = !taken;
    missed_ += !lost && !taken;
  }

  void Append(Engine* engine, int layer) {
    const RetainedSets& sets = engine->layers[layer];
    const RetainedReport report = Pick(8) == 0 ? RetainedReport::kKept : sets.wanted();
    const int64_t way = Pick(5), tokens = 1 + Pick(Pick(5) == 0 ? 120 : 4);
    client::AppendItem item = Item(*engine, layer, tokens, report);
    if (way == 0) {
      Retained retained;
      const auto length = client_->Append(item, &retained);
      ASSERT_TRUE(length.ok()) << length.status();
      Tell(engine, layer, retained);
      const auto again = client_->Append(item, &retained);  // as if its answer had been lost
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(retained.evictions_before, retained.evictions);
    } else if (way == 1) {
      client::AppendItem second = Item(*engine, layer, 1 + Pick(60), report);
      second.position += tokens;
      const auto totals = client_->AppendStream({item, second});
      ASSERT_TRUE(totals.ok()) << totals.status();
      ASSERT_EQ(totals->retained.size(), 1u);
      EXPECT_EQ(totals->retained[0].layer, layer);
      EXPECT_EQ(totals->retained[0].sequence.id, engine->sequence.id);
      Tell(engine, layer, totals->retained[0].retained);
      engine->lengths[layer] += second.keys.shape[0];
    } else {
      client::DecodeStep step;
      step.appends = {item};
      client::DecodeAnswer answer;
      auto& stream = streams_[way - 2];
      ASSERT_TRUE(stream->Write(step).ok() && stream->Read(&answer).ok());
      ASSERT_TRUE(answer.append_status.at(0).ok()) << answer.append_status[0];
      Tell(engine, layer, answer.retained.at(0));
    }
    engine->lengths[layer] += tokens;
  }

  void Evict(Engine* engine, int layer) {
    client::EvictRequest request = {.sequence = engine->sequence, .layer = layer};
    request.scorer.set_name(Pick(2) == 0 ? "knorm" : "streaming_llm");
    request.budget.set_tokens(10 + Pick(40));
    request.dry_run = Pick(5) == 0;
    request.report = engine->layers[layer].wanted();
    const auto evicted = client_->Evict(request);
    ASSERT_TRUE(evicted.ok()) << evicted.status();
    Tell(engine, layer, evicted->retained);
  }

  static void Truncate(Engine* engine, int64_t position) {
    for (int layer = 0; layer < kLayers; ++layer) {
      engine->layers[layer].Truncate(position);
      engine->lengths[layer] = std::min(engine->lengths[layer], position);
    }
  }

  void Compare(const Engine& engine, int layer) {
    if (engine.behind[layer]) return;
    ++compared_;
    v1::ScorerSettings knorm;
    knorm.set_name("knorm");
    const auto scores = client_->Score(engine.sequence, layer, knorm, {});
    ASSERT_TRUE(scores.ok()) << scores.status();
    const RetainedSets& sets = engine.layers[layer];
    for (size_t h = 0; h < scores->size(); ++h) ASSERT_EQ(sets.heads()[h], (*scores)[h].positions);
  }

  static Server* server_;
  static Client* client_;
  const RandomModel model_{kLongest};
  std::mt19937 random_{3};
  std::unique_ptr<client::DecodeStream> streams_[3];
  int64_t missed_ = 0, compared_ = 0;
};
Server* RetainedSetsTest::server_ = nullptr;
Client* RetainedSetsTest::client_ = nullptr;

TEST_F(RetainedSetsTest, EqualTheIndexOverFiveThousandSteps) {
  ASSERT_TRUE(client_->CreateIndex(EvictingSpec("m", v1::HEAD_BUDGET_ADAPTIVE)).ok());
  const Transport transports[] = {Transport::kBlocking, Transport::kSharedMemory, Transport::kAuto};
  for (int i = 0; i < 3; ++i) streams_[i] = *client_->OpenDecodeStream(transports[i]);
  ASSERT_EQ(streams_[2]->transport(), Transport::kSharedMemory) << streams_[2]->fallback();
  std::vector<Engine> engines(1);
  engines[0].sequence = *client_->CreateSequence("m", "");
  for (int step = 0; step < 5000; ++step) {
    const auto at = Pick(static_cast<int64_t>(engines.size()));
    const int layer = static_cast<int>(Pick(kLayers));
    const int64_t what = Pick(20);
    Engine& engine = engines[at];
    const int64_t longest = std::max(engine.lengths[0], engine.lengths[1]);
    if (what < 14) {
      Append(&engine, layer);
      if (!HasFatalFailure()) Compare(engine, layer);
    } else if (what < 16 && engine.lengths[layer] > 0) {
      Evict(&engine, layer);
      if (!HasFatalFailure()) Compare(engine, layer);
    } else if (what < 18) {
      const int64_t position = std::max<int64_t>(0, longest - Pick(30));
      ASSERT_TRUE(client_->TruncateSequence(engine.sequence, position).ok());
      Truncate(&engine, position);
    } else if (engines.size() < 5) {
      const int64_t position = std::max<int64_t>(0, longest - Pick(30));
      Engine fork = engine;
      fork.sequence = *client_->ForkSequence(engine.sequence, "", position);
      Truncate(&fork, position);
      engines.push_back(fork);
    } else {
      ASSERT_TRUE(client_->DeleteSequence(engine.sequence).ok());
      engines.erase(engines.begin() + at);
    }
    if (HasFailure()) FAIL() << "in step " << step;
  }
  EXPECT_GT(missed_, 20);
  EXPECT_GT(compared_, 3000);
  for (const Engine& engine : engines) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto now = client_->GetRetained(engine.sequence, layer);
      ASSERT_TRUE(now.ok()) << now.status();
      RetainedSets sets(RandomModel::kKvHeads);
      ASSERT_TRUE(sets.Update(*now));
      if (engine.behind[layer]) continue;
      EXPECT_EQ(sets.heads(), engine.layers[layer].heads());
    }
  }
}

// The same tokens by every way: the same report.
TEST_F(RetainedSetsTest, EveryWayReportsTheSame) {
  ASSERT_TRUE(client_->CreateIndex(EvictingSpec("ways")).ok());
  for (const RetainedReport report : {RetainedReport::kDropped, RetainedReport::kKept}) {
    std::vector<Retained> reports;
    for (int way = 0; way < 4; ++way) {
      client::AppendItem item{*client_->CreateSequence("ways", ""), 1, 0, model_.Keys(1, 0, 500), {}};
      item.report = report;
      client::DecodeAnswer answer;
      if (way == 0) {
        ASSERT_TRUE(client_->Append(item, &reports.emplace_back()).ok());
      } else if (way == 1) {
        reports.push_back(client_->AppendStream({item})->retained.at(0).retained);
      } else {
        const auto stream = *client_->OpenDecodeStream(way == 2 ? Transport::kBlocking : Transport::kSharedMemory);
        client::DecodeStep step;
        step.appends = {item};
        ASSERT_TRUE(stream->Write(step).ok() && stream->Read(&answer).ok());
        reports.push_back(answer.retained.at(0));
      }
    }
    EXPECT_GT(reports[0].evictions, 40);
    for (const Retained& one : reports) {
      EXPECT_EQ(one.report, report);
      EXPECT_EQ(one.evictions_before, 0);
      EXPECT_EQ(one.evictions, reports[0].evictions);
      EXPECT_EQ(one.num_tokens, 500);
      EXPECT_EQ(one.counts, reports[0].counts);
      EXPECT_EQ(one.dropped, reports[0].dropped);
      EXPECT_EQ(one.kept, reports[0].kept);
    }
    EXPECT_EQ(reports[0].dropped.empty(), report == RetainedReport::kKept);
    EXPECT_EQ(reports[0].kept.empty(), report == RetainedReport::kDropped);
  }
}

// Another client evicts between an engine's appends: the next answer says that something was missed, and the one after
// sets it right, with what is to be freed.
TEST_F(RetainedSetsTest, WhatAnotherCallerEvictsIsNoticed) {
  ASSERT_TRUE(client_->CreateIndex(EvictingSpec("shared")).ok());
  Engine engine;
  engine.sequence = *client_->CreateSequence("shared", "");
  RetainedSets& sets = engine.layers[0];
  Retained report;
  const auto append = [&] {
    const auto length = client_->Append(Item(engine, 0, 1, sets.wanted()), &report);
    engine.lengths[0] += length.ok();
    return length.ok() && sets.Update(report);
  };
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(append());
  EXPECT_EQ(sets.heads()[0].size(), 30u);
  client::EvictRequest other = {.sequence = engine.sequence};
  other.scorer.set_name("streaming_llm");
  other.budget.set_tokens(12);
  ASSERT_TRUE(client_->Evict(other).ok());
  EXPECT_FALSE(append());
  EXPECT_EQ(sets.wanted(), RetainedReport::kKept);
  EXPECT_EQ(sets.heads()[0].size(), 30u);  // as they were
  EXPECT_TRUE(append());
  EXPECT_EQ(sets.wanted(), RetainedReport::kDropped);
  EXPECT_EQ(sets.heads()[0].size(), 14u);
  ASSERT_EQ(sets.dropped().size(), 2u);
  EXPECT_EQ(sets.dropped()[0].size(), 18u);
  // Truncated by another: fewer tokens than the engine knows, then as many, but not these.
  ASSERT_TRUE(client_->TruncateSequence(engine.sequence, 5).ok());
  engine.lengths[0] = 5;
  EXPECT_FALSE(append());
  EXPECT_TRUE(append());
  EXPECT_EQ(sets.num_tokens(), 7);
}

// Answers that do not fit what is known are refused, and change nothing.
TEST(RetainedSetsUnitTest, RefusesWhatDoesNotFollow) {
  RetainedSets sets(2);
  Retained first = {RetainedReport::kDropped, 0, 1, 10, {8, 9}, {{1, 4}, {9}}, {}};
  ASSERT_TRUE(sets.Update(first));
  const Positions heads = sets.heads();
  EXPECT_EQ(heads[0], (std::vector<int32_t>{0, 2, 3, 5, 6, 7, 8, 9}));
  EXPECT_EQ(sets.dropped(), first.dropped);
  const Retained right = {RetainedReport::kDropped, 1, 2, 12, {9, 11}, {{11}, {}}, {}};
  std::vector<Retained> wrong(8, right);
  wrong[0].evictions_before = 0;
  wrong[1].counts = {9};
  wrong[2].counts = {8, 11};
  wrong[3].counts = {};
  wrong[4].num_tokens = 9;
  wrong[5].dropped = {{4}, {}};   // gone before
  wrong[6].dropped = {{12}, {}};  // beyond the length
  wrong[7].report = RetainedReport::kNone;
  for (const Retained& one : wrong) {
    RetainedSets copy = sets;
    EXPECT_FALSE(copy.Update(one));
    EXPECT_EQ(copy.heads(), heads);
    EXPECT_FALSE(copy.Update(right)) << "kDropped is of no use until kKept has come";
    ASSERT_TRUE(copy.Update({RetainedReport::kKept, 2, 2, 12, {1, 2}, {}, {{3}, {0, 11}}}));
    EXPECT_EQ(copy.heads(), (Positions{{3}, {0, 11}}));
    EXPECT_EQ(copy.dropped()[0], (std::vector<int32_t>{0, 2, 5, 6, 7, 8, 9, 10, 11}));
  }
  EXPECT_TRUE(sets.Update(right));
  sets.Truncate(3);
  EXPECT_EQ(sets.heads(), (Positions{{0, 2}, {0, 1, 2}}));
  EXPECT_EQ(sets.num_tokens(), 3);
}

TEST_F(RetainedSetsTest, TheExampleFollows) {
  const auto outcome = RunProgram({SEINE_FOLLOW_RETAINED_PROGRAM, server_->endpoint()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(absl::StrContains(outcome.out, "the same as the index")) << outcome.out;
  EXPECT_EQ(RunProgram({SEINE_FOLLOW_RETAINED_PROGRAM, "/nowhere.sock"}).exit_code, 1);
}

}  // namespace
}  // namespace seine
