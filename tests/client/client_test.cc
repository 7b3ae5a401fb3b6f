// Every call of the client against a real server: what comes back, and how errors arrive.
#include "client/client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"
#include "tests/temp_folder.h"

namespace seine {
namespace {

using client::Client;
using client::Sequence;
using v1::KvStore;

constexpr int kAppended = 600;

class ClientTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new Server({"--max-message", "1MiB", "--snapshots-dir", folder_.Path("snapshots")});
    client_ = server_->Connect().release();
    ASSERT_NE(client_, nullptr);
    ASSERT_TRUE(client_->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS_VALUES)).ok());
  }
  static void TearDownTestSuite() {
    delete client_;
    delete server_;
  }

  // A sequence that holds the model's first tokens in both layers.
  static Sequence Filled(const RandomModel& model, int64_t tokens) {
    const auto sequence = client_->CreateSequence("m", "");
    EXPECT_TRUE(sequence.ok()) << sequence.status();
    for (int layer = 0; layer < RandomModel::kLayers; ++layer) {
      const auto length =
          client_->Append({*sequence, layer, 0, model.Keys(layer, 0, tokens), model.Values(layer, 0, tokens)});
      EXPECT_TRUE(length.ok()) << length.status();
    }
    return *sequence;
  }

  static const TempFolder folder_;
  static Server* server_;
  static Client* client_;
};
const TempFolder ClientTest::folder_;
Server* ClientTest::server_ = nullptr;
Client* ClientTest::client_ = nullptr;

// More than a message holds.
TEST(Pages, AllSequencesAreListed) {
  const Server server({"--max-message", "64KiB"});
  const auto client = server.Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS)).ok());
  for (int i = 0; i < 600; ++i) {
    ASSERT_TRUE(client->CreateSequence("m", absl::StrCat(1000 + i, std::string(120, 'x'))).ok());
  }
  const auto listed = client->ListSequences("m");
  ASSERT_TRUE(listed.ok()) << listed.status();
  ASSERT_EQ(listed->size(), 600u);
  for (int i = 0; i < 600; ++i) EXPECT_EQ((*listed)[i].handle.id.substr(0, 4), absl::StrCat(1000 + i));
}

TEST_F(ClientTest, EvictsScoresAndDiagnoses) {
  const RandomModel model(kAppended);
  const Sequence sequence = Filled(model, kAppended);
  client::EvictRequest request;
  request.sequence = sequence;
  request.scorer.set_name("streaming_llm");
  request.budget.set_tokens(200);
  request.dry_run = true;
  auto evicted = client_->Evict(request);
  ASSERT_TRUE(evicted.ok()) << evicted.status();
  EXPECT_EQ(evicted->kept[0].size(), 200u);
  EXPECT_EQ(evicted->kept[0][4], kAppended - 196);
  EXPECT_EQ(evicted->bytes_freed, 0);
  request.dry_run = false;
  evicted = client_->Evict(request);
  ASSERT_TRUE(evicted.ok()) << evicted.status();
  EXPECT_GT(evicted->bytes_freed, 0);
  const auto head = client_->DescribeHead(sequence, 0, 0);
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->num_tokens, kAppended);
  EXPECT_EQ(head->num_retained, 200);
  v1::ScorerSettings knorm;
  knorm.set_name("knorm");
  const auto scores = client_->Score(sequence, 0, knorm, {});
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_EQ((*scores)[0].positions, evicted->kept[0]);
  const auto diagnosis = client_->Diagnose({sequence, 0, {knorm, {}}});
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_EQ(diagnosis->front().tokens, 200);
  EXPECT_EQ(diagnosis->front().overlap.size(), 4u);
  request.scorer.set_name("snapkv");
  evicted = client_->Evict(request);  // the budget holds what there is: no queries are needed
  ASSERT_TRUE(evicted.ok()) << evicted.status();
  EXPECT_EQ(evicted->tokens_evicted, 0);
  request.budget.set_tokens(100);
  const absl::Status refused = client_->Evict(request).status();
  EXPECT_EQ(client::FieldOf(refused), "given.queries");
  EXPECT_TRUE(client_->DeleteSequence(sequence).ok());
}

