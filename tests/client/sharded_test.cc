// A sequence over several shards against the same tokens on one node: exact answers are the node's, for random shapes;
// and what is left when a shard fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/sharded/sharded_sequence.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine {
namespace {

using client::Attended;
using client::ShardedOptions;
using client::ShardedSequence;
using client::StripeMap;

TEST(StripeMap, PositionsAndRowsAreOneToOne) {
  for (const int shards : {1, 2, 3, 5}) {
    const StripeMap map(shards, 64);
    std::vector<int64_t> rows(shards, 0);
    for (int64_t p = 0; p < 1000; ++p) {
      const int s = map.ShardOf(p);
      EXPECT_EQ(map.RowOf(p), rows[s]);
      EXPECT_EQ(map.PositionOf(s, rows[s]), p);
      for (int other = 0; other < shards; ++other) EXPECT_EQ(map.RowsBefore(other, p), rows[other]);
      EXPECT_EQ(map.HeldBy(rows), p);
      EXPECT_EQ(map.RunEnd(p), (p / 64 + 1) * 64);
      ++rows[s];
    }
    if (shards > 1) {
      ++rows[map.ShardOf(1000 + 64)];  // one ahead of the others
      EXPECT_EQ(map.HeldBy(rows), 1000);
    }
  }
}

TEST(ShardTopK, IsAShareAndHalfAsMuchAgain) {
  EXPECT_EQ(client::ShardTopK(100, 1), 100);
  EXPECT_EQ(client::ShardTopK(100, 2), 83);
  EXPECT_EQ(client::ShardTopK(100, 8), 27);
  EXPECT_EQ(client::ShardTopK(5, 8), 5);
}

// Three servers; shards beyond them share one.
class ShardedTest : public testing::Test {
 protected:
  static constexpr int kServers = 3;
  static void SetUpTestSuite() {
    for (int i = 0; i < kServers; ++i) {
      servers_[i] = new Server();
      clients_[i] = servers_[i]->Connect().release();
      ASSERT_NE(clients_[i], nullptr);
    }
  }
  static void TearDownTestSuite() {
    for (int i = 0; i < kServers; ++i) {
      delete clients_[i];
      delete servers_[i];
    }
  }
  static std::vector<client::Client*> Shards(int count) {
    std::vector<client::Client*> shards;
    for (int s = 0; s < count; ++s) shards.push_back(clients_[s % kServers]);
    return shards;
  }
  // Sink 64, local 96, zones in steps of 64.
  static v1::IndexSpec Spec(int local = 96, int dense_threshold = 256) {
    v1::IndexSpec spec = RandomModel::Spec(absl::StrCat("m", ++indexes_), v1::KV_STORE_KEYS_VALUES);
    spec.mutable_zones()->set_sink(64);
    spec.mutable_zones()->set_local(local);
    spec.mutable_zones()->set_dense_threshold(dense_threshold);
    return spec;
  }
  // The same on one node, of the index's name and ".one".
  static client::Sequence OneNode(v1::IndexSpec spec, const RandomModel& model, int64_t tokens) {
    spec.mutable_name()->append(".one");
    EXPECT_TRUE(clients_[0]->CreateIndex(spec).ok());
    const client::Sequence one = *clients_[0]->CreateSequence(spec.name(), "one");
    EXPECT_TRUE(clients_[0]->AppendStream({{one, 1, 0, model.Keys(1, 0, tokens), model.Values(1, 0, tokens)}}).ok());
    return one;
  }
  static void Append(ShardedSequence* sequence, const RandomModel& model, int64_t from, int64_t to) {
    const auto length = sequence->Append(1, from, model.Keys(1, from, to - from), model.Values(1, from, to - from));
    ASSERT_TRUE(length.ok()) << length.status();
    ASSERT_EQ(*length, to);
  }
  static void ExpectNear(const Attended& got, const Attended& want) {
    ASSERT_EQ(got.output.size(), want.output.size());
    for (size_t h = 0; h < want.log_sum_exp.size(); ++h) EXPECT_NEAR(got.log_sum_exp[h], want.log_sum_exp[h], 1e-5);
    for (size_t i = 0; i < want.output.size(); ++i) ASSERT_NEAR(got.output[i], want.output[i], 1e-5) << i;
  }

