// The balanced codec in an index: answers, codes that are a function of tokens and p alone, bytes, transforms,
// settings.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "index/transforms/transforms.h"
#include "profile/moments.h"
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

Geometry SmallGeometry(int head_dim = 64) {
  return {.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = head_dim, .dtype = DType::kFloat16};
}

absl::Status AppendModel(Index* index, const MadeUpModel& model, const SequenceHandle& seq, int64_t first,
                         int64_t count) {
  const std::string rows = model.KeyRows(first, count);
  for (int layer = 0; layer < model.geometry().num_layers; ++layer) {
    auto length = index->Append(seq, layer, first, View(model.geometry(), rows), {});
    if (!length.ok()) return length.status();
  }
  return absl::OkStatus();
}

class BalancedTest : public ::testing::Test {
 protected:
  SequenceHandle Filled(Index* index, int64_t tokens) {
    const SequenceHandle seq = *index->CreateSequence("");
    EXPECT_TRUE(AppendModel(index, model_, seq, 0, tokens).ok());
    return seq;
  }

  const MadeUpModel model_{SmallGeometry()};
  const std::shared_ptr<const Profile> profile_ = model_.Measure();
  std::unique_ptr<Backend> backend_ = MakeCpuBackend(2);
};

// Share of the exact top k that the candidates of a small fraction hold.
double Recall(const Index& index, const MadeUpModel& model, const SequenceHandle& seq, int64_t tokens) {
  SearchParams params;
  params.scope = Scope::kPerQHead;
  params.top_k = 20;
  params.rescore_k = 64;
  params.candidate_fraction = .002;
  int64_t found = 0, of = 0;
  for (int q = 0; q < 8; ++q) {
    const std::vector<float> queries = model.Query(tokens + 100 * q, q);
    params.method = Method::kIndex;
    const ItemAnswer answer = index.Retrieve({{seq, 1, queries.data()}}, params)->at(0);
    params.method = Method::kExact;
    const ItemAnswer exact = index.Retrieve({{seq, 1, queries.data()}}, params)->at(0);
    EXPECT_TRUE(answer.status.ok() && exact.status.ok());
    for (size_t s = 0; s < exact.positions.size(); ++s) {
      const std::set<int32_t> got(answer.positions[s].begin(), answer.positions[s].end());
      for (const int32_t p : exact.positions[s]) found += static_cast<int64_t>(got.count(p));
      of += static_cast<int64_t>(exact.positions[s].size());
    }
  }
  return static_cast<double>(found) / static_cast<double>(of);
}

TEST_F(BalancedTest, FindsMoreThanRsqInLessThanHalfTheBytes) {
  constexpr int64_t kTokens = 16384;
  IndexConfig config = BalancedConfig(model_, profile_);
  config.codec.horizon = 4096;
  auto balanced = MakeIndex(config, backend_.get());
  config.codec.coarse_bits = .5;
  auto half = MakeIndex(config, backend_.get());
  config.codec = CodecConfig();
  auto rsq = MakeIndex(config, backend_.get());
  const SequenceHandle a = Filled(balanced.get(), kTokens), b = Filled(half.get(), kTokens),
                       c = Filled(rsq.get(), kTokens);
  const double full_recall = Recall(*balanced, model_, a, kTokens), half_recall = Recall(*half, model_, b, kTokens),
               rsq_recall = Recall(*rsq, model_, c, kTokens);
  RecordProperty("balanced", std::to_string(full_recall));
  RecordProperty("half", std::to_string(half_recall));
  RecordProperty("rsq", std::to_string(rsq_recall));
  EXPECT_GE(full_recall, .92);
  EXPECT_GT(full_recall, rsq_recall + .05);
  EXPECT_GE(half_recall, .77);  // of half the bytes that rsq scans
  config = BalancedConfig(model_, profile_);
  config.codec.horizon = 4096;
  config.codec.coarse_bits = 2, config.codec.total_bits = 2.125;
  auto twice = MakeIndex(config, backend_.get());
  const double twice_recall = Recall(*twice, model_, Filled(twice.get(), kTokens), kTokens);
  RecordProperty("twice", std::to_string(twice_recall));
  EXPECT_GT(twice_recall, full_recall + .01);  // with a fifth of the candidates
  EXPECT_LT(balanced->GetSequence(a)->code_bytes * 2, rsq->GetSequence(c)->code_bytes);
}

