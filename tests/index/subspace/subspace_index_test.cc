// An index whose zone is low-rank, against a direct simulation: what is read back after appends of any size, eviction,
// forks, truncations and replays; searches over it; what it takes; what it refuses.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/match.h"
#include "index/subspace/calibrate.h"
#include "kernels/ops/attend/window_means.h"
#include "profile/moments.h"
#include "tests/index/subspace/low_rank_simulation.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::LowRankConfig;
using testing::MakeIndex;
using testing::Names;
using testing::Queries;
using testing::Rows;
using testing::Simulation;
using testing::SmallConfig;
using testing::SubspaceCase;
using testing::TestBackend;

class SubspaceIndexTest : public ::testing::TestWithParam<SubspaceCase> {
 protected:
  SubspaceIndexTest() : config(LowRankConfig(GetParam().full_rank, GetParam().frame)) {
    index = MakeIndex(config, &backend);
    sequence = *index->CreateSequence("");
    simulation = std::make_unique<Simulation>(config, &ledger);
  }
  void Append(uint64_t first_name, int64_t count) {
    const int64_t position = index->GetSequence(sequence)->layer_tokens[0];
    ASSERT_TRUE(AppendNames(index.get(), sequence, 0, position, Names(first_name, count)).ok());
    simulation->Append(Names(first_name, count), static_cast<int32_t>(position));
  }

  TestBackend backend;
  MemoryLedger ledger{&backend, 0, 0, nullptr};
  IndexConfig config;
  std::unique_ptr<Index> index;
  SequenceHandle sequence;
  std::unique_ptr<Simulation> simulation;
};

TEST_P(SubspaceIndexTest, ReadsWhatTheSimulationHoldsThroughAppendsOfAnySize) {
  uint64_t name = 0;
  for (const int64_t count : {10, 1, 120, 64, 1, 300, 7, 63}) {
    Append(name, count);
    name += count;
    simulation->ExpectSame(*index, sequence);
  }
  // Token by token and at once, the same is stored.
  const SequenceHandle other = *index->CreateSequence("");
  ASSERT_TRUE(AppendNames(index.get(), other, 0, 0, Names(0, static_cast<int64_t>(name))).ok());
  simulation->ExpectSame(*index, other);
  EXPECT_EQ(index->GetSequence(other)->store_bytes, index->GetSequence(sequence)->store_bytes);
}

TEST_P(SubspaceIndexTest, EvictsForksAndTruncates) {
  Append(0, 400);
  const SequenceHandle fork = *index->Fork(sequence, "", -1);
  Simulation forked = *simulation;
  EvictParams params;
  params.scorer.name = "keydiff";
  params.budget.tokens = 230;
  for (int round = 0; round < 3; ++round) {
    auto answer = index->Evict(sequence, 0, params, {});
    ASSERT_TRUE(answer.ok()) << answer.status();
    simulation->Keep(answer->kept);
    simulation->ExpectSame(*index, sequence);
    Append(1000 + round * 200, 150);
    simulation->ExpectSame(*index, sequence);
  }
  forked.ExpectSame(*index, fork);
  for (const int32_t position : {700, 330, 200, 60, 10}) {
    ASSERT_TRUE(index->Truncate(sequence, position).ok());
    simulation->Truncate(position);
    simulation->ExpectSame(*index, sequence);
    Append(5000 + position, 90);
    simulation->ExpectSame(*index, sequence);
  }
  forked.ExpectSame(*index, fork);
  ASSERT_TRUE(index->DeleteSequence(sequence).ok());
  ASSERT_TRUE(index->DeleteSequence(fork).ok());
  EXPECT_EQ(index->stats().store_bytes, 0);
}

// Counts the rows that scorers have rebuilt.
class RebuildCounter : public TestBackend {
 public:
  Outcome Rebuild(const RebuildTask* tasks, int count) override {
    for (int i = 0; i < count; ++i) rows += tasks[i].count;
    return TestBackend::Rebuild(tasks, count);
  }
  int64_t rows = 0;
};