// Queries go with the tokens that they are of, whatever pieces an append is cut into.
TEST_F(ClientTest, QueriesOfAnAppendDecideWhoIsEvicted) {
  const RandomModel model(kAppended);
  v1::IndexSpec spec = RandomModel::Spec("own", v1::KV_STORE_KEYS_VALUES);
  v1::EvictionSettings& eviction = *spec.mutable_eviction();
  eviction.mutable_scorer()->set_name("snapkv");
  eviction.mutable_scorer()->set_query_window(8);
  eviction.mutable_budget()->set_tokens(200);
  eviction.set_interval(50);
  eviction.set_keep_queries(12);
  const auto info = client_->CreateIndex(spec);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->spec().eviction().keep_queries(), 12);
  constexpr int64_t kRow = int64_t{RandomModel::kQHeads} * RandomModel::kHeadDim, kFirst = 100;
  std::vector<float> queries((kAppended - kFirst) * kRow);  // of positions from kFirst on
  for (size_t i = 0; i < queries.size(); ++i) queries[i] = static_cast<float>(i * i % 8191) / 4096 - 1;
  const auto item = [&](const Sequence& sequence, int64_t begin, int64_t end) {
    client::AppendItem part = {sequence, 0, begin, model.Keys(0, begin, end - begin),
                               model.Values(0, begin, end - begin)};
    const int64_t from = std::max(begin, kFirst);
    if (from < end) {
      part.queries = {queries.data() + (from - kFirst) * kRow,
                      client::DType::kFloat32,
                      {end - from, RandomModel::kQHeads, RandomModel::kHeadDim}};
    }
    return part;
  };
  const Sequence streamed = *client_->CreateSequence("own", ""), blocks = *client_->CreateSequence("own", "");
  const auto totals = client_->AppendStream({item(streamed, 0, kAppended)});
  ASSERT_TRUE(totals.ok()) << totals.status();
  EXPECT_GT(totals->pieces, 1);
  for (int64_t begin = 0; begin < kAppended; begin += 10) {
    ASSERT_TRUE(client_->Append(item(blocks, begin, begin + 10)).ok());
  }
  v1::ScorerSettings scorer = spec.eviction().scorer();
  const auto one = client_->Score(streamed, 0, scorer, {}), other = client_->Score(blocks, 0, scorer, {});
  ASSERT_TRUE(one.ok() && other.ok()) << one.status() << other.status();
  for (int h = 0; h < RandomModel::kKvHeads; ++h) {
    EXPECT_EQ((*one)[h].positions, (*other)[h].positions);
    EXPECT_EQ((*one)[h].scores, (*other)[h].scores);
    EXPECT_EQ((*one)[h].positions.size(), 200u);
  }
  EXPECT_EQ(client_->GetIndex("own")->query_bytes(), 2 * 12 * kRow * 4);

  client::AppendItem wrong = item(streamed, 0, 10);
  wrong.queries = {queries.data(), client::DType::kFloat32, {11, RandomModel::kQHeads, RandomModel::kHeadDim}};
  EXPECT_TRUE(absl::StartsWith(client_->AppendStream({wrong}).status().message(), "queries.shape: must be"));
  EXPECT_EQ(client::FieldOf(client_->Append(wrong).status()), "item.queries");
  const absl::Status waits =
      client_->Append({blocks, 0, kAppended, model.Keys(0, 0, 60), model.Values(0, 0, 60)}).status();
  EXPECT_EQ(waits.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(client_->DeleteIndex("own").ok());
}

