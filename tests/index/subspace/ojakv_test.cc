// OjaKV as published, against replays in fp64: a prompt's own step, full-rank tokens chosen by the last queries, ranks
// by layer, bases of queries and keys stacked. And what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "index/memory/memory.h"
#include "index/subspace/low_rank.h"
#include "index/subspace/low_rank_store.h"
#include "profile/moments.h"
#include "tests/index/subspace/low_rank_simulation.h"
#include "tests/index/subspace/streams.h"

namespace seine {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;
using testing::AppendNames;
using testing::LowRankConfig;
using testing::MakeIndex;
using testing::Names;
using testing::Queries;
using testing::Rows;
using testing::TestBackend;
using testing::View;

constexpr int kOjakvDim = 64, kOjakvBlock = 64, kOjakvGroup = 3;
constexpr int64_t kPromptTokens = 5 * kOjakvBlock;

double Falling(int i) { return std::pow(i + 1, -.7); }

// One head's prompt, and the queries of its last positions.
struct Prompt {
  std::vector<float> keys = Stream(RandomAxes(kOjakvDim, 1), kPromptTokens, 2, Falling);
  std::vector<float> values = Stream(RandomAxes(kOjakvDim, 3), kPromptTokens, 4, Falling);
  std::vector<int32_t> positions = std::vector<int32_t>(kPromptTokens);
  std::vector<float> queries;
  std::vector<int64_t> asked;

  Prompt(int64_t first_position, int64_t first_query, int64_t num_queries) {
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first_position));
    queries = Stream(RandomAxes(kOjakvDim, 5), num_queries * kOjakvGroup, 6, [](int i) { return i < 40 ? .2 : 2.; });
    asked.resize(num_queries);
    std::iota(asked.begin(), asked.end(), first_query);
  }
  HeadRows AsRows() const {
    return {RowsOf(keys, kOjakvDim),
            RowsOf(values, kOjakvDim),
            {queries.data(), kOjakvGroup * kOjakvDim, kOjakvGroup, asked.data(), static_cast<int64_t>(asked.size())}};
  }
};

LowRankShape ShapeOf(KeyFrame frame = KeyFrame::kPostRope) {
  LowRankShape shape;
  LowRankOptions& o = shape.options;
  o.head_dim = kOjakvDim;
  o.dtype = DType::kFloat32;
  o.frame = frame;
  o.rope = ParseRope(R"({"rope_theta": 10000})", kOjakvDim, Rope::Style::kHalfSplit, 4096).value();
  o.key_rank = 20;
  o.value_rank = 33;
  o.block_tokens = kOjakvBlock;
  shape.key_start = FromEigen(RandomAxes(kOjakvDim, 7).leftCols(20), 0);
  shape.value_start = FromEigen(RandomAxes(kOjakvDim, 8).leftCols(33), 0);
  return shape;
}

class OjakvTest : public ::testing::Test {
 protected:
  LowRankStore Filled(const LowRankShape* shape, const Prompt& prompt, bool is_prompt = true) {
    LowRankStore store(shape, &ledger_);
    auto staged = store.Stage(prompt.AsRows(), prompt.positions.data(), kPromptTokens, kOjakvBlock, is_prompt);
    EXPECT_TRUE(staged.ok()) << staged.status();
    store.Install(*std::move(staged));
    return store;
  }
  std::unique_ptr<Backend> backend_ = MakeCpuBackend(1);
  MemoryLedger ledger_{backend_.get(), 0, 0, nullptr};
};

// Columns of keys as the basis has them.
MatrixXd InFrame(const LowRankOptions& o, const std::vector<float>& rows, const std::vector<int32_t>& positions) {
  MatrixXd x = Eigen::Map<const Eigen::MatrixXf>(rows.data(), kOjakvDim, kPromptTokens).cast<double>();
  for (int64_t t = 0; t < kPromptTokens && o.frame == KeyFrame::kPreRope; ++t) {
    UndoRope(o.rope, positions[t], x.col(t).data());
  }
  return x;
}