  static Server* servers_[kServers];
  static client::Client* clients_[kServers];
  static int indexes_;
};
Server* ShardedTest::servers_[kServers] = {};
client::Client* ShardedTest::clients_[kServers] = {};
int ShardedTest::indexes_ = 0;

std::vector<int32_t> Set(const client::Answer& answer, int set) {
  return {answer.set(set).begin(), answer.set(set).end()};
}

// Runs, windows over several shards, shards without tokens, whatever top_k.
TEST_F(ShardedTest, ExactAnswersAreThoseOfOneNode) {
  std::mt19937 random(3);
  const auto pick = [&](std::vector<int> values) { return values[random() % values.size()]; };
  for (int round = 0; round < 15; ++round) {
    const int shards = 1 + round % 5, run = pick({64, 128, 192, 256}), local = pick({0, 1, 96, 300});
    const int64_t tokens = pick({1, 63, 65, 255, 256, 500, 777, 1200});
    const v1::IndexSpec spec = Spec(local, pick({0, 256}));
    SCOPED_TRACE(absl::StrCat("round ", round, ": ", shards, " shards, runs of ", run, ", local ", local, ", ", tokens,
                              " tokens, dense below ", spec.zones().dense_threshold()));
    const RandomModel model(tokens, round);
    const client::Sequence one = OneNode(spec, model, tokens);
    const auto made = ShardedSequence::Create(Shards(shards), spec, "s", {.run = run});
    ASSERT_TRUE(made.ok()) << made.status();
    const int64_t first = static_cast<int64_t>(random() % tokens);
    if (first > 0) Append(made->get(), model, 0, first);
    Append(made->get(), model, first, tokens);
    for (const v1::Scope scope : {v1::SCOPE_PER_Q_HEAD, v1::SCOPE_PER_KV_HEAD}) {
      v1::Selector selector;
      selector.set_top_k(pick({1, 7, 100, 2000}));
      selector.set_exact(true);
      selector.set_with_scores(true);
      selector.set_scope(scope);
      if (scope == v1::SCOPE_PER_KV_HEAD) selector.set_gqa_reduce(v1::GQA_REDUCE_MAX);
      v1::Attention attention;
      attention.set_with_positions(true);
      const auto want = clients_[0]->Attend({{one, 1, model.Query()}}, selector, attention);
      const auto got = (*made)->Attend(1, model.Query(), selector, attention);
      ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
      const Attended& node = want->answers[0];
      ExpectNear(*got, node);
      EXPECT_EQ(got->path, node.path);
      EXPECT_EQ(got->num_tokens, tokens);
      EXPECT_EQ(got->attended_tokens, node.attended_tokens);
      const auto found = (*made)->Retrieve(1, model.Query(), selector);
      ASSERT_TRUE(found.ok()) << found.status();
      for (const client::Answer* answer : {&*found, &got->selected}) {
        EXPECT_EQ(answer->zone_begin, node.selected.zone_begin);
        EXPECT_EQ(answer->zone_end, node.selected.zone_end);
        EXPECT_EQ(answer->all_returned, node.selected.all_returned);
        ASSERT_EQ(answer->num_sets, node.selected.num_sets);
        for (int s = 0; s < answer->num_sets; ++s) EXPECT_EQ(Set(*answer, s), Set(node.selected, s));
      }
    }
  }
}

// Equal keys everywhere: the lowest positions are answered, wherever they lie.
TEST_F(ShardedTest, TiesGoToTheLowestPosition) {
  RandomModel model(600);
  for (int64_t t = 1; t < 600; ++t) {
    std::copy_n(model.keys[1].begin(), RandomModel::kRow, model.keys[1].begin() + t * RandomModel::kRow);
  }
  const auto made = *ShardedSequence::Create(Shards(3), Spec(), "s", {.run = 64});
  Append(made.get(), model, 0, 600);
  v1::Selector selector;
  selector.set_top_k(100);
  selector.set_exact(true);
  const auto found = made->Retrieve(1, model.Query(), selector);
  ASSERT_TRUE(found.ok()) << found.status();
  for (int s = 0; s < found->num_sets; ++s) {
    for (int i = 0; i < 100; ++i) ASSERT_EQ(found->set(s)[i], 64 + i);
  }
}

// Token by token, in one round trip each; the answer is that of attention over everything.
TEST_F(ShardedTest, StepsAppendAndAttend) {
  const RandomModel model(420);
  const auto made = *ShardedSequence::Create(Shards(2), Spec(), "s", {.run = 64});
  const client::Sequence one = OneNode(Spec(), model, 420);
  Append(made.get(), model, 0, 380);
  client::ShardedStep step;
  step.layer = 1;
  step.queries = model.Query();
  step.selector.set_top_k(1000);
  absl::StatusOr<Attended> answer;
  for (int64_t p = 380; p < 420; ++p) {
    step.position = p;
    step.keys = model.Keys(1, p, 1), step.values = model.Values(1, p, 1);
    step.selector.set_exact(p % 2 == 0);
    answer = made->Step(step);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->num_tokens, p + 1);
    EXPECT_EQ(answer->attended_tokens, RandomModel::kQHeads * (p + 1));
  }
  const auto want = clients_[0]->Attend({{one, 1, model.Query()}}, step.selector, {});
  ExpectNear(*answer, want->answers[0]);
  answer = made->Step(step);  // a replay
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->num_tokens, 420);
}

