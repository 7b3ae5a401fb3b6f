// Codes that are made for other queries than those that come: found out, encoded anew, and no more often than promised.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "index/transforms/query_fit.h"
#include "index/transforms/query_window.h"
#include "tests/index/synthetic_model.h"

namespace seine {
namespace {

using testing::BalancedConfig;
using testing::MadeUpModel;
using testing::MakeIndex;
using testing::Probe;
using testing::SameAnswers;
using testing::View;
using testing::WaitForBackground;

constexpr int64_t kTokens = 4096;
constexpr int64_t kRowBytes = 2 * 64 * 2;  // a token: 2 KV heads of 64 in fp16

class RefitTest : public ::testing::Test {
 protected:
  static Geometry SmallGeometry() {
    return {.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64, .dtype = DType::kFloat16};
  }

  IndexConfig Config(std::shared_ptr<const Profile> profile, KvStore store = KvStore::kKeys) const {
    IndexConfig config = BalancedConfig(model_, std::move(profile), store);
    config.codec.horizon = 16384;
    return config;
  }

  void Append(Index* index, const SequenceHandle& seq, int layer, int64_t first, int64_t count) const {
    const TensorView rows{rows_.data() + first * kRowBytes, count, static_cast<size_t>(count * kRowBytes)};
    const auto length = index->Append(seq, layer, first, rows, {});
    ASSERT_TRUE(length.ok()) << length.status();
  }

  SequenceHandle Filled(Index* index, int64_t tokens = kTokens) const {
    const SequenceHandle seq = *index->CreateSequence("");
    for (int layer = 0; layer < 2; ++layer) Append(index, seq, layer, 0, tokens);
    return seq;
  }

  // Asks layer 1 `steps` queries of `model` at the position of its last token.
  void Ask(const Index& index, const SequenceHandle& seq, const MadeUpModel& model, int steps) {
    const int64_t position = index.GetSequence(seq)->layer_tokens[1] - 1;
    for (int i = 0; i < steps; ++i) {
      const std::vector<float> queries = model.Query(position, ++asked_);
      const auto answers = index.Retrieve({{seq, 1, queries.data()}}, index.config().search);
      ASSERT_TRUE(answers.ok() && answers->at(0).status.ok());
    }
  }

  // Share of the exact top 20 among the candidates' best, over queries of `model` that are not asked otherwise. Asked
  // of a fork, so that they do not count as seen.
  double Recall(Index* index, const SequenceHandle& seq, const MadeUpModel& model) const {
    const SequenceHandle fork = *index->Fork(seq, "", -1);
    SearchParams params;
    params.scope = Scope::kPerQHead;
    params.top_k = 20;
    params.rescore_k = 64;
    params.candidate_fraction = .002;
    const int64_t position = index->GetSequence(seq)->layer_tokens[1] - 1;
    double found = 0, of = 0;
    for (int q = 0; q < 16; ++q) {
      const std::vector<float> queries = model.Query(position, 900000 + q);
      params.method = Method::kIndex;
      const ItemAnswer answer = index->Retrieve({{fork, 1, queries.data()}}, params)->at(0);
      params.method = Method::kExact;
      const ItemAnswer exact = index->Retrieve({{fork, 1, queries.data()}}, params)->at(0);
      for (size_t s = 0; s < exact.positions.size(); ++s) {
        const std::set<int32_t> got(answer.positions[s].begin(), answer.positions[s].end());
        for (const int32_t p : exact.positions[s]) found += static_cast<double>(got.count(p));
        of += static_cast<double>(exact.positions[s].size());
      }
    }
    EXPECT_TRUE(index->DeleteSequence(fork).ok());
    return found / of;
  }

  // Until the background has judged the codes that layer 1 has now.
  static HeadInfo AwaitJudged(const Index& index, const SequenceHandle& seq) {
    WaitForBackground(index);
    const HeadInfo info = *index.DescribeHead(seq, 1, 0);
    EXPECT_TRUE(info.predicted_loss) << "never judged";
    return info;
  }
  static void AwaitRefitted(const Index& index, int64_t layers) {
    WaitForBackground(index);
    ASSERT_EQ(index.stats().reencoded_unfit_layers, layers);
  }