// U + a (C U - U U^T C U), made orthonormal; C of means over `pool` columns, a = eta, or eta D / tr C.
MatrixXd PromptStep(const MatrixXd& u, const MatrixXd& x, int pool, double eta, bool relative) {
  const auto count = x.cols() / pool;
  MatrixXd means(x.rows(), count);
  for (Eigen::Index i = 0; i < count; ++i) means.col(i) = x.middleCols(i * pool, pool).rowwise().mean();
  const MatrixXd c = means * means.transpose() / static_cast<double>(count);
  const double a = relative ? eta * static_cast<double>(x.rows()) / c.trace() : eta;
  const MatrixXd step = u + a * (c * u - u * (u.transpose() * c * u));
  return Eigen::HouseholderQR<MatrixXd>(step).householderQ() * MatrixXd::Identity(u.rows(), u.cols());
}

double Apart(const Basis& basis, const MatrixXd& want) {
  const MatrixXd u = ToEigen(basis);
  return (u * u.transpose() - want * want.transpose()).cwiseAbs().maxCoeff();
}

TEST_F(OjakvTest, APromptMakesOneStepWithItsPooledRowsAndIsStoredInIt) {
  for (const KeyFrame frame : {KeyFrame::kPostRope, KeyFrame::kPreRope}) {
    for (const bool relative : {false, true}) {
      for (const int pool : {1, 3, 4}) {
        SCOPED_TRACE(::testing::Message() << Name(frame) << relative << pool);
        LowRankShape shape = ShapeOf(frame);
        shape.options.prompt = {pool, relative ? .05 : 3};
        shape.options.oja.relative = relative;
        shape.options.oja.max_gain = 1000;
        const Prompt prompt(100, 0, 0);
        const LowRankStore store = Filled(&shape, prompt);
        EXPECT_EQ(store.metrics().num_versions, 1);
        EXPECT_EQ(store.metrics().keys.updates, 1);
        EXPECT_EQ(store.metrics().keys.rows, 0);  // no interval has learnt from it
        const double eta = shape.options.prompt.learning_rate;
        const MatrixXd keys = InFrame(shape.options, prompt.keys, prompt.positions);
        const MatrixXd values =
            Eigen::Map<const Eigen::MatrixXf>(prompt.values.data(), kOjakvDim, kPromptTokens).cast<double>();
        const MatrixXd u = ToEigen(*shape.key_start), v = ToEigen(*shape.value_start);
        // Bases are packed into 12 bits between blocks, and versions into halves.
        EXPECT_LT(Apart(store.BasisOf(0, false), PromptStep(u, keys, pool, eta, relative)), 2e-3);
        EXPECT_LT(Apart(store.BasisOf(kPromptTokens - 1, true), PromptStep(v, values, pool, eta, relative)), 2e-3);
        EXPECT_GT(Apart(store.BasisOf(0, false), u), .02) << "nothing was learnt";
      }
    }
  }
}

TEST_F(OjakvTest, WhatFollowsAPromptIsLearntFromEveryTTokens) {
  LowRankShape shape = ShapeOf();
  shape.options.prompt = {4, .1};
  const Prompt prompt(0, 0, 0);
  LowRankStore store = Filled(&shape, prompt);
  auto staged = store.Stage(prompt.AsRows(), prompt.positions.data(), kOjakvBlock, kOjakvBlock, false);
  ASSERT_TRUE(staged.ok());
  store.Install(*std::move(staged));
  EXPECT_EQ(store.metrics().keys.updates, 1 + kOjakvBlock / shape.options.oja.interval);
  EXPECT_EQ(store.metrics().keys.rows, kOjakvBlock);
  // Without such a step a prompt is as any append.
  shape.options.prompt.pool = 0;
  EXPECT_EQ(Filled(&shape, prompt, true).metrics().keys.updates, kPromptTokens / shape.options.oja.interval);
  // A prompt shorter than what is averaged teaches nothing.
  shape.options.prompt.pool = kMaxPromptPool;
  EXPECT_EQ(Filled(&shape, prompt, true).metrics().keys.updates, 0);
}