// One shot, token by token, from a fork and after cuts: the same p, the same answers to the bit.
TEST_F(BalancedTest, CodesFollowFromTokensAndPositionAlone) {
  constexpr int64_t kTokens = 16 + 32 + 64 * 6 + 5;
  for (const KvStore store : {KvStore::kKeys, KvStore::kNone}) {
    IndexConfig config = BalancedConfig(model_, profile_, store);
    config.codec.query_position = 700;
    auto index = MakeIndex(config, backend_.get());
    const SequenceHandle once = Filled(index.get(), kTokens);
    const std::vector<ItemAnswer> expected = Probe(*index, once, 1);
    EXPECT_EQ(expected[0].positions[0].size(), 64u * 6);

    const SequenceHandle streamed = *index->CreateSequence("");
    for (int64_t at = 0; at < kTokens; at += 7) {
      ASSERT_TRUE(AppendModel(index.get(), model_, streamed, at, std::min<int64_t>(7, kTokens - at)).ok());
    }
    EXPECT_TRUE(SameAnswers(Probe(*index, streamed, 1), expected));

    const SequenceHandle fork = *index->Fork(streamed, "", kTokens - 30);
    ASSERT_TRUE(AppendModel(index.get(), model_, fork, kTokens - 30, 30).ok());
    EXPECT_TRUE(SameAnswers(Probe(*index, fork, 1), expected));
    EXPECT_TRUE(SameAnswers(Probe(*index, streamed, 1), expected));

    ASSERT_TRUE(index->Truncate(once, kTokens - 40).ok());
    ASSERT_TRUE(AppendModel(index.get(), model_, once, kTokens - 40, 40).ok());
    EXPECT_TRUE(SameAnswers(Probe(*index, once, 1), expected));
  }
}

TEST_F(BalancedTest, AForkKeepsItsTransformAndACutToNothingChoosesAnew) {
  auto index = MakeIndex(BalancedConfig(model_, profile_), backend_.get());
  const SequenceHandle seq = *index->CreateSequence("");
  EXPECT_EQ(index->DescribeHead(seq, 0, 0)->position, -1);
  EXPECT_TRUE(index->DescribeHead(seq, 0, 0)->lambda.empty());
  ASSERT_TRUE(AppendModel(index.get(), model_, seq, 0, 3000).ok());
  EXPECT_EQ(index->DescribeHead(seq, 0, 0)->position, SealingPosition(3000, kDefaultHorizon));
  const SequenceHandle fork = *index->Fork(seq, "", 1000);
  EXPECT_EQ(index->DescribeHead(fork, 0, 0)->position, SealingPosition(3000, kDefaultHorizon));
  ASSERT_TRUE(index->Truncate(fork, 20).ok());
  EXPECT_EQ(index->DescribeHead(fork, 0, 0)->position, -1);
  ASSERT_TRUE(AppendModel(index.get(), model_, fork, 20, 980).ok());
  EXPECT_EQ(index->DescribeHead(fork, 0, 0)->position, SealingPosition(1000, kDefaultHorizon));
  EXPECT_EQ(index->DescribeHead(seq, 0, 0)->position, SealingPosition(3000, kDefaultHorizon));
}