TEST_F(ClientTest, ShowsServerAndIndexes) {
  const auto info = client_->GetServerInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->backend(), "cpu");
  EXPECT_EQ(info->max_message_bytes(), 1 << 20);
  EXPECT_TRUE(*client_->IsServing(""));
  EXPECT_TRUE(*client_->IsServing("seine.v1.RetrievalService"));
  EXPECT_EQ(client_->IsServing("nothing").status().code(), absl::StatusCode::kNotFound);

  v1::IndexSpec spec = RandomModel::Spec("full", v1::KV_STORE_KEYS);
  spec.mutable_codec()->set_name("rsq");
  spec.mutable_codec()->set_seed(5);
  spec.mutable_codec()->set_centre(v1::CENTRE_GLOBAL);
  spec.mutable_codec()->set_centre_window(64);
  spec.mutable_retrieval()->set_top_k(17);
  spec.mutable_retrieval()->set_candidate_fraction(0.25);
  spec.mutable_retrieval()->set_rescore_k(33);
  spec.mutable_retrieval()->set_coarse(v1::COARSE_COLLISION);
  spec.mutable_retrieval()->set_collision_fraction(0.5);
  spec.mutable_retrieval()->set_gqa_reduce(v1::GQA_REDUCE_MAX);
  spec.mutable_retrieval()->set_softmax_scale(0.5f);
  spec.mutable_retrieval()->set_gate(.125);
  spec.set_memory_limit_bytes(1 << 30);
  ASSERT_TRUE(client_->CreateIndex(spec).ok());
  const auto got = client_->GetIndex("full");
  ASSERT_TRUE(got.ok()) << got.status();
  const v1::IndexSpec& back = got->spec();
  EXPECT_EQ(back.name(), "full");
  EXPECT_EQ(back.geometry().num_q_heads(), RandomModel::kQHeads);
  EXPECT_EQ(back.geometry().dtype(), v1::D_TYPE_FLOAT32);
  EXPECT_EQ(back.zones().SerializeAsString(), spec.zones().SerializeAsString());
  v1::CodecSettings codec = back.codec();
  codec.clear_profile();
  EXPECT_EQ(codec.SerializeAsString(), spec.codec().SerializeAsString());
  EXPECT_EQ(back.retrieval().SerializeAsString(), spec.retrieval().SerializeAsString());
  EXPECT_EQ(back.kv_store(), v1::KV_STORE_KEYS);
  EXPECT_EQ(back.memory_limit_bytes(), 1 << 30);
  EXPECT_EQ(client_->ListIndexes()->size(), 2u);
  ASSERT_TRUE(client_->DeleteIndex("full").ok());
  EXPECT_EQ(client_->GetIndex("full").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ClientTest, LeadsASequenceThroughItsLife) {
  const RandomModel model(kAppended);
  const Sequence sequence = Filled(model, kAppended);
  const auto info = client_->GetSequence(sequence);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->layer_tokens, (std::vector<int64_t>{kAppended, kAppended}));
  EXPECT_GT(info->code_bytes, 0);
  EXPECT_EQ(info->handle.id, sequence.id);

  const auto fork = client_->ForkSequence(sequence, "copy", 300);
  ASSERT_TRUE(fork.ok()) << fork.status();
  EXPECT_EQ(client_->GetSequence(*fork)->layer_tokens, (std::vector<int64_t>{300, 300}));
  EXPECT_EQ(client_->GetSequence(*client_->ForkSequence(sequence, "", std::nullopt))->layer_tokens[0], kAppended);
  const auto cut = client_->TruncateSequence(*fork, 200);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->layer_tokens, (std::vector<int64_t>{200, 200}));
  EXPECT_EQ(client_->ListSequences("m")->size(), 3u);

  const auto written = client_->Snapshot(sequence, "family", client::SnapshotScope::kFamily);
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(written->sequences.size(), 3u);
  const auto alone = client_->Snapshot(*fork, "alone", client::SnapshotScope::kSequence);
  ASSERT_TRUE(alone.ok()) << alone.status();
  const auto restored = client_->Restore("m", "alone", "again");
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->bytes, alone->bytes);
  EXPECT_EQ(restored->sequences[0].handle.id, "again");
  EXPECT_EQ(restored->sequences[0].layer_tokens, (std::vector<int64_t>{200, 200}));
  EXPECT_EQ(client_->Restore("m", "none", "").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(client_->DeleteSequence(restored->sequences[0].handle).ok());

  const auto head = client_->DescribeHead(sequence, 1, 1);
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->num_tokens, kAppended);
  EXPECT_EQ(head->zone_begin, 16);
  EXPECT_EQ(head->zone_end, 16 + (kAppended - 16 - 64) / 64 * 64);
  EXPECT_GT(head->bytes_per_key, 0);

  ASSERT_TRUE(client_->DeleteSequence(*fork).ok());
  EXPECT_EQ(client_->GetSequence(*fork).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(client_->CreateSequence("m", "copy").ok());
  EXPECT_EQ(client_->GetSequence(*fork).status().code(), absl::StatusCode::kFailedPrecondition);  // stale generation
}