// Places that read back as they came, block by block.
std::set<int64_t> FullRankPlaces(const LowRankStore& store, const Prompt& prompt) {
  std::set<int64_t> full;
  for (int64_t place = 0; place < store.size(); ++place) {
    std::vector<float> row(kOjakvDim);
    store.Read({&place, 1}, &prompt.positions[place], row.data(), nullptr);
    if (std::equal(row.begin(), row.end(), prompt.keys.begin() + place * kOjakvDim)) full.insert(place);
  }
  return full;
}

TEST_F(OjakvTest, TheLastQueriesChooseTheFullRankTokensOfEachBlock) {
  for (const KeyFrame frame : {KeyFrame::kPostRope, KeyFrame::kPreRope}) {
    for (const int pool : {1, 5}) {
      // The first query stands within the last block, so that some tokens are seen by few of them.
      for (const int64_t first_query : {int64_t{2000}, 100 + kPromptTokens - 20}) {
        SCOPED_TRACE(::testing::Message() << Name(frame) << pool << " " << first_query);
        LowRankShape shape = ShapeOf(frame);
        shape.options.full_rank = .125;
        shape.options.choice = {32, pool};
        const Prompt prompt(100, first_query, 32);
        const LowRankStore store = Filled(&shape, prompt);
        const MatrixXd keys = InFrame(shape.options, prompt.keys, prompt.positions);
        std::set<int64_t> want;
        for (int64_t block = 0; block < kPromptTokens; block += kOjakvBlock) {
          const MatrixXd u = ToEigen(store.BasisOf(block, false));
          std::vector<float> errors(kOjakvBlock);
          for (int t = 0; t < kOjakvBlock; ++t) {
            VectorXd residual = keys.col(block + t) - u * (u.transpose() * keys.col(block + t));
            const int32_t position = prompt.positions[block + t];
            if (frame == KeyFrame::kPreRope) ApplyRope(shape.options.rope, position, residual.data());
            double sum = 0;
            int seen = 0;
            for (size_t q = 0; q < prompt.asked.size() * kOjakvGroup; ++q) {
              if (prompt.asked[q / kOjakvGroup] < position) continue;
              const Eigen::Map<const Eigen::VectorXf> query(prompt.queries.data() + q * kOjakvDim, kOjakvDim);
              sum += std::fabs(query.cast<double>().dot(residual)) / std::sqrt(double{kOjakvDim});
              ++seen;
            }
            errors[t] = static_cast<float>(seen == 0 ? 0 : sum / seen);
          }
          for (const int32_t t : FullRankSet(PooledErrors(errors, pool), kOjakvBlock / 8)) want.insert(block + t);
        }
        EXPECT_EQ(FullRankPlaces(store, prompt), want);
        EXPECT_EQ(store.metrics().blocks_without_queries, 0);
      }
    }
  }
}

TEST_F(OjakvTest, ABlockThatNoQuerySeesIsChosenWithoutAndCounted) {
  LowRankShape shape = ShapeOf();
  shape.options.full_rank = .125;
  const Prompt prompt(100, 100 + 2 * kOjakvBlock - 4, 4);  // positions of the second block's end
  shape.options.choice.queries = 0;
  const std::set<int64_t> without = FullRankPlaces(Filled(&shape, prompt), prompt);
  EXPECT_EQ(Filled(&shape, prompt).metrics().blocks_without_queries, 0);
  shape.options.choice.queries = 4;
  const LowRankStore store = Filled(&shape, prompt);
  EXPECT_EQ(store.metrics().blocks_without_queries, 3);
  const std::set<int64_t> got = FullRankPlaces(store, prompt);
  const auto from_third = [](const std::set<int64_t>& places) {
    return std::set<int64_t>(places.lower_bound(2 * kOjakvBlock), places.end());
  };
  EXPECT_EQ(from_third(got), from_third(without));
  EXPECT_NE(got, without);
  EXPECT_EQ(got.size(), without.size());
}