TEST_F(BalancedTest, DescribesTheTransform) {
  IndexConfig config = BalancedConfig(model_, profile_);
  config.codec.horizon = 1024;
  config.codec.coarse_bits = .5;
  config.codec.total_bits = 2.5;
  auto index = MakeIndex(config, backend_.get());
  const SequenceHandle seq = Filled(index.get(), 600);
  const HeadInfo info = *index->DescribeHead(seq, 1, 1);
  EXPECT_EQ(info.codec, "balanced");
  EXPECT_EQ(info.centre, "window");
  EXPECT_EQ(info.coarse, "sign_ip");
  EXPECT_EQ(info.profile, "synthetic");
  EXPECT_EQ(info.position, 512);
  EXPECT_EQ(info.horizon, 1024);
  EXPECT_EQ(info.coarse_bits, .5);
  EXPECT_EQ(info.total_bits, 2.5);
  ASSERT_EQ(info.lambda.size(), 64u);
  for (size_t i = 1; i < info.lambda.size(); ++i) EXPECT_GE(info.lambda[i - 1], info.lambda[i]);
  EXPECT_EQ(info.layout.coarse_bytes, 4);
}

// Codes, centres and factors of full segments.
TEST(BalancedBytesTest, AreThoseThatTheSpecificationStates) {
  auto backend = MakeCpuBackend(1);
  for (const auto& [head_dim, most] : {std::pair{128, 37.0}, {64, 20.0}}) {
    Geometry geometry = SmallGeometry(head_dim);
    geometry.num_layers = 1;
    const MadeUpModel model(geometry);
    auto index = MakeIndex(BalancedConfig(model, model.Measure(1024)), backend.get());
    const SequenceHandle seq = *index->CreateSequence("");
    ASSERT_TRUE(AppendModel(index.get(), model, seq, 0, 16 + 32 + 2 * 2048).ok());
    EXPECT_LE(index->DescribeHead(seq, 0, 0)->bytes_per_key, most);
    EXPECT_GT(index->DescribeHead(seq, 0, 0)->bytes_per_key, head_dim / 4);
  }
}

TEST_F(BalancedTest, RopeMayBeNotStatedWhereTheProfileIsOfNone) {
  Profile observed = *profile_;
  observed.rope_json.clear();
  IndexConfig config = BalancedConfig(model_, std::make_shared<const Profile>(observed));
  config.geometry.rope = Rope();
  auto index = MakeIndex(config, backend_.get());
  const SequenceHandle seq = Filled(index.get(), 600);
  const HeadInfo info = *index->DescribeHead(seq, 0, 0);
  EXPECT_EQ(info.position, -1);
  EXPECT_EQ(info.horizon, 0);
  EXPECT_EQ(info.lambda.size(), 64u);
  EXPECT_FALSE(Probe(*index, seq, 0)[0].positions[0].empty());
}