TEST(SubspaceEvictionTest, RebuildsEachRowOnceToScoreAndToSelect) {
  RebuildCounter counter;
  const IndexConfig config = LowRankConfig();
  const auto index = MakeIndex(config, &counter);
  const SequenceHandle sequence = *index->CreateSequence("");
  ASSERT_TRUE(AppendNames(index.get(), sequence, 0, 0, Names(0, 400)).ok());
  EvictParams params;
  params.scorer.name = "keydiff";
  params.budget.tokens = 230;
  counter.rows = 0;
  ASSERT_TRUE(index->Evict(sequence, 0, params, {}).ok());
  EXPECT_EQ(counter.rows, 400 * 2 * config.geometry.num_kv_heads);  // a key and a value of each token
}

TEST_P(SubspaceIndexTest, SearchesScoreTheRowsThatAreReadBack) {
  Append(0, 500);
  ASSERT_TRUE(index->Truncate(sequence, 470).ok());  // dense tokens are low-rank now
  simulation->Truncate(470);
  const Geometry& g = config.geometry;
  const std::vector<float> queries = Queries(g, 5);
  for (const Method method : {Method::kExact, Method::kIndex}) {
    SearchParams params;
    params.top_k = 20;
    params.scope = Scope::kPerQHead;
    params.method = method;
    auto answers = index->Retrieve({{sequence, 0, queries.data()}}, params);
    ASSERT_TRUE(answers.ok() && (*answers)[0].status.ok());
    const ItemAnswer& answer = (*answers)[0];
    for (int q = 0; q < g.num_q_heads; ++q) {
      const int h = q / g.group();
      std::vector<std::pair<float, int32_t>> best;
      for (int64_t p = answer.zone_begin; p < answer.zone_end; ++p) {
        const std::vector<float> key = simulation->Row(h, p, false);
        const double dot = std::inner_product(key.begin(), key.end(), &queries[q * g.head_dim], 0.0);
        best.emplace_back(static_cast<float>(-dot / std::sqrt(g.head_dim)), static_cast<int32_t>(p));
      }
      for (size_t i = 0; i < answer.positions[q].size(); ++i) {
        EXPECT_NEAR(answer.scores[q][i], -best[answer.positions[q][i] - answer.zone_begin].first, 1e-4);
      }
      std::sort(best.begin(), best.end());
      size_t found = 0;
      for (int i = 0; i < 20; ++i) {
        found += std::count(answer.positions[q].begin(), answer.positions[q].end(), best[i].second);
      }
      EXPECT_GE(found, method == Method::kExact ? 20 : 15) << "query head " << q;
    }
  }
  SearchParams joint;  // the dense tokens' mass counts
  ASSERT_TRUE((*index->Retrieve({{sequence, 0, queries.data()}}, joint))[0].status.ok());
}

TEST_P(SubspaceIndexTest, ReplaysAreToldFromRewrites) {
  Append(0, 300);
  const Geometry& g = config.geometry;
  const auto replay = [&](uint64_t name, int64_t position) {
    return AppendNames(index.get(), sequence, 0, position, {name}).status();
  };
  for (const bool evicted : {false, true}) {
    for (const int64_t position : {3, 100, 290}) {
      EXPECT_TRUE(replay(position, position).ok());
      EXPECT_EQ(replay(position + 1, position).code(), absl::StatusCode::kAlreadyExists) << position;
    }
    std::string keys = Rows(g, {100}), values = Rows(g, {100 + testing::kValueNames});
    values[values.size() - 2] ^= 1;  // the last bit of one value
    const absl::Status s =
        index->Append(sequence, 0, 100, {keys.data(), 1, keys.size()}, {values.data(), 1, values.size()}).status();
    EXPECT_EQ(s.code(), absl::StatusCode::kAlreadyExists);
    EXPECT_TRUE(absl::StrContains(s.message(), "position 100"));
    if (evicted) break;
    EvictParams params;
    params.scorer.name = "client";
    params.budget.tokens = 200;
    std::vector<float> scores(300);
    for (const int kept : {3, 100, 290}) scores[kept] = 1;
    ScorerInputs given;
    given.scores.assign(g.num_kv_heads, scores);
    auto answer = index->Evict(sequence, 0, params, given);
    ASSERT_TRUE(answer.ok()) << answer.status();
  }
}