// By the index: the whole's best are chosen, then attended, and the tail is counted in as on one node.
TEST_F(ShardedTest, ChosenFirstAsManyTokensAreAttendedAsOnOneNode) {
  const RandomModel model(1500);
  const v1::IndexSpec spec = Spec();
  const client::Sequence one = OneNode(spec, model, 1500);
  for (const bool choose_first : {true, false}) {
    const auto made =
        *ShardedSequence::Create(Shards(3), spec, choose_first ? "c" : "s", {.run = 128, .choose_first = choose_first});
    Append(made.get(), model, 0, 1500);
    v1::Selector selector;
    selector.set_top_k(64);
    const auto node = clients_[0]->Attend({{one, 1, model.Query()}}, selector, {})->answers[0];
    v1::Attention attention;
    attention.set_with_positions(true);
    const auto got = made->Attend(1, model.Query(), selector, attention);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(got->tail);
    EXPECT_EQ(got->path, client::SearchMode::kIndex);
    const int64_t found = choose_first ? 64 : 3 * client::ShardTopK(64, 3);
    EXPECT_EQ(got->attended_tokens, node.attended_tokens + RandomModel::kQHeads * (found - 64));
    ASSERT_EQ(got->selected.num_sets, RandomModel::kQHeads);
    for (const int32_t count : got->selected.counts) EXPECT_EQ(count, found);
    for (size_t h = 0; h < node.log_sum_exp.size(); ++h) {
      // The tail stands for what is left, and for less of it where more is found.
      EXPECT_NEAR(got->log_sum_exp[h], node.log_sum_exp[h], choose_first ? .1 : .5);
    }
  }
}

TEST_F(ShardedTest, ForksTruncatesReopensAndDeletes) {
  const RandomModel model(700), other(700, 8);
  const v1::IndexSpec spec = Spec();
  const ShardedOptions options = {.run = 128};
  const auto made = *ShardedSequence::Create(Shards(5), spec, "s", options);
  Append(made.get(), model, 0, 700);
  auto fork = made->Fork("f", 300);
  ASSERT_TRUE(fork.ok()) << fork.status();
  EXPECT_EQ((*fork)->num_tokens(1), 300);
  Append(fork->get(), other, 300, 700);
  ASSERT_TRUE(made->Truncate(450).ok());
  EXPECT_EQ(made->num_tokens(1), 450);
  EXPECT_EQ(client::FieldOf(made->Truncate(451)), "position");
  Append(made.get(), model, 450, 600);
  const auto again = ShardedSequence::Open(Shards(5), spec, "s", options);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->num_tokens(1), 600);
  EXPECT_EQ((*again)->num_tokens(0), 0);
  const std::vector<int32_t> positions = {599, 0, 127, 128, 450};
  const auto rows = (*again)->Gather(1, 1, positions, true, true);
  ASSERT_TRUE(rows.ok()) << rows.status();
  for (size_t i = 0; i < positions.size(); ++i) {
    const auto* key = reinterpret_cast<const float*>(rows->keys.data()) + i * RandomModel::kHeadDim;
    EXPECT_EQ(key[3], model.keys[1][positions[i] * RandomModel::kRow + RandomModel::kHeadDim + 3]);
  }
  EXPECT_EQ(client::FieldOf((*again)->Gather(1, 0, {600}, true, false).status()), "positions");
  EXPECT_EQ((*fork)->num_tokens(1), 700);
  EXPECT_TRUE(absl::IsAlreadyExists(made->Fork("f", {}).status()));  // and nothing of it stays
  ASSERT_TRUE((*fork)->Delete().ok());
  EXPECT_TRUE((*fork)->Delete().ok());
  ASSERT_TRUE(made->Delete().ok());
  EXPECT_TRUE(absl::IsNotFound(ShardedSequence::Open(Shards(5), spec, "s", options).status()));
  EXPECT_TRUE(clients_[0]->ListSequences(spec.name())->empty());
  for (client::Client* client : Shards(3)) EXPECT_TRUE(client->ListSequences(spec.name() + ".rest")->empty());
}