TEST_F(BalancedTest, TransformsAreComputedOnceForAllThreads) {
  const IndexConfig config = BalancedConfig(model_, profile_);
  MemoryLedger ledger(backend_.get(), 0, 0, nullptr);
  Transforms transforms(&config, &ledger);
  std::vector<std::shared_ptr<const LayerCodecs>> got(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < got.size(); ++i) threads.emplace_back([&, i] { got[i] = *transforms.Of(0, 1500 + i); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& codecs : got) EXPECT_EQ(codecs, got[0]);
  EXPECT_NE(*transforms.Of(1, 1500), got[0]);
  EXPECT_NE(*transforms.Of(0, 2500), got[0]);
  EXPECT_EQ(got[0]->heads.size(), 2u);
}

// The horizon ends, or the length has doubled, whichever comes first.
TEST_F(BalancedTest, CodesAreOutgrownByTheHorizonOrByDoubling) {
  MemoryLedger ledger(backend_.get(), 0, 0, nullptr);
  for (const auto& [horizon, outgrown_at] : {std::pair<int64_t, int64_t>{512, 1536 + 513}, {32768, 2 * 1536}}) {
    IndexConfig config = BalancedConfig(model_, profile_);
    config.codec.horizon = horizon;
    Transforms transforms(&config, &ledger);
    const auto codecs = *transforms.Of(0, 1536);
    ASSERT_EQ(codecs->position, 1536);
    EXPECT_FALSE(transforms.Outgrown(*codecs, outgrown_at - 1)) << horizon;
    EXPECT_TRUE(transforms.Outgrown(*codecs, outgrown_at)) << horizon;
    EXPECT_FALSE(transforms.Doubled(*codecs, 2 * 1536 - 1));
    EXPECT_TRUE(transforms.Doubled(*codecs, 2 * 1536));
  }
}

TEST(SealingPositionTest, LiesNearTheLengthAndTakesFewValues) {
  for (const int64_t horizon : {512, 4096, 32768, 1000}) {
    std::set<int64_t> values;
    int64_t last = 0;
    for (int64_t length = 1; length < 300000; length += 13) {
      const int64_t p = SealingPosition(length, horizon);
      values.insert(p);
      EXPECT_GE(p, last);
      EXPECT_GE(p, 512);
      EXPECT_LE(p, std::max<int64_t>(length, 512));
      EXPECT_LT(length - p, std::max<int64_t>(horizon / 8, 64)) << length;
      last = p;
    }
    EXPECT_LE(static_cast<int64_t>(values.size()), 300000 / std::max<int64_t>(horizon / 16, 64) + 16);
  }
}

// Waits until the background is done, with `layers` layers.
void AwaitReencoded(const Index& index, int64_t layers) {
  WaitForBackground(index);
  ASSERT_EQ(index.stats().reencoded_layers, layers);
}

TEST_F(BalancedTest, ALayerThatOutgrowsItsHorizonIsEncodedAnew) {
  IndexConfig config = BalancedConfig(model_, profile_);
  config.codec.horizon = 512;
  auto index = MakeIndex(config, backend_.get());
  const SequenceHandle seq = Filled(index.get(), 600);
  const SequenceHandle fork = *index->Fork(seq, "", -1);
  ASSERT_EQ(index->DescribeHead(seq, 0, 0)->position, 576);
  ASSERT_TRUE(AppendModel(index.get(), model_, seq, 600, 488).ok());  // to 1,088: the horizon's last token
  EXPECT_EQ(index->stats().reencoded_layers, 0);
  ASSERT_TRUE(AppendModel(index.get(), model_, seq, 1088, 936).ok());
  AwaitReencoded(*index, 2);
  EXPECT_EQ(index->DescribeHead(seq, 0, 0)->position, SealingPosition(2024, 512));
  EXPECT_EQ(index->DescribeHead(fork, 0, 0)->position, 576);
  const int64_t zone = index->DescribeHead(seq, 0, 0)->zone_end - index->DescribeHead(seq, 0, 0)->zone_begin;
  EXPECT_EQ(index->stats().reencoded_keys, 2 * zone);
  // As if they had been encoded so from the first.
  const SequenceHandle fresh = Filled(index.get(), 2024);
  EXPECT_EQ(index->DescribeHead(fresh, 0, 0)->position, SealingPosition(2024, 512));
  EXPECT_TRUE(SameAnswers(Probe(*index, seq, 1), Probe(*index, fresh, 1)));
  EXPECT_EQ(index->GetSequence(seq)->code_bytes, index->GetSequence(fresh)->code_bytes);
  EXPECT_EQ(index->stats().code_bytes,
            2 * index->GetSequence(fresh)->code_bytes + index->GetSequence(fork)->code_bytes);
}

// Whatever the steps and the horizon, codes that serve the length answer right after them: nothing is left to the
// background by then. Doubling costs a key at most two encodings more, the first answer one. Another one: a job of the
// background that was planned before a doubling may end behind it, and its keys are encoded again.
TEST_F(BalancedTest, APromptInStepsIsFinishedBeforeTheFirstAnswer) {
  constexpr int64_t kTokens = 4096;
  for (const int64_t horizon : {int64_t{512}, kDefaultHorizon}) {
    IndexConfig config = BalancedConfig(model_, profile_);
    config.codec.horizon = horizon;
    auto index = MakeIndex(config, backend_.get());
    for (const int64_t step : {64, 500, 1024}) {
      const int64_t before = index->stats().reencoded_keys;
      const SequenceHandle seq = *index->CreateSequence("");
      for (int64_t at = 0; at < kTokens; at += step) {
        ASSERT_TRUE(AppendModel(index.get(), model_, seq, at, std::min(step, kTokens - at)).ok());
      }
      for (int layer = 0; layer < 2; ++layer) {
        EXPECT_FALSE(Probe(*index, seq, layer)[0].codes_stale);
        const int64_t position = index->DescribeHead(seq, layer, 0)->position;
        EXPECT_GT(2 * position, kTokens) << horizon << " " << step;
        EXPECT_GE(position + horizon, kTokens) << horizon << " " << step;
      }
      EXPECT_LE(index->stats().reencoded_keys - before, 4 * 2 * kTokens) << horizon << " " << step;
      ASSERT_TRUE(index->DeleteSequence(seq).ok());
    }
  }
}

TEST_F(BalancedTest, APromptInTwoAppendsAnswersAsInOne) {
  constexpr int64_t kTokens = 4096;
  for (const int64_t horizon : {int64_t{512}, kDefaultHorizon}) {
    IndexConfig config = BalancedConfig(model_, profile_);
    config.codec.horizon = horizon;
    auto index = MakeIndex(config, backend_.get());
    const SequenceHandle once = Filled(index.get(), kTokens), twice = Filled(index.get(), 1024);
    ASSERT_TRUE(AppendModel(index.get(), model_, twice, 1024, kTokens - 1024).ok());
    EXPECT_TRUE(SameAnswers(Probe(*index, twice, 1), Probe(*index, once, 1))) << horizon;
    EXPECT_EQ(index->DescribeHead(twice, 1, 0)->position, SealingPosition(kTokens, horizon));
  }
}

// While it grows too: at no length are the codes made for less than half of it, or for a horizon that has ended.
TEST_F(BalancedTest, APromptInStepsIsAnsweredWell) {
  IndexConfig config = BalancedConfig(model_, profile_);
  config.codec.horizon = 1024;
  auto index = MakeIndex(config, backend_.get());
  const SequenceHandle seq = *index->CreateSequence("");
  for (int64_t at = 0; at < 6000; at += 200) {
    ASSERT_TRUE(AppendModel(index.get(), model_, seq, at, 200).ok());
    EXPECT_FALSE(Probe(*index, seq, 0)[0].codes_stale) << at;
    const int64_t position = index->DescribeHead(seq, 0, 0)->position, length = at + 200;
    if (position < 0) continue;  // nothing is encoded yet
    EXPECT_LT(length, 2 * position);
    EXPECT_LE(length, position + config.codec.horizon);
  }
}

// Without stored keys there is nothing to encode from, and under a fixed p nothing is outgrown.
TEST_F(BalancedTest, WhatNeedNotOrCannotBeEncodedAnewStays) {
  IndexConfig none = BalancedConfig(model_, profile_, KvStore::kNone), fixed = BalancedConfig(model_, profile_);
  none.codec.horizon = fixed.codec.horizon = 512;
  fixed.codec.query_position = 600;
  for (const IndexConfig* config : {&none, &fixed}) {
    auto index = MakeIndex(*config, backend_.get());
    const SequenceHandle seq = Filled(index.get(), 600);
    const int64_t position = index->DescribeHead(seq, 0, 0)->position;
    ASSERT_TRUE(AppendModel(index.get(), model_, seq, 600, 1400).ok());
    WaitForBackground(*index);
    EXPECT_EQ(index->stats().reencoded_layers, 0);
    EXPECT_EQ(index->DescribeHead(seq, 0, 0)->position, position);
    EXPECT_EQ(Probe(*index, seq, 0)[0].codes_stale, config == &none);
  }
}

// Old codes and new ones lie side by side for a while. Where there is no memory for that the old ones stay, until an
// append finds it.
TEST_F(BalancedTest, EncodingAnewWaitsForMemory) {
  constexpr int64_t kLimit = int64_t{64} << 20;
  auto budget = std::make_shared<MemoryBudget>(kLimit);
  IndexConfig config = BalancedConfig(model_, profile_);
  config.codec.horizon = 512;
  auto index = MakeIndex(config, backend_.get(), budget);
  const SequenceHandle seq = Filled(index.get(), 600);
  ASSERT_TRUE(AppendModel(index.get(), model_, seq, 600, 488).ok());  // to the horizon's last token
  const int64_t left = kLimit - budget->used_bytes();
  ASSERT_TRUE(budget->TryReserve(left));
  ASSERT_TRUE(AppendModel(index.get(), model_, seq, 1088, 1).ok());  // into room that is there
  WaitForBackground(*index);
  EXPECT_EQ(index->stats().reencoded_layers, 0);
  EXPECT_EQ(index->DescribeHead(seq, 0, 0)->position, 576);
  EXPECT_FALSE(Probe(*index, seq, 0)[0].positions[0].empty());
  EXPECT_TRUE(Probe(*index, seq, 0)[0].codes_stale);
  EXPECT_EQ(budget->used_bytes(), kLimit);
  ASSERT_TRUE(AppendModel(index.get(), model_, seq, 1089, 20).ok());  // a prompt's: the answer would wait, in vain
  EXPECT_TRUE(Probe(*index, seq, 0)[0].codes_stale);
  EXPECT_EQ(budget->used_bytes(), kLimit);
  budget->Release(left);
  ASSERT_TRUE(AppendModel(index.get(), model_, seq, 1109, 1).ok());
  AwaitReencoded(*index, 2);
  EXPECT_EQ(index->DescribeHead(seq, 0, 0)->position, SealingPosition(1110, 512));
  EXPECT_FALSE(Probe(*index, seq, 0)[0].codes_stale);
}

// Appends, cuts, forks, deletions and searches run while layers are encoded anew; in the end every sequence answers as
// one that was encoded in one piece at the same p.
TEST_F(BalancedTest, EncodesAnewUnderLoad) {
  IndexConfig config = BalancedConfig(model_, profile_);
  config.codec.horizon = 512;
  auto index = MakeIndex(config, backend_.get());
  std::atomic<bool> stop{false};
  const std::string rows = model_.KeyRows(0, 6000);  // of both heads, 2 bytes each
  const int64_t token_bytes = static_cast<int64_t>(rows.size()) / 6000;
  const auto append = [&](const SequenceHandle& seq, int64_t first, int64_t count) {
    for (int layer = 0; layer < 2; ++layer) {
      const TensorView view{rows.data() + first * token_bytes, count, static_cast<size_t>(count * token_bytes)};
      ASSERT_TRUE(index->Append(seq, layer, first, view, {}).ok());
    }
  };
  const auto grow = [&](int seed) {
    const SequenceHandle seq = *index->CreateSequence(std::to_string(seed));
    std::mt19937 random(seed);
    for (int64_t length = 0; length < 5000;) {
      const int64_t count = 1 + static_cast<int64_t>(random() % 400);
      append(seq, length, count);
      length += count;
      if (random() % 8 == 0) {
        length -= static_cast<int64_t>(random()) % std::min<int64_t>(length, 700);
        ASSERT_TRUE(index->Truncate(seq, length).ok());
      }
      if (random() % 8 == 0) {
        const SequenceHandle fork = *index->Fork(seq, "", -1);
        append(fork, length, 100);
        ASSERT_TRUE(index->DeleteSequence(fork).ok());
      }
    }
  };
  std::vector<std::thread> growing;
  for (int seed = 1; seed <= 2; ++seed) growing.emplace_back(grow, seed);
  std::thread searching([&] {
    uint64_t seed = 0;
    while (!stop) {
      for (const SequenceInfo& info : index->ListSequences()) {
        // As the profile describes them: others would have the layer encoded anew for themselves.
        const std::vector<float> queries = model_.Query(info.layer_tokens[1], ++seed);
        const ItemAnswer answer = index->Retrieve({{info.handle, 1, queries.data()}}, index->config().search)->at(0);
        ASSERT_TRUE(answer.status.ok() || absl::IsNotFound(answer.status)) << answer.status;
      }
    }
  });
  for (std::thread& thread : growing) thread.join();
  stop = true;
  searching.join();
  WaitForBackground(*index);  // else a layer might be encoded anew between two looks at a sequence
  for (const SequenceInfo& info : index->ListSequences()) {
    const int64_t length = info.layer_tokens[1];
    IndexConfig pinned = config;
    pinned.codec.query_position = index->DescribeHead(info.handle, 1, 0)->position;
    EXPECT_GE(*pinned.codec.query_position + 512, length);
    EXPECT_EQ(index->DescribeHead(info.handle, 1, 0)->query_moments, "profile");
    auto once = MakeIndex(pinned, backend_.get());
    const SequenceHandle same = Filled(once.get(), length);
    EXPECT_TRUE(SameAnswers(Probe(*index, info.handle, 1), Probe(*once, same, 1)))
        << length << " " << *pinned.codec.query_position << " now " << index->DescribeHead(info.handle, 1, 0)->position;
  }
  EXPECT_GE(index->stats().reencoded_layers, 4);
}

struct BadCase {
  std::string starts;
  std::function<void(IndexConfig*)> spoil;
};

TEST_F(BalancedTest, EverySettingWrongOnce) {
  const auto other = [](const std::function<void(Geometry*)>& change) {
    Geometry geometry = SmallGeometry();
    change(&geometry);
    return MadeUpModel(geometry).Measure(256);
  };
  Profile silent = *profile_;
  silent.layers[1].k_residual[1].setZero();
  const auto without_keys = std::make_shared<const Profile>(silent);
  const std::vector<BadCase> cases = {
      {"codec.profile: ", [](IndexConfig* c) { c->codec.profile = nullptr; }},
      {"codec.profile: ", [&](IndexConfig* c) { c->codec.profile = other([](Geometry* g) { g->num_layers = 1; }); }},
      {"codec.profile: ", [&](IndexConfig* c) { c->codec.profile = other([](Geometry* g) { g->num_q_heads = 2; }); }},
      {"codec.profile: ", [&](IndexConfig* c) { c->codec.profile = other([](Geometry* g) { g->num_kv_heads = 4; }); }},
      {"codec.profile: ", [&](IndexConfig* c) { c->codec.profile = other([](Geometry* g) { g->head_dim = 128; }); }},
      {"codec.profile: no moments of layer 1, KV head 1", [&](IndexConfig* c) { c->codec.profile = without_keys; }},
      {"codec.profile: 129 characters", [](IndexConfig* c) { c->codec.profile_name = std::string(129, 'x'); }},
      {"codec.horizon: ", [](IndexConfig* c) { c->codec.horizon = 511; }},
      {"codec.horizon: ", [](IndexConfig* c) { c->codec.horizon = int64_t{1} << 40; }},
      {"codec.horizon: given, but geometry.rope is not",
       [&](IndexConfig* c) { c->geometry.rope = Rope(), c->codec.horizon = 4096; }},
      {"codec.query_position: ", [](IndexConfig* c) { c->codec.query_position = -1; }},
      {"codec.query_position: given, but geometry.rope is not",
       [](IndexConfig* c) { c->geometry.rope = Rope(), c->codec.query_position = 5; }},
      {"codec.coarse_bits: ", [](IndexConfig* c) { c->codec.coarse_bits = .75; }},
      {"codec.total_bits: 2 is not above coarse_bits, 2", [](IndexConfig* c) { c->codec.coarse_bits = 2; }},
      {"codec.coarse_bits: 2 at head_dim 192 is more than the 256 bits",
       [](IndexConfig* c) { c->geometry.rope = Rope(), c->geometry.head_dim = 192, c->codec.coarse_bits = 2; }},
      {"codec.coarse_bits: 1 at head_dim 512 is more than the 256 bits",
       [](IndexConfig* c) { c->geometry.rope = Rope(), c->geometry.head_dim = 512; }},
      {"codec.total_bits: 2 at head_dim 512 is more than the 64 bytes",
       [](IndexConfig* c) { c->geometry.rope = Rope(), c->geometry.head_dim = 512, c->codec.coarse_bits = .5; }},
      {"codec.total_bits: 1 is not above coarse_bits, 1", [](IndexConfig* c) { c->codec.total_bits = 1; }},
      {"codec.total_bits: 0.875 is no multiple of 0.125 in [1, 4]",
       [](IndexConfig* c) { c->codec.coarse_bits = .5, c->codec.total_bits = .875; }},
      {"codec.total_bits: ", [](IndexConfig* c) { c->codec.total_bits = 4.125; }},
      {"codec.total_bits: ", [](IndexConfig* c) { c->codec.total_bits = 2.1; }},
      {"codec.total_bits: ", [](IndexConfig* c) { c->codec.total_bits = NAN; }},
      {"codec.total_bits: ",
       [](IndexConfig* c) { c->geometry.rope = Rope(), c->geometry.head_dim = 256, c->codec.total_bits = 2.125; }},
      {"codec.centre: ", [](IndexConfig* c) { c->codec.centre = Centre::kGlobal; }},
      {"codec.centre_window: ", [](IndexConfig* c) { c->codec.centre_window = 32; }},
      {"retrieval.coarse: ", [](IndexConfig* c) { c->search.coarse = Coarse::kCollision; }},
      {"geometry.rope: not stated", [](IndexConfig* c) { c->geometry.rope = Rope(); }},
      {"geometry.rope: layer 0 turns 16 of 32 pairs of coordinates, and the profile's turns 32",
       [](IndexConfig* c) { std::fill_n(c->geometry.rope.inv_freq.begin() + 16, 16, 0); }},
      {"geometry.layer_ropes: layer 1 turns 0 of 32 pairs of coordinates, and the profile's turns 32",
       [](IndexConfig* c) { c->geometry.layer_ropes[1].inv_freq.resize(32); }},
      {"geometry.layer_ropes: layer 2: the model has 2 layers",
       [](IndexConfig* c) { c->geometry.layer_ropes[2].inv_freq.resize(32); }},
      {"geometry.layer_ropes: 31 frequencies", [](IndexConfig* c) { c->geometry.layer_ropes[1].inv_freq.resize(31); }},
      {"geometry.rope.rotary_dim: 66 is no even number", [](IndexConfig* c) { c->geometry.rope.rotary_dim = 66; }},
      {"geometry.rope.inv_freq: turns pairs behind", [](IndexConfig* c) { c->geometry.rope.rotary_dim = 32; }},
      {"geometry.rope.inv_freq: ", [](IndexConfig* c) { c->geometry.rope.inv_freq.pop_back(); }},
      {"geometry.rope.inv_freq: ", [](IndexConfig* c) { c->geometry.rope.inv_freq[3] = NAN; }},
      {"geometry.rope.style: ", [](IndexConfig* c) { c->geometry.rope.style = static_cast<Rope::Style>(2); }},
      // rsq takes none of it.
      {"codec.profile: ", [](IndexConfig* c) { c->codec.name = "rsq"; }},
      {"codec.horizon: ", [](IndexConfig* c) { c->codec = CodecConfig(), c->codec.horizon = 4096; }},
      {"codec.coarse_bits: ", [](IndexConfig* c) { c->codec = CodecConfig(), c->codec.coarse_bits = .5; }},
      {"codec.total_bits: ", [](IndexConfig* c) { c->codec = CodecConfig(), c->codec.total_bits = 3; }},
      {"codec.query_position: ", [](IndexConfig* c) { c->codec = CodecConfig(), c->codec.query_position = 3; }},
  };
  for (const BadCase& test : cases) {
    IndexConfig config = BalancedConfig(model_, profile_);
    ASSERT_TRUE(Validate(config).ok()) << Validate(config);
    test.spoil(&config);
    const absl::Status status = Index::Create(config, backend_.get()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.starts;
    EXPECT_EQ(status.message().substr(0, test.starts.size()), test.starts) << status;
  }
}

}  // namespace
}  // namespace seine