TEST_P(SubspaceIndexTest, NoMemoryChangesNothing) {
  Append(0, 200);
  const SequenceHandle fork = *index->Fork(sequence, "", -1);
  const IndexStats before = index->stats();
  EvictParams evict;
  evict.budget.tokens = 120;
  int failures = 0;
  for (int n = 0;; ++n) {
    backend.fail_after = n;
    const auto grown = AppendNames(index.get(), fork, 0, 200, Names(900, 200));
    backend.fail_after = -1;
    if (grown.ok()) break;
    ++failures;
    EXPECT_EQ(grown.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(index->stats().store_bytes, before.store_bytes);
    simulation->ExpectSame(*index, fork);
  }
  for (int n = 0;; ++n) {
    backend.fail_after = n;
    const auto answer = index->Evict(sequence, 0, evict, {});
    backend.fail_after = -1;
    if (answer.ok()) break;
    ++failures;
    simulation->ExpectSame(*index, sequence);
  }
  EXPECT_GT(failures, 8);
}

INSTANTIATE_TEST_SUITE_P(Settings, SubspaceIndexTest,
                         ::testing::Values(SubspaceCase{"plain", 0, KeyFrame::kPostRope},
                                           SubspaceCase{"hybrid", .1, KeyFrame::kPostRope},
                                           SubspaceCase{"pre_rope", 0, KeyFrame::kPreRope},
                                           SubspaceCase{"hybrid_pre_rope", .1, KeyFrame::kPreRope}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(SubspaceBytesTest, AreReallyLess) {
  TestBackend backend;
  IndexConfig config = LowRankConfig(), full = config;
  config.subspace->key_rank = config.subspace->value_rank = 38;
  config.subspace->version_tokens = 8192;
  full.subspace.reset();
  const auto index = MakeIndex(config, &backend), plain = MakeIndex(full, &backend);
  constexpr int64_t kTokens = 16 + 32 + 8192;
  for (Index* each : {index.get(), plain.get()}) {
    const SequenceHandle sequence = *each->CreateSequence("s");
    ASSERT_TRUE(AppendNames(each, sequence, 0, 0, Names(0, kTokens)).ok());
  }
  const SubspaceInfo info = *index->DescribeHead({"s"}, 0, 1)->subspace;
  EXPECT_EQ(info.code_bytes, 8192 * (38 + 38) * 2);  // OjaKV, A.4.2
  EXPECT_EQ(info.full_rank_bytes, 0);
  const int64_t low = index->GetSequence({"s"})->store_bytes, all = plain->GetSequence({"s"})->store_bytes;
  EXPECT_EQ(low, index->stats().store_bytes);
  const int64_t rows = 2 * 2 * (64 + 64) * 64 * 2;  // of sink and tail: two chunks of 64, of two heads' keys and values
  const int64_t checksums = 4 * 8256;               // in pieces, one for both heads
  const int64_t windows = 2 * (8192 / 64) * static_cast<int64_t>(WindowMeansBytes(64));
  EXPECT_EQ(low, 2 * (info.code_bytes + info.basis_bytes) + rows + checksums + windows);
  EXPECT_LT(static_cast<double>(low), .68 * static_cast<double>(all));
}

TEST(SubspaceBasesTest, AreReadAndReplaced) {
  TestBackend backend;
  const IndexConfig config = LowRankConfig();
  const auto index = MakeIndex(config, &backend);
  const SequenceHandle sequence = *index->CreateSequence("s");
  EXPECT_EQ(index->GetBases(sequence, 0).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(AppendNames(index.get(), sequence, 0, 0, Names(0, 200)).ok());
  LayerBases bases = index->GetBases(sequence, 0).value();
  ASSERT_EQ(bases.keys.size(), 2);
  EXPECT_EQ(bases.values[1].rank, 33);
  std::string before, after;
  const std::vector<int32_t> positions = {20, 60, 100};
  ASSERT_TRUE(index->Gather(sequence, 0, 0, positions, &before, nullptr).ok());
  bases.keys[0] = FromEigen(Eigen::MatrixXd::Identity(64, 24), 0);
  ASSERT_TRUE(index->SetBases(sequence, 0, bases).ok());
  EXPECT_EQ(index->GetBases(sequence, 0)->keys[0].u, bases.keys[0].u);
  ASSERT_TRUE(index->Gather(sequence, 0, 0, positions, &after, nullptr).ok());
  EXPECT_EQ(before, after);  // in the version that they have
  const int64_t versions = index->DescribeHead(sequence, 0, 0)->subspace->versions;
  ASSERT_TRUE(AppendNames(index.get(), sequence, 0, 200, Names(200, 64)).ok());
  EXPECT_EQ(index->DescribeHead(sequence, 0, 0)->subspace->versions, versions + 1);

  const auto refused = [&](auto change) {
    LayerBases wrong = bases;
    change(&wrong);
    const absl::Status s = index->SetBases(sequence, 0, wrong);
    EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
    return std::string(s.message());
  };
  EXPECT_TRUE(absl::StartsWith(refused([](LayerBases* b) { b->keys.pop_back(); }), "bases.keys: of 1 heads"));
  EXPECT_TRUE(absl::StartsWith(refused([](LayerBases* b) { b->values[1] = b->keys[1]; }), "bases.values: KV head 1"));
  EXPECT_TRUE(
      absl::StartsWith(refused([](LayerBases* b) { b->keys[1].u[0] += 1; }), "bases.keys: columns of KV head 1"));
  EXPECT_TRUE(
      absl::StartsWith(refused([](LayerBases* b) { b->values[0].u[3] = NAN; }), "bases.values: KV head 0 holds NaN"));
  EXPECT_EQ(index->SetBases(sequence, 2, bases).code(), absl::StatusCode::kInvalidArgument);
  const auto plain = MakeIndex(SmallConfig(), &backend);
  const SequenceHandle other = *plain->CreateSequence("");
  EXPECT_EQ(plain->GetBases(other, 0).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(plain->DescribeHead(other, 0, 0)->subspace);
}

// 6 of keys' directions hold everything, 3 of values', in every layer and head.
std::shared_ptr<const Profile> LowRankProfile(const Geometry& g) {
  auto profile = std::make_shared<Profile>();
  profile->num_q_heads = g.num_q_heads, profile->num_kv_heads = g.num_kv_heads, profile->head_dim = g.head_dim;
  const auto moment = [&](int rank) {
    Eigen::MatrixXd m = Eigen::MatrixXd::Zero(g.head_dim, g.head_dim);
    m.diagonal().head(rank).setOnes();
    return m;
  };
  LayerProfile layer;
  const Eigen::VectorXd zeros = Eigen::VectorXd::Zero(g.head_dim);
  layer.q_mean.assign(g.num_q_heads, zeros), layer.q_moment.assign(g.num_q_heads, moment(g.head_dim));
  layer.k_mean.assign(g.num_kv_heads, zeros), layer.v_mean = layer.k_mean;
  layer.k_moment.assign(g.num_kv_heads, moment(6)), layer.k_residual = layer.k_moment;
  layer.v_moment.assign(g.num_kv_heads, moment(3));
  profile->layers.assign(g.num_layers, layer);
  return profile;
}

TEST(SubspaceSettingsTest, RanksFollowFromAnEnergyShare) {
  TestBackend backend;
  IndexConfig config = LowRankConfig(0, KeyFrame::kPreRope);
  config.subspace->key_rank = config.subspace->value_rank = 0;
  config.subspace->energy = .99;
  config.subspace->profile = LowRankProfile(config.geometry);
  const auto index = MakeIndex(config, &backend);
  EXPECT_EQ(index->config().subspace->key_rank, 6);
  EXPECT_EQ(index->config().subspace->value_rank, 3);
  EXPECT_EQ(*index->config().subspace->energy, .99);
  EXPECT_TRUE(Index::Create(index->config(), &backend).ok()) << "what an index says of itself can be created anew";
  const SequenceHandle sequence = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), sequence, 0, 0, Names(0, 200)).ok());
  const SubspaceInfo info = *index->DescribeHead(sequence, 0, 1)->subspace;
  EXPECT_EQ(info.key_rank, 6);
  EXPECT_EQ(info.code_bytes, info.low_rank_tokens * (6 + 3) * 2);
  EXPECT_EQ(index->GetBases(sequence, 0)->values[1].rank, 3);
}

TEST(SubspaceSettingsTest, AreRefusedByField) {
  const auto message = [](auto change) {
    TestBackend backend;
    IndexConfig config = LowRankConfig();
    change(&config);
    const auto made = Index::Create(config, &backend);
    EXPECT_FALSE(made.ok());
    return std::string(made.status().message());
  };
  using C = IndexConfig;
  EXPECT_TRUE(absl::StartsWith(message([](C* c) { c->subspace->key_rank = 0; }), "subspace.key_rank: 0"));
  EXPECT_TRUE(absl::StartsWith(message([](C* c) { c->subspace->value_rank = 65; }), "subspace.value_rank: 65"));
  EXPECT_TRUE(absl::StartsWith(message([](C* c) { c->subspace->full_rank = 1; }), "subspace.full_rank"));
  EXPECT_TRUE(absl::StartsWith(message([](C* c) { c->subspace->oja.interval = 0; }), "subspace.interval"));
  EXPECT_TRUE(absl::StartsWith(message([](C* c) { c->subspace->version_tokens = 0; }), "subspace.version_tokens"));
  EXPECT_TRUE(absl::StartsWith(message([](C* c) { c->subspace->carried_to = -1; }), "subspace.carried_to"));
  EXPECT_TRUE(absl::StartsWith(message([](C* c) { c->kv_store = KvStore::kKeys; }), "kv_store: subspaces"));
  EXPECT_TRUE(absl::StartsWith(message([](C* c) { c->zones.update_buffer = 1 << 20; }), "zones.update_buffer"));
  const auto energy = [&](double share, int key_rank, int value_rank, bool profile) {
    return message([&](C* c) {
      c->subspace->energy = share, c->subspace->key_rank = key_rank, c->subspace->value_rank = value_rank;
      if (profile) c->subspace->profile = LowRankProfile(c->geometry);
    });
  };
  EXPECT_EQ(energy(.9, 0, 0, false), "subspace.energy: needs a profile, whose moments the ranks follow from");
  EXPECT_TRUE(absl::StartsWith(energy(.9, 60, 0, true), "subspace.energy: 0.9 finds key_rank "));
  EXPECT_TRUE(absl::EndsWith(energy(.9, 0, 33, true), ", not 33; give one or the other"));
  for (const double share : {0.0, -1.0, 1.5, std::nan("")}) {
    EXPECT_TRUE(absl::StrContains(energy(share, 0, 0, true), "subspace.energy: ")) << share;
    EXPECT_TRUE(absl::StrContains(energy(share, 0, 0, true), "is not in (0, 1]")) << share;
  }
  const auto pre_rope = [](C* c) { c->subspace->frame = KeyFrame::kPreRope, c->geometry.rope = Rope(); };
  EXPECT_TRUE(absl::StartsWith(message(pre_rope), "subspace.frame"));

  TestBackend backend;
  const auto index = MakeIndex(LowRankConfig(), &backend);
  const SequenceHandle sequence = *index->CreateSequence("");
  std::string keys = Rows(index->config().geometry, Names(0, 3)), values = keys;
  values[values.size() - 1] = 0x7e;  // fp16 NaN
  const auto appended = index->Append(sequence, 0, 0, {keys.data(), 3, keys.size()}, {values.data(), 3, values.size()});
  EXPECT_TRUE(absl::StartsWith(appended.status().message(), "values: position 2, KV head 1 holds NaN"));
}

}  // namespace
}  // namespace seine