TEST_F(ShardedTest, WhatCannotBeIsRefused) {
  const auto field = [&](const std::function<void(v1::IndexSpec*)>& change, ShardedOptions options = {}) {
    v1::IndexSpec spec = Spec();
    change(&spec);
    return client::FieldOf(ShardedSequence::Create(Shards(2), spec, "s", options).status());
  };
  const auto nothing = [](v1::IndexSpec*) {};
  EXPECT_EQ(client::FieldOf(ShardedSequence::Create({}, Spec(), "s").status()), "shards");
  EXPECT_EQ(field(nothing, {.run = 100}), "run");
  EXPECT_EQ(field([](auto* s) { s->mutable_zones()->set_sink(16); }), "zones.sink");
  EXPECT_EQ(field([](auto* s) { s->mutable_zones()->set_sink(128); }, {.run = 64}), "zones.sink");
  EXPECT_EQ(field([](auto* s) { s->mutable_zones()->set_update_buffer(100); }), "zones.update_buffer");
  EXPECT_EQ(field([](auto* s) { s->mutable_zones()->set_local(-1); }), "zones.local");
  EXPECT_EQ(field([](auto* s) { s->mutable_codec()->set_centre_window(128); }), "codec.centre_window");
  EXPECT_EQ(field([](auto* s) { s->mutable_subspace(); }), "subspace");
  EXPECT_EQ(field([](auto* s) { s->mutable_eviction(); }), "eviction");

  const v1::IndexSpec spec = Spec();
  const RandomModel model(300);
  const auto made = *ShardedSequence::Create(Shards(2), spec, "s", {.run = 64});
  v1::IndexSpec wider = spec;
  wider.mutable_geometry()->set_head_dim(128);
  EXPECT_EQ(client::FieldOf(ShardedSequence::Create(Shards(2), wider, "t").status()), "geometry.head_dim");
  EXPECT_TRUE(absl::IsAlreadyExists(ShardedSequence::Create(Shards(2), spec, "s").status()));
  Append(made.get(), model, 0, 300);
  v1::Selector mass, summed;
  mass.mutable_mass_p();
  summed.set_scope(v1::SCOPE_PER_KV_HEAD);
  EXPECT_EQ(client::FieldOf(made->Retrieve(1, model.Query(), mass).status()), "selector.mass_p");
  EXPECT_EQ(client::FieldOf(made->Attend(1, model.Query(), summed).status()), "selector.gqa_reduce");
  EXPECT_EQ(client::FieldOf(made->Attend(2, model.Query(), {}).status()), "layer");
  EXPECT_EQ(client::FieldOf(made->Append(1, 301, model.Keys(1, 0, 1), model.Values(1, 0, 1)).status()), "position");
  EXPECT_EQ(client::FieldOf(made->Append(1, 300, model.Query(), {}).status()), "keys.shape");
  EXPECT_TRUE(absl::IsAlreadyExists(made->Append(1, 64, model.Keys(1, 0, 1), model.Values(1, 0, 1)).status()));
}