TEST_F(ClientTest, RetrievesAndGathers) {
  const RandomModel model(kAppended);
  const Sequence sequence = Filled(model, kAppended);
  v1::Selector selector;
  selector.set_top_k(20);
  selector.set_exact(true);
  selector.set_with_scores(true);
  const auto result = client_->Retrieve(
      {{sequence, 0, model.Query()}, {sequence, 1, model.Query()}, {sequence, 9, model.Query()}}, selector);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->answers.size(), 3u);
  for (int layer = 0; layer < 2; ++layer) {
    const client::Answer& answer = result->answers[layer];
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.path, client::SearchMode::kExact);
    EXPECT_EQ(answer.num_tokens, kAppended);
    ASSERT_EQ(answer.num_sets, RandomModel::kQHeads);
    ASSERT_EQ(answer.scores.size(), answer.positions.size());
    for (int head = 0; head < RandomModel::kQHeads; ++head) {
      const auto expected = model.ExactTopK(layer, head, 20, answer.zone_begin, answer.zone_end);
      EXPECT_EQ(std::vector<int32_t>(answer.set(head).begin(), answer.set(head).end()), expected);
    }
  }
  EXPECT_EQ(result->answers[2].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(client::FieldOf(result->answers[2].status), "layer")) << result->answers[2].status;

  const std::vector<int32_t> positions = {599, 0, 17, 17};
  const auto rows = client_->Gather(sequence, 1, 1, positions, true, true);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->count, 4);
  EXPECT_EQ(rows->head_dim, RandomModel::kHeadDim);
  EXPECT_EQ(rows->dtype, client::DType::kFloat32);
  constexpr size_t kRowBytes = RandomModel::kHeadDim * sizeof(float);
  for (size_t i = 0; i < positions.size(); ++i) {
    const size_t offset = positions[i] * RandomModel::kRow + RandomModel::kHeadDim;
    EXPECT_EQ(std::memcmp(rows->keys.data() + i * kRowBytes, model.keys[1].data() + offset, kRowBytes), 0);
    EXPECT_EQ(std::memcmp(rows->values.data() + i * kRowBytes, model.values[1].data() + offset, kRowBytes), 0);
  }
  EXPECT_TRUE(client_->Gather(sequence, 1, 1, positions, true, false)->values.empty());
}

TEST_F(ClientTest, SharesOfTheMassAreSelected) {
  const RandomModel model(kAppended);
  const Sequence sequence = Filled(model, kAppended);
  v1::Selector selector;
  selector.mutable_mass_p()->set_p(.5f);
  selector.mutable_mass_p()->set_floor(3);
  selector.mutable_mass_p()->set_cap(50);
  const auto result = client_->Retrieve({{sequence, 0, model.Query()}}, selector);
  ASSERT_TRUE(result.ok() && result->answers[0].status.ok()) << result.status();
  const client::Answer& answer = result->answers[0];
  for (int32_t count : answer.counts) EXPECT_TRUE(count >= 3 && count <= 50) << count;
  ASSERT_EQ(answer.masses.size(), answer.counts.size());
  for (size_t i = 0; i < answer.masses.size(); ++i) EXPECT_TRUE(answer.masses[i] >= .5f || answer.counts[i] == 50);
  EXPECT_EQ(answer.capped, *std::min_element(answer.masses.begin(), answer.masses.end()) < .5f);
  selector.mutable_mass_p()->set_p(.99f);
  selector.mutable_mass_p()->set_floor(1);
  selector.mutable_mass_p()->set_cap(2);
  const auto tight = client_->Retrieve({{sequence, 0, model.Query()}}, selector);
  ASSERT_TRUE(tight.ok());
  EXPECT_TRUE(tight->answers[0].capped);
  EXPECT_LT(tight->answers[0].masses[0], .99f);
  selector.set_top_k(5);
  const auto five = client_->Retrieve({{sequence, 0, model.Query()}}, selector);  // in place of the mass
  ASSERT_TRUE(five.ok());
  EXPECT_TRUE(five->answers[0].masses.empty());
  for (int32_t count : five->answers[0].counts) EXPECT_EQ(count, 5);
}