// An index of two layers, where tokens from `sink` on become low-rank.
IndexConfig WithQueries(int queries) {
  IndexConfig config = LowRankConfig(.125);
  config.subspace->choice.queries = queries;
  return config;
}

TEST(OjakvIndexTest, QueriesComeWithTokensOrAreAsked) {
  TestBackend backend;
  const auto index = MakeIndex(WithQueries(4), &backend);
  const Geometry& g = index->config().geometry;
  const auto low = [&](const SequenceHandle& sequence) { return *index->DescribeHead(sequence, 0, 1)->subspace; };
  const auto append = [&](const SequenceHandle& sequence, int64_t count, int64_t positions) {
    const std::string keys = Rows(g, Names(0, count)), values = Rows(g, Names(1 << 20, count));
    std::vector<float> queries;
    for (int64_t i = 0; i < positions; ++i) {
      const std::vector<float> one = Queries(g, static_cast<uint32_t>(i));
      queries.insert(queries.end(), one.begin(), one.end());
    }
    const QueryView view{positions > 0 ? queries.data() : nullptr, positions};
    ASSERT_TRUE(index->Append(sequence, 0, 0, View(g, keys), View(g, values), view).ok());
  };
  const SequenceHandle with = *index->CreateSequence("with"), without = *index->CreateSequence("without");
  append(with, 300, 9);
  EXPECT_EQ(low(with).blocks_without_queries, 0);
  EXPECT_GT(low(with).full_rank_tokens, 0);
  append(without, 300, 0);
  const int64_t unseen = low(without).blocks_without_queries;
  EXPECT_GT(unseen, 0);
  EXPECT_EQ(low(without).full_rank_tokens, low(with).full_rank_tokens);
  EXPECT_GT(index->stats().query_bytes, 0);

  // Queries that are asked choose for the blocks that follow; a fork knows it too.
  const std::vector<float> query = Queries(g, 77);
  ASSERT_TRUE(index->Retrieve({{without, 0, query.data()}}, index->config().search).ok());
  const SequenceHandle fork = *index->Fork(without, "fork", -1);
  for (const SequenceHandle& each : {without, fork}) {
    ASSERT_TRUE(AppendNames(index.get(), each, 0, 300, Names(300, 60)).ok());
    EXPECT_GT(low(each).low_rank_tokens, low(with).low_rank_tokens);
    EXPECT_EQ(low(each).blocks_without_queries, unseen);
  }
  // The zone's end has long passed what the one query saw.
  ASSERT_TRUE(AppendNames(index.get(), without, 0, 360, Names(360, 400)).ok());
  EXPECT_GT(low(without).blocks_without_queries, unseen);

  const auto none = MakeIndex(WithQueries(0), &backend);
  const SequenceHandle refused = *none->CreateSequence("");
  const std::string keys = Rows(g, Names(0, 1));
  const auto status = none->Append(refused, 0, 0, View(g, keys), View(g, keys), {query.data(), 1}).status();
  EXPECT_EQ(status.message(),
            "queries: given, but the index keeps none (eviction.keep_queries, subspace.full_rank_queries)");
}

TEST(OjakvIndexTest, OnlyAnAppendOfAWholeBufferIsAPrompt) {
  TestBackend backend;
  IndexConfig config = LowRankConfig();
  config.subspace->prompt = {4, .1};
  const auto index = MakeIndex(config, &backend);
  const int buffer = config.zones.update_buffer;
  const auto learnt = [&](const SequenceHandle& sequence) {
    return index->DescribeHead(sequence, 0, 0)->subspace->keys;
  };
  const SequenceHandle at_once = *index->CreateSequence("at_once"), by_token = *index->CreateSequence("by_token");
  ASSERT_TRUE(AppendNames(index.get(), at_once, 0, 0, Names(0, 6 * buffer)).ok());
  EXPECT_EQ(learnt(at_once).updates, 1);
  EXPECT_EQ(learnt(at_once).rows, 0);
  for (int64_t t = 0; t < 6 * buffer; t += buffer - 1) {
    ASSERT_TRUE(AppendNames(index.get(), by_token, 0, t, Names(t, std::min<int64_t>(buffer - 1, 6 * buffer - t))).ok());
  }
  EXPECT_GT(learnt(by_token).rows, 0);
}