// One shard has no memory for its part: the others' stays, and the same append sets it right.
TEST_F(ShardedTest, AFailedAppendIsRepeated) {
  v1::IndexSpec spec = Spec();
  spec.set_memory_limit_bytes(4 << 20);
  const RandomModel model(2400), other(64, 9);
  const auto made = *ShardedSequence::Create(Shards(2), spec, "s", {.run = 64});
  Append(made.get(), model, 0, 200);
  const client::Sequence hog = *clients_[1]->CreateSequence(spec.name() + ".rest", "hog");
  absl::Status full;
  for (int64_t at = 0; full.ok() && at < 8000; at += 64) {
    full = clients_[1]->Append({hog, 1, at, other.Keys(1, 0, 64), other.Values(1, 0, 64)}).status();
  }
  ASSERT_TRUE(absl::IsResourceExhausted(full)) << full;
  const auto append = [&] { return made->Append(1, 200, model.Keys(1, 200, 2200), model.Values(1, 200, 2200)); };
  const absl::Status failed = append().status();
  EXPECT_TRUE(absl::IsResourceExhausted(failed)) << failed;
  EXPECT_TRUE(absl::StartsWith(failed.message(), "shard 1: ")) << failed;
  EXPECT_TRUE(absl::EndsWith(failed.message(), "append again from position 200")) << failed;
  EXPECT_EQ(made->num_tokens(1), 200);
  // Shard 0 is ahead, which nobody is to take for an answer.
  EXPECT_TRUE(absl::IsFailedPrecondition(made->Attend(1, model.Query(), {}).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(made->Fork("f", {}).status()));
  ASSERT_TRUE(made->Sync().ok());
  EXPECT_GE(made->num_tokens(1), 200);
  EXPECT_TRUE(absl::IsFailedPrecondition(made->Attend(1, model.Query(), {}).status()));
  ASSERT_TRUE(clients_[1]->DeleteSequence(hog).ok());
  const auto length = append();
  ASSERT_TRUE(length.ok()) << length.status();
  EXPECT_EQ(*length, 2400);
  v1::Selector all;
  all.set_top_k(3000);
  all.set_exact(true);
  const auto answer = made->Attend(1, model.Query(), all);
  ASSERT_TRUE(answer.ok()) << answer.status();
  spec.set_memory_limit_bytes(0);
  ExpectNear(*answer, clients_[0]->Attend({{OneNode(spec, model, 2400), 1, model.Query()}}, all, {})->answers[0]);
}

// Another's tokens on one shard alone, as an append that failed elsewhere leaves them: a truncation takes them away.
TEST_F(ShardedTest, AGapIsTruncatedAway) {
  const RandomModel model(400);
  const v1::IndexSpec spec = Spec();
  const auto made = *ShardedSequence::Create(Shards(2), spec, "s", {.run = 64});
  Append(made.get(), model, 0, 200);  // 128 rows on shard 0, 72 on shard 1
  ASSERT_TRUE(clients_[0]->Append({made->handles()[0], 1, 128, model.Keys(1, 0, 10), model.Values(1, 0, 10)}).ok());
  EXPECT_TRUE(made->Attend(1, model.Query(), {}).ok());  // nobody has told
  ASSERT_TRUE(made->Sync().ok());
  EXPECT_EQ(made->num_tokens(1), 200);
  EXPECT_TRUE(absl::IsFailedPrecondition(made->Attend(1, model.Query(), {}).status()));
  ASSERT_TRUE(made->Truncate(200).ok());
  EXPECT_TRUE(made->Attend(1, model.Query(), {}).ok());
  Append(made.get(), model, 200, 400);
}

TEST(ShardedLossTest, ADeadShardIsNamed) {
  const Server living;
  Server dying;
  ASSERT_NE(dying.Connect(), nullptr);  // it serves
  const auto first = living.Connect();
  const auto second = *client::Client::Connect(dying.endpoint());  // does not wait for a server that is gone
  ASSERT_NE(first, nullptr);
  v1::IndexSpec spec = RandomModel::Spec("m", v1::KV_STORE_KEYS_VALUES);
  spec.mutable_zones()->set_sink(0);
  const std::vector<client::Client*> shards = {first.get(), second.get()};
  const RandomModel model(400);
  const auto made = *ShardedSequence::Create(shards, spec, "s", {.run = 64});
  ASSERT_TRUE(made->Append(1, 0, model.Keys(1, 0, 200), model.Values(1, 0, 200)).ok());
  ASSERT_TRUE(made->Attend(1, model.Query(), {}).ok());
  dying.Kill();
  const auto expect_named = [](const absl::Status& status) {
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(absl::StartsWith(status.message(), "shard 1: ")) << status;
  };
  expect_named(made->Attend(1, model.Query(), {}).status());
  expect_named(made->Retrieve(1, model.Query(), {}).status());
  expect_named(made->Append(1, 200, model.Keys(1, 200, 200), model.Values(1, 200, 200)).status());
  expect_named(made->Gather(1, 0, {64}, true, false).status());
  expect_named(made->Truncate(200));
  expect_named(made->Sync());
  expect_named(made->Delete());
  expect_named(ShardedSequence::Create(shards, spec, "t", {.run = 64}).status());
  EXPECT_TRUE(first->ListSequences("m")->empty());  // nothing of "s" or "t" stays
}

}  // namespace
}  // namespace seine