TEST_F(ClientTest, AppendStreamCutsItemsBelowTheMessageLimit) {
  constexpr int64_t kMany = 3000;  // 1.5 MB of keys and as much of values a layer; the server takes 1 MiB
  const RandomModel model(kMany);
  const Sequence sequence = *client_->CreateSequence("m", "");
  std::vector<int64_t> heard;
  const std::vector<client::AppendItem> items = {{sequence, 0, 0, model.Keys(0, 0, kMany), model.Values(0, 0, kMany)},
                                                 {sequence, 1, 0, model.Keys(1, 0, kMany), model.Values(1, 0, kMany)}};
  const auto totals = client_->AppendStream(items, [&](int64_t tokens) { heard.push_back(tokens); });
  ASSERT_TRUE(totals.ok()) << totals.status();
  EXPECT_EQ(totals->tokens, 2 * kMany);
  EXPECT_GE(totals->pieces, 6);
  EXPECT_EQ(heard.size(), static_cast<size_t>(totals->pieces));
  EXPECT_EQ(heard.back(), 2 * kMany);
  std::vector<int32_t> all(kMany);
  for (int i = 0; i < kMany; ++i) all[i] = i;
  for (int begin = 0; begin < kMany; begin += 1000) {
    const auto rows = client_->Gather(sequence, 0, 1, absl::MakeConstSpan(all).subspan(begin, 1000), true, false);
    ASSERT_TRUE(rows.ok()) << rows.status();
    for (int i = 0; i < 1000; ++i) {
      const float* expected = model.keys[0].data() + (begin + i) * RandomModel::kRow + RandomModel::kHeadDim;
      ASSERT_EQ(std::memcmp(rows->keys.data() + i * 256, expected, 256), 0) << begin + i;
    }
  }
}

TEST_F(ClientTest, AFailingPieceLeavesThoseBeforeIt) {
  const RandomModel model(kAppended);
  const Sequence sequence = *client_->CreateSequence("m", "");
  const std::vector<client::AppendItem> gap = {{sequence, 0, 0, model.Keys(0, 0, 100), model.Values(0, 0, 100)},
                                               {sequence, 0, 101, model.Keys(0, 101, 9), model.Values(0, 101, 9)},
                                               {sequence, 1, 0, model.Keys(1, 0, 100), model.Values(1, 0, 100)}};
  const absl::Status status = client_->AppendStream(gap).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
  EXPECT_EQ(client_->GetSequence(sequence)->layer_tokens, (std::vector<int64_t>{100, 0}));

  // Replays of what is there are no-ops; other bytes are refused.
  EXPECT_EQ(*client_->Append({sequence, 0, 50, model.Keys(0, 50, 50), model.Values(0, 50, 50)}), 100);
  const absl::Status other = client_->Append({sequence, 0, 50, model.Keys(0, 0, 50), model.Values(0, 0, 50)}).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kAlreadyExists) << other;
  const absl::Status rank =
      client_->AppendStream({{sequence, 0, 100, {model.query.data(), client::DType::kFloat32, {2, 64}}, {}}}).status();
  EXPECT_EQ(rank.code(), absl::StatusCode::kInvalidArgument) << rank;
  EXPECT_EQ(client_->GetSequence(sequence)->layer_tokens, (std::vector<int64_t>{100, 0}));
}