// Two layers; moments of which 6 directions of keys hold all in the first, 9 in the second; 3 and 5 of values.
std::shared_ptr<const Profile> TwoLayers(const Geometry& g) {
  auto profile = std::make_shared<Profile>();
  profile->num_q_heads = g.num_q_heads, profile->num_kv_heads = g.num_kv_heads, profile->head_dim = g.head_dim;
  for (const auto& [keys, values] : {std::pair{6, 3}, std::pair{9, 5}}) {
    const auto moment = [&](int first, int rank) {
      MatrixXd m = MatrixXd::Zero(g.head_dim, g.head_dim);
      m.diagonal().segment(first, rank).setOnes();
      return m;
    };
    LayerProfile layer;
    const VectorXd zeros = VectorXd::Zero(g.head_dim);
    layer.q_mean.assign(g.num_q_heads, zeros), layer.q_moment.assign(g.num_q_heads, 100 * moment(40, 4));
    layer.k_mean.assign(g.num_kv_heads, zeros), layer.v_mean = layer.k_mean;
    layer.k_moment.assign(g.num_kv_heads, moment(0, keys)), layer.k_residual = layer.k_moment;
    layer.v_moment.assign(g.num_kv_heads, moment(0, values));
    profile->layers.push_back(layer);
  }
  return profile;
}

IndexConfig TwoLayerConfig() {
  IndexConfig config = LowRankConfig(0, KeyFrame::kPreRope);
  config.geometry.num_layers = 2;
  config.subspace->profile = TwoLayers(config.geometry);
  return config;
}

TEST(OjakvIndexTest, EachLayerHasRanksOfItsOwn) {
  TestBackend backend;
  IndexConfig given = TwoLayerConfig(), found = given;
  SubspaceConfig& s = *given.subspace;
  s.key_rank = s.value_rank = 0;
  s.key_ranks = {6, 9}, s.value_ranks = {3, 5};
  found.subspace->key_rank = found.subspace->value_rank = 0;
  found.subspace->energy = .99;
  found.subspace->energy_by_layer = true;
  for (const IndexConfig& config : {given, found}) {
    const auto index = MakeIndex(config, &backend);
    EXPECT_EQ(index->config().subspace->key_ranks, s.key_ranks);
    EXPECT_EQ(index->config().subspace->value_ranks, s.value_ranks);
    EXPECT_EQ(index->config().subspace->key_rank, 0);
    EXPECT_TRUE(Index::Create(index->config(), &backend).ok()) << "what an index says of itself can be created anew";
    const SequenceHandle sequence = *index->CreateSequence("");
    for (const int layer : {0, 1}) {
      ASSERT_TRUE(AppendNames(index.get(), sequence, layer, 0, Names(0, 200)).ok());
      const SubspaceInfo info = *index->DescribeHead(sequence, layer, 1)->subspace;
      EXPECT_EQ(info.key_rank, s.key_ranks[layer]);
      EXPECT_EQ(info.code_bytes, info.low_rank_tokens * (s.key_ranks[layer] + s.value_ranks[layer]) * 2);
      LayerBases bases = index->GetBases(sequence, layer).value();
      EXPECT_EQ(bases.values[1].rank, s.value_ranks[layer]);
      EXPECT_TRUE(index->SetBases(sequence, layer, bases).ok());
      EXPECT_FALSE(index->SetBases(sequence, 1 - layer, bases).ok());
    }
  }
  // One rank for all and ranks by layer go side by side, of keys and of values.
  s.value_ranks.clear(), s.value_rank = 7;
  EXPECT_TRUE(Index::Create(given, &backend).ok());
}