  const MadeUpModel model_{SmallGeometry()}, stranger_{SmallGeometry(), 900};
  const std::shared_ptr<const Profile> profile_ = model_.Measure(), strange_ = stranger_.Measure();
  const std::string rows_ = model_.KeyRows(0, kTokens + 512);
  std::unique_ptr<Backend> backend_ = MakeCpuBackend(2);
  uint64_t asked_ = 0;
};

TEST_F(RefitTest, QueriesFromElsewhereAreLearnt) {
  auto index = MakeIndex(Config(strange_), backend_.get()), right = MakeIndex(Config(profile_), backend_.get());
  const SequenceHandle seq = Filled(index.get()), of_right = Filled(right.get());
  const SequenceHandle fork = *index->Fork(seq, "", -1);
  const double before = Recall(index.get(), seq, model_), best = Recall(right.get(), of_right, model_);
  EXPECT_EQ(index->DescribeHead(seq, 1, 0)->query_moments, "profile");
  EXPECT_FALSE(index->DescribeHead(seq, 1, 0)->predicted_loss);

  Ask(*index, seq, model_, QueryWindow::kFewest);
  AwaitRefitted(*index, 1);
  const HeadInfo info = *index->DescribeHead(seq, 1, 0);
  EXPECT_EQ(info.query_moments, "live");
  ASSERT_TRUE(info.predicted_loss);
  EXPECT_LT(std::abs(*info.predicted_loss), .25);
  const double after = Recall(index.get(), seq, model_);
  RecordProperty("before", std::to_string(before));
  RecordProperty("after", std::to_string(after));
  RecordProperty("best", std::to_string(best));
  EXPECT_LT(1 - after, (1 - before) / 2);
  EXPECT_GT(after, best - .02);
  EXPECT_EQ(index->stats().reencoded_layers, 1);
  EXPECT_EQ(index->stats().reencoded_keys, info.zone_end - info.zone_begin);

  // Nothing but that layer of that sequence; a later fork has the new code, and an append goes on with it.
  EXPECT_EQ(index->DescribeHead(seq, 0, 0)->query_moments, "profile");
  EXPECT_EQ(index->DescribeHead(fork, 1, 0)->query_moments, "profile");
  EXPECT_EQ(Recall(index.get(), fork, model_), before);
  const SequenceHandle later = *index->Fork(seq, "", -1);
  EXPECT_EQ(index->DescribeHead(later, 1, 0)->query_moments, "live");
  EXPECT_FALSE(index->DescribeHead(later, 1, 0)->predicted_loss);  // it was asked nothing yet
  Append(index.get(), seq, 1, kTokens, 500);
  Append(index.get(), later, 1, kTokens, 500);
  EXPECT_TRUE(SameAnswers(Probe(*index, seq, 1), Probe(*index, later, 1)));
  // A cut that leaves no code begins again with the profile.
  ASSERT_TRUE(index->Truncate(later, 20).ok());
  Append(index.get(), later, 1, 20, 1000);
  EXPECT_EQ(index->DescribeHead(later, 1, 0)->query_moments, "profile");
}

TEST_F(RefitTest, QueriesAsExpectedChangeNothing) {
  auto index = MakeIndex(Config(profile_), backend_.get());
  const SequenceHandle seq = Filled(index.get());
  for (const int steps : {QueryWindow::kFewest, QueryWindow::kFewest, 1024 - QueryWindow::kSteps}) {
    Ask(*index, seq, model_, steps);
    const HeadInfo info = AwaitJudged(*index, seq);
    EXPECT_LT(std::abs(*info.predicted_loss), .2);
    EXPECT_EQ(info.query_moments, "profile");
  }
  EXPECT_EQ(index->stats().reencoded_layers, 0);
}

// Whoever changes cones at every look gets one encoding for each doubling of what he has asked.
TEST_F(RefitTest, AlternatingQueriesAreFollowedAtMostOnceADoubling) {
  auto index = MakeIndex(Config(strange_), backend_.get());
  const SequenceHandle seq = Filled(index.get(), 1200);
  const MadeUpModel third(SmallGeometry(), 3000, 8), fourth(SmallGeometry(), 4000, 8), fifth(SmallGeometry(), 5000, 8);
  const MadeUpModel* models[] = {&fourth, &third, &fifth};
  int steps = 0;
  for (int turn = 0; steps < 4096; ++turn) {
    const int until = steps < 128 ? steps + 64 : steps / 1024 * 1024 + 1024;
    Ask(*index, seq, *models[turn % 3], until - steps);
    steps = until;
    WaitForBackground(*index);
  }
  EXPECT_GE(index->stats().reencoded_unfit_layers, 2);
  EXPECT_LE(index->stats().reencoded_unfit_layers, 1 + std::log2(steps / 64));
  EXPECT_EQ(index->stats().reencoded_layers, index->stats().reencoded_unfit_layers);
}

// Outgrown afterwards, the code is carried on with the queries it was made for.
TEST_F(RefitTest, WhatWasLearntOutlivesTheHorizon) {
  IndexConfig config = Config(strange_);
  config.codec.horizon = 1024;
  auto index = MakeIndex(config, backend_.get());
  const SequenceHandle seq = Filled(index.get(), 2048);
  Ask(*index, seq, model_, QueryWindow::kFewest);
  AwaitRefitted(*index, 1);
  Append(index.get(), seq, 1, 2048, 2048);
  WaitForBackground(*index);
  const HeadInfo info = *index->DescribeHead(seq, 1, 0);
  EXPECT_EQ(info.position, SealingPosition(4096, 1024));
  EXPECT_EQ(info.query_moments, "live");
  EXPECT_EQ(index->stats().reencoded_unfit_layers, 1);
}

TEST_F(RefitTest, WithoutRopeToo) {
  const auto observed = [](const Profile& profile) {
    Profile plain = profile;
    plain.rope_json.clear();
    return std::make_shared<const Profile>(plain);
  };
  IndexConfig config = Config(observed(*strange_));
  config.geometry.rope = Rope();
  config.codec.horizon = kDefaultHorizon;
  auto index = MakeIndex(config, backend_.get());
  const SequenceHandle seq = Filled(index.get());
  Ask(*index, seq, model_, QueryWindow::kFewest);
  AwaitRefitted(*index, 1);
  EXPECT_EQ(index->DescribeHead(seq, 1, 1)->query_moments, "live");
}

// Where p is fixed by whoever replays recorded queries, and where there are no keys to encode anew.
TEST_F(RefitTest, WhatMayNotBeRefittedIsNot) {
  IndexConfig pinned = Config(strange_), none = Config(strange_, KvStore::kNone);
  pinned.codec.query_position = 4096;
  for (const IndexConfig* config : {&pinned, &none}) {
    auto index = MakeIndex(*config, backend_.get());
    const SequenceHandle seq = Filled(index.get());
    Ask(*index, seq, model_, 2 * QueryWindow::kSteps);
    WaitForBackground(*index);
    EXPECT_EQ(index->stats().reencoded_layers, 0);
    EXPECT_FALSE(index->DescribeHead(seq, 1, 0)->predicted_loss);
  }
}

// Searches answer all the while; where there is no memory for new codes, nor for queries, everything stays and the
// queries are counted.
TEST_F(RefitTest, WithoutMemoryNothingChanges) {
  constexpr int64_t kLimit = int64_t{64} << 20;
  auto budget = std::make_shared<MemoryBudget>(kLimit);
  auto index = MakeIndex(Config(strange_), backend_.get(), budget);
  const SequenceHandle seq = Filled(index.get());
  Ask(*index, seq, model_, QueryWindow::kFewest - 1);
  const int64_t left = kLimit - budget->used_bytes();
  ASSERT_TRUE(budget->TryReserve(left));
  Ask(*index, seq, model_, 2 * QueryWindow::kFewest);
  WaitForBackground(*index);
  EXPECT_EQ(index->stats().reencoded_layers, 0);
  EXPECT_GT(index->stats().dropped_queries, 0);
  EXPECT_EQ(index->DescribeHead(seq, 1, 0)->query_moments, "profile");
  budget->Release(left);
  Ask(*index, seq, model_, 1024);
  AwaitRefitted(*index, 1);
}

TEST_F(RefitTest, RefitsUnderLoad) {
  auto index = MakeIndex(Config(strange_), backend_.get());
  std::vector<SequenceHandle> sequences;
  for (int i = 0; i < 2; ++i) sequences.push_back(Filled(index.get(), 1500));
  std::vector<std::vector<float>> queries;
  for (int i = 0; i < 32; ++i) queries.push_back(model_.Query(1500, i));
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {  // asks both
      for (int i = 0; i < 240; ++i) {
        const float* query = queries[i % queries.size()].data();
        const auto answers =
            index->Retrieve({{sequences[0], 1, query}, {sequences[1], 1, query}}, index->config().search);
        ASSERT_TRUE(answers.ok() && answers->at(0).status.ok() && answers->at(1).status.ok());
      }
    });
    threads.emplace_back([&, t] {  // writes one
      std::mt19937 random(t);
      for (int64_t length = 1500, i = 0; i < 120; ++i) {
        if (length + 20 > kTokens || random() % 4 == 0) {
          length -= 30;
          ASSERT_TRUE(index->Truncate(sequences[t], length).ok());
        }
        Append(index.get(), sequences[t], 1, length, 20);
        length += 20;
        if (i % 16 == 0) {
          ASSERT_TRUE(index->DeleteSequence(*index->Fork(sequences[t], "", -1)).ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  WaitForBackground(*index);
  for (const SequenceHandle& seq : sequences) {  // cut or not, in the end both follow their queries
    EXPECT_EQ(index->DescribeHead(seq, 1, 0)->query_moments, "live");
    EXPECT_GT(Recall(index.get(), seq, model_), .9);
  }
}

class QueryWindowTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRow = 32;
  static std::vector<float> Row(float value) { return std::vector<float>(kRow, value); }
  std::unique_ptr<Backend> backend_ = MakeCpuBackend(1);
};

TEST_F(QueryWindowTest, KeepsTheFirstThenOneInEightAndTheLatest) {
  MemoryLedger ledger(backend_.get(), 0, 0, nullptr);
  QueryWindow window(&ledger, kRow);
  std::vector<int> renewed;
  for (int step = 1; step <= 4096; ++step) {
    const QueryWindow::Added added = window.Add(step, Row(static_cast<float>(step % 256)).data());
    EXPECT_FALSE(added.refused);
    if (added.renewed) renewed.push_back(step);
    if (step == 40 || step == 130) {
      EXPECT_EQ(window.Seen().positions.size(), step == 40 ? 40u : 128u);
    }
  }
  EXPECT_EQ(renewed, (std::vector<int>{64, 128, 1024, 2048, 3072, 4096}));
  const SeenQueries seen = window.Seen();
  ASSERT_EQ(seen.positions.size(), 128u);
  const std::set<int64_t> positions(seen.positions.begin(), seen.positions.end());
  EXPECT_EQ(positions.size(), 128u);
  EXPECT_EQ(*positions.begin(), 4096 - 127 * 8);
  EXPECT_EQ(*positions.rbegin(), 4096);
  for (size_t i = 0; i < 128; ++i) {
    EXPECT_EQ(seen.rows[i * kRow + 7], static_cast<float>(seen.positions[i] % 256));  // eight bits are kept whole
  }
  EXPECT_GE(ledger.held(MemoryKind::kOther), 128 * kRow * 2);
}

TEST_F(QueryWindowTest, RoundsToTheNearest) {
  MemoryLedger ledger(backend_.get(), 0, 0, nullptr);
  QueryWindow window(&ledger, kRow);
  std::vector<float> row = Row(0);
  const float values[] = {1.0f, -3.14159f, 1e-30f, 6.5e4f, 1e38f, 1 + 1.0f / 256, 1 + 3.0f / 256, -0.0f};
  std::copy(std::begin(values), std::end(values), row.begin());
  window.Add(0, row.data());
  const SeenQueries seen = window.Seen();
  for (size_t i = 0; i < std::size(values); ++i) {
    EXPECT_LE(std::abs(seen.rows[i] - values[i]), std::abs(values[i]) / 256) << values[i];
  }
  EXPECT_EQ(seen.rows[5], 1.0f);  // ties to even
  EXPECT_EQ(seen.rows[6], 1 + 4.0f / 256);
}

TEST_F(QueryWindowTest, RefitsOnceADoubling) {
  MemoryLedger ledger(backend_.get(), 0, 0, nullptr);
  QueryWindow window(&ledger, kRow);
  for (int step = 1; step <= 100; ++step) window.Add(step, Row(1).data());
  EXPECT_TRUE(window.MayRefit());
  window.Refitted();
  for (int step = 101; step < 200; ++step) {
    window.Add(step, Row(1).data());
    EXPECT_FALSE(window.MayRefit());
  }
  window.Add(200, Row(1).data());
  EXPECT_TRUE(window.MayRefit());
}

TEST_F(QueryWindowTest, SaysWhereThereIsNoMemory) {
  MemoryLedger ledger(backend_.get(), 1000, 0, nullptr);
  QueryWindow window(&ledger, kRow);
  EXPECT_TRUE(window.Add(1, Row(1).data()).refused);
  EXPECT_TRUE(window.Seen().positions.empty());
  EXPECT_EQ(ledger.held(MemoryKind::kOther), 0);
}

// A layer without RoPE among others has the codes of a model that has none, at any length; the others have their own.
TEST_F(RefitTest, LayersKeepTheirOwnRope) {
  const std::string none = R"({"rope_type": "none"})";
  const auto with = [&](const std::string& rope, const std::string& layers) {
    Profile profile = *profile_;
    profile.rope_json = rope, profile.layer_ropes_json = layers;
    IndexConfig config = Config(std::make_shared<const Profile>(std::move(profile)));
    config.geometry.rope = *ParseRope(rope, 64, Rope::Style::kHalfSplit, 1);
    config.geometry.layer_ropes = *ParseLayerRopes(layers, 64, Rope::Style::kHalfSplit, 1);
    EXPECT_TRUE(Validate(config).ok()) << Validate(config);
    return config;
  };
  const IndexConfig turning = with(profile_->rope_json, ""), still = with(none, ""),
                    mixed = with(profile_->rope_json, R"([{"layers": [1], "rope": )" + none + "}]");
  MemoryLedger ledger(backend_.get(), 0, 0, nullptr);
  Transforms of_turning(&turning, &ledger), of_still(&still, &ledger), of_mixed(&mixed, &ledger);
  const auto maps = [](Transforms* transforms, int layer, int64_t length) {
    return (*transforms->Of(layer, length))->heads[1].codec->Transform().key_map;
  };
  EXPECT_EQ(maps(&of_mixed, 0, 4096), maps(&of_turning, 0, 4096));
  EXPECT_EQ(maps(&of_mixed, 1, 4096), maps(&of_still, 1, 4096));
  EXPECT_NE(maps(&of_mixed, 1, 4096), maps(&of_turning, 1, 4096));
  EXPECT_EQ(maps(&of_mixed, 1, 65536), maps(&of_still, 1, 4096));
  EXPECT_EQ((*of_mixed.Of(1, 4096))->position, -1);  // no length outgrows them

  // What was asked at one position is asked at any other, and live moments are the queries' own.
  SeenQueries seen;
  seen.rows = model_.Query(4000, 1);
  seen.positions = {4000};
  SeenQueries elsewhere = seen;
  elsewhere.positions = {9};
  const auto noise = [&](const SeenQueries& of, const std::shared_ptr<const LayerCodecs>& codecs, int layer) {
    return NoiseOf(*codecs, of, mixed, layer);
  };
  const auto first = *of_mixed.Of(0, 4096), second = *of_mixed.Of(1, 4096);
  EXPECT_EQ(noise(seen, second, 1), noise(elsewhere, second, 1));
  EXPECT_NE(noise(seen, first, 0), noise(elsewhere, first, 0));
  EXPECT_EQ(LearnMoments(seen, mixed, 1), LearnMoments(elsewhere, mixed, 1));
  EXPECT_NE(LearnMoments(seen, mixed, 0), LearnMoments(elsewhere, mixed, 0));
}

// What is measured of moments alone is the same as the brute mean over positions.
TEST_F(RefitTest, NoiseIsThatOfTheMoments) {
  const IndexConfig fits = Config(profile_), strange = Config(strange_);
  MemoryLedger ledger(backend_.get(), 0, 0, nullptr);
  SeenQueries seen;
  for (int i = 0; i < 128; ++i) {
    seen.positions.push_back(4000 + i);
    const std::vector<float> queries = model_.Query(4000 + i, i);
    seen.rows.insert(seen.rows.end(), queries.begin(), queries.end());
  }
  Transforms good(&fits, &ledger), bad(&strange, &ledger);
  const auto right = *good.Of(0, 4096), wrong = *bad.Of(0, 4096);
  for (const double loss : LossOf(*right, NoiseOf(*right, seen, fits, 0))) EXPECT_LT(std::abs(loss), .15);
  for (const double loss : LossOf(*wrong, NoiseOf(*wrong, seen, strange, 0))) EXPECT_GT(loss, .25);
  const auto learnt = std::make_shared<const QueryMoments>(LearnMoments(seen, strange, 0));
  const auto fitted = *bad.Of(0, 4096, learnt);
  const std::vector<double> best = NoiseOf(*right, seen, fits, 0), after = NoiseOf(*fitted, seen, strange, 0);
  for (size_t h = 0; h < best.size(); ++h) EXPECT_LT(after[h], best[h] * 1.1);
  EXPECT_EQ(fitted->queries, learnt);
  EXPECT_GT(ledger.held(MemoryKind::kOther), 3 * 2 * 6 * 64 * 64);

  SeenQueries nothing = seen;
  std::fill(nothing.rows.begin(), nothing.rows.end(), 0.0f);
  EXPECT_EQ(NoiseOf(*right, nothing, fits, 0), (std::vector<double>{0, 0}));
  EXPECT_TRUE(bad.Of(0, 4096, std::make_shared<const QueryMoments>(LearnMoments(nothing, strange, 0))).ok());
}

}  // namespace
}  // namespace seine