TEST_F(ClientTest, ErrorsCarryCodeFieldAndReason) {
  const RandomModel model(kAppended);
  const Sequence sequence = Filled(model, 100);
  const auto keys = model.Keys(0, 100, 1), values = model.Values(0, 100, 1);
  auto append = [&](int layer, client::ConstTensor k) {
    return client_->Append({sequence, layer, 100, k, values}).status();
  };
  auto with_shape = [&](client::Shape shape) { return client::ConstTensor{keys.data, client::DType::kFloat32, shape}; };
  client::RetrieveItem answered_there{sequence, 0, model.Query()};
  float room[4 * 64];
  answered_there.output = client::DeviceTensor{room, client::DType::kFloat32, {4, 64}};
  v1::IndexSpec bad = RandomModel::Spec("bad", v1::KV_STORE_KEYS);
  bad.mutable_geometry()->set_head_dim(65);
  v1::Selector no_tokens;
  no_tokens.set_top_k(0);
  const struct {
    const char* name;
    absl::Status status;
    absl::StatusCode code;
    const char* field;  // part of it
  } cases[] = {
      {"head_dim", client_->CreateIndex(bad).status(), absl::StatusCode::kInvalidArgument, "head_dim"},
      {"taken", client_->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS)).status(),
       absl::StatusCode::kAlreadyExists, ""},
      {"no index", client_->GetIndex("nowhere").status(), absl::StatusCode::kNotFound, ""},
      {"no sequence", client_->GetSequence({"m", "nobody", 0}).status(), absl::StatusCode::kNotFound, ""},
      {"layer", append(2, keys), absl::StatusCode::kInvalidArgument, "item.layer"},
      {"shape", append(0, with_shape({1, 1, 128})), absl::StatusCode::kInvalidArgument, "item.keys.shape"},
      {"dtype", append(0, {keys.data, client::DType::kFloat16, {1, 2, 64}}), absl::StatusCode::kInvalidArgument,
       "item.keys.dtype"},
      {"negative", append(0, with_shape({-1, 2, 64})), absl::StatusCode::kInvalidArgument, ""},
      {"overflow", append(0, with_shape({int64_t{1} << 40, int64_t{1} << 40, 64})), absl::StatusCode::kInvalidArgument,
       ""},
      {"null", append(0, {nullptr, client::DType::kFloat32, {1, 2, 64}}), absl::StatusCode::kInvalidArgument, ""},
      {"on a device", append(0, {keys.data, client::DType::kFloat32, {1, 2, 64}, true}),
       absl::StatusCode::kInvalidArgument, ""},
      {"answers on a device", client_->Attend({answered_there}, v1::Selector(), v1::Attention()).status(),
       absl::StatusCode::kInvalidArgument, ""},
      {"top_k", client_->Retrieve({{sequence, 0, model.Query()}}, no_tokens).status(),
       absl::StatusCode::kInvalidArgument, "selector"},
      {"gather", client_->Gather(sequence, 0, 0, {100}, true, false).status(), absl::StatusCode::kOutOfRange,
       "positions"},
      {"kv_head", client_->DescribeHead(sequence, 0, 2).status(), absl::StatusCode::kInvalidArgument, "kv_head"},
      {"fork", client_->ForkSequence(sequence, "", 101).status(), absl::StatusCode::kOutOfRange, "position"},
      {"truncate", client_->TruncateSequence(sequence, -1).status(), absl::StatusCode::kOutOfRange, "position"},
  };
  for (const auto& test : cases) {
    EXPECT_EQ(test.status.code(), test.code) << test.name << ": " << test.status;
    EXPECT_FALSE(test.status.message().empty()) << test.name;
    EXPECT_TRUE(absl::StrContains(client::FieldOf(test.status), test.field)) << test.name << ": " << test.status;
    EXPECT_TRUE(absl::StrContains(test.status.message(), test.field)) << test.name << ": " << test.status;
  }
  EXPECT_FALSE(client::ReasonOf(cases[5].status).empty()) << cases[5].status;
  EXPECT_EQ(client::FieldOf(absl::OkStatus()), "");
  EXPECT_EQ(client_->GetSequence(sequence)->layer_tokens, (std::vector<int64_t>{100, 100}));
}

}  // namespace
}  // namespace seine