TEST(OjakvIndexTest, BasesBeginWithQueriesAndKeysStacked) {
  TestBackend backend;
  IndexConfig config = TwoLayerConfig();
  config.subspace->key_rank = 8, config.subspace->value_rank = 3;
  const auto leading = [&](bool stacked) {
    config.subspace->stack_queries = stacked;
    const auto index = MakeIndex(config, &backend);
    return ToEigen(index->GetBases(*index->CreateSequence(""), 0)->keys[1]).rowwise().squaredNorm().eval();
  };
  EXPECT_NEAR(leading(false).segment(0, 6).sum(), 6, 1e-4);  // keys' directions first
  EXPECT_NEAR(leading(true).segment(40, 4).sum(), 4, 1e-4);  // the queries weigh more
  EXPECT_NEAR(leading(true).segment(0, 6).sum(), 4, 1e-4);
}

TEST(OjakvIndexTest, NonsenseIsRefusedByField) {
  const auto message = [](auto change) {
    TestBackend backend;
    IndexConfig config = TwoLayerConfig();
    change(&*config.subspace);
    const auto made = Index::Create(config, &backend);
    EXPECT_FALSE(made.ok());
    return std::string(made.status().message());
  };
  using S = SubspaceConfig;
  const double nan = std::nan("");
  EXPECT_EQ(message([](S* s) { s->oja.interval = 257; }), "subspace.interval: 257 is not in [1, 256]");
  EXPECT_EQ(message([=](S* s) { s->oja.learning_rate = nan; }), "subspace.learning_rate: nan is not in (0, 1000]");
  EXPECT_EQ(message([](S* s) { s->prompt.pool = -1; }), "subspace.prompt_pool: -1 is not in [0, 4096]");
  EXPECT_EQ(message([](S* s) { s->prompt.pool = 4097; }), "subspace.prompt_pool: 4097 is not in [0, 4096]");
  EXPECT_EQ(message([=](S* s) { s->prompt.learning_rate = nan; }),
            "subspace.prompt_learning_rate: nan is not in (0, 1000]");
  EXPECT_EQ(message([](S* s) { s->choice.queries = 1025; }), "subspace.full_rank_queries: 1025 is not in [0, 1024]");
  EXPECT_EQ(message([](S* s) { s->choice.pool = 4; }), "subspace.full_rank_pool: 4 is no odd number in [1, 63]");
  EXPECT_EQ(message([](S* s) { s->choice.pool = 0; }), "subspace.full_rank_pool: 0 is no odd number in [1, 63]");
  EXPECT_EQ(message([](S* s) { s->key_rank = 0, s->key_ranks = {6}; }), "subspace.key_ranks: 1 ranks for 2 layers");
  EXPECT_EQ(message([](S* s) {
              s->key_rank = 0, s->key_ranks = {6, 65};
            }),
            "subspace.key_ranks[1]: 65 is not in [1, 64]");
  EXPECT_EQ(message([](S* s) {
              s->value_rank = 0, s->value_ranks = {0, 6};
            }),
            "subspace.value_ranks[0]: 0 is not in [1, 64]");
  EXPECT_EQ(message([](S* s) {
              s->value_ranks = {6, 6};
            }),
            "subspace.value_rank: 33 given beside value_ranks; give one or the other");
  EXPECT_EQ(message([](S* s) { s->energy_by_layer = true; }),
            "subspace.energy_by_layer: needs energy, which it divides");
  EXPECT_EQ(message([](S* s) { s->stack_queries = true, s->profile = nullptr; }),
            "subspace.stack_queries: needs a profile, which has the moments of queries");
  const auto energy = [&](bool by_layer, std::vector<int> ranks, int rank) {
    return message([&](S* s) {
      s->energy = .99, s->energy_by_layer = by_layer, s->key_ranks = ranks, s->key_rank = rank, s->value_rank = 0;
    });
  };
  EXPECT_EQ(energy(true, {6, 8}, 0), "subspace.energy: 0.99 finds other key_ranks; give one or the other");
  EXPECT_EQ(energy(true, {}, 9),
            "subspace.energy: 0.99 finds key_ranks of layers, up to 9, not 9; give one or the other");
  EXPECT_EQ(energy(false, {6, 9}, 0),
            "subspace.energy: finds one rank for all layers; key_ranks and value_ranks are given");
}

}  // namespace
}  // namespace seine
