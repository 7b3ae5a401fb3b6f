// Short zones are read whole: how short, what the answer is then, and who gets a search of the codes all the same.
// Beyond them, few candidates are scored exactly without a rerank.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backends/cuda/cuda_backend.h"
#include "tests/index/direct_attention.h"
#include "tests/index/subspace/low_rank_simulation.h"
#include "tests/index/synthetic_model.h"
#include "tests/kernels/cuda/host_device.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::MakeIndex;
using testing::Names;
using testing::Queries;
using testing::SmallConfig;
using testing::TestBackend;

constexpr int64_t kShortTokens = 420;

class ShortZoneTest : public testing::AttendTest {
 protected:
  static SearchParams Usual(Scope scope) {
    SearchParams params = Params(scope);
    params.candidate_fraction = 0;
    return params;
  }
  // By the direct products of every key of the zone, in double: what a query head finds best.
  static std::vector<int32_t> Best(const Geometry& g, const std::vector<float>& queries, int q_head,
                                   const ItemAnswer& answer, size_t top_k) {
    std::vector<std::pair<double, int32_t>> all;
    for (auto p = static_cast<int32_t>(answer.zone_begin); p < answer.zone_end; ++p) {
      all.emplace_back(-testing::Direct(g, queries, q_head, {p}, 1).log_sum_exp, p);
    }
    std::sort(all.begin(), all.end());
    std::vector<int32_t> best;
    for (size_t i = 0; i < top_k; ++i) best.push_back(all[i].second);
    std::sort(best.begin(), best.end());
    return best;
  }
  SearchMode ModeOf(const Index& index, SearchParams params) const {
    const std::vector<float> queries = Queries(index.config().geometry, 4);
    const auto answers = index.Retrieve({{{"s"}, 0, queries.data()}}, params);
    EXPECT_TRUE(answers.ok()) << answers.status();
    return (*answers)[0].path;
  }
  std::unique_ptr<Index> Filled(const IndexConfig& config, Backend* backend, int64_t tokens = kShortTokens) {
    auto index = MakeIndex(config, backend);
    EXPECT_TRUE(AppendNames(index.get(), *index->CreateSequence("s"), 0, 0, Names(1, tokens)).ok());
    return index;
  }
};

TEST_F(ShortZoneTest, AnswersAreExactInEveryShape) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const IndexConfig config = Config(dtype);
    auto index = Filled(config, &backend_);
    const std::vector<float> queries = Queries(config.geometry, 4);
    for (const Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
      SearchParams params = Usual(scope);
      const ItemAnswer found = (*index->Retrieve({{{"s"}, 0, queries.data()}}, params))[0];
      EXPECT_EQ(found.path, SearchMode::kExact);
      EXPECT_EQ(found.stats.scanned_keys, 0);
      const AttendAnswer attended = One(*index, {"s"}, 0, queries, params);
      EXPECT_EQ(attended.path, SearchMode::kExact);
      ExpectAsSelected(config.geometry, queries, attended);
      EXPECT_TRUE(testing::SameAnswers({attended.selected}, {found}));
      params.method = Method::kExact;
      EXPECT_TRUE(testing::SameAnswers({found}, *index->Retrieve({{{"s"}, 0, queries.data()}}, params)));
      for (int h = 0; h < config.geometry.num_q_heads && scope == Scope::kPerQHead; ++h) {
        EXPECT_EQ(found.positions[h], Best(config.geometry, queries, h, found, 20));
      }
    }
  }
}

TEST_F(ShortZoneTest, OfABalancedCodeToo) {
  const testing::MadeUpModel model(SmallConfig().geometry);
  IndexConfig config = testing::BalancedConfig(model, model.Measure());
  config.search = {};
  auto index = MakeIndex(config, &backend_);
  const SequenceHandle seq = *index->CreateSequence("s");
  const std::string rows = model.KeyRows(0, 1000);
  const TensorView keys{rows.data(), 1000, rows.size()};
  ASSERT_TRUE(index->Append(seq, 0, 0, keys, config.kv_store == KvStore::kKeysValues ? keys : TensorView()).ok());
  const std::vector<float> queries = model.Query(1000, 1);
  SearchParams params;
  const auto found = *index->Retrieve({{seq, 0, queries.data()}}, params);
  EXPECT_EQ(found[0].path, SearchMode::kExact);
  params.method = Method::kExact;
  EXPECT_TRUE(testing::SameAnswers(found, *index->Retrieve({{seq, 0, queries.data()}}, params)));
}

TEST_F(ShortZoneTest, UpToFourRowsForEachThatIsRefined) {
  const IndexConfig config = Config();  // three query heads a KV head
  SearchParams params = Usual(Scope::kPerQHead);
  params.rescore_k = 32;  // 384 keys
  for (const auto& [keys, path] : {std::pair{384, SearchMode::kExact}, {448, SearchMode::kIndex}}) {
    auto index = Filled(config, &backend_, keys + 48);
    EXPECT_EQ(ModeOf(*index, params), path) << keys;
    SearchParams wider = params;
    wider.rescore_k = 0;
    wider.top_k = 38;  // 456
    EXPECT_EQ(ModeOf(*index, wider), SearchMode::kExact);
  }
  EXPECT_TRUE(ReadsWhole({.top_k = 100, .rescore_k = 200}, 8, 3200));
  EXPECT_FALSE(ReadsWhole({.top_k = 100, .rescore_k = 200}, 8, 3264)) << "four heads share a row";
  EXPECT_FALSE(ReadsWhole({.top_k = 100, .rescore_k = 200}, 1, 832));
  EXPECT_TRUE(ReadsWhole({.top_k = 100, .method = Method::kExact}, 1, 1 << 30));
}

TEST_F(ShortZoneTest, WhoAsksForAShareOfTheCodesGetsIt) {
  auto index = Filled(Config(), &backend_);
  const SearchParams usual = Usual(Scope::kPerQHead);
  EXPECT_EQ(ModeOf(*index, usual), SearchMode::kExact);
  SearchParams params = usual;
  params.candidate_fraction = .1;
  EXPECT_EQ(ModeOf(*index, params), SearchMode::kIndex);
  params = usual;
  params.with_candidates = true;
  EXPECT_EQ(ModeOf(*index, params), SearchMode::kIndex);
  params = usual;
  params.mass_p = .5;
  EXPECT_EQ(ModeOf(*index, params), SearchMode::kExact);
  EXPECT_FALSE(ReadsWhole({.recall_target = .9}, 4, 64));
  EXPECT_FALSE(ReadsWhole({.coarse = Coarse::kCollision}, 4, 64));
}

TEST_F(ShortZoneTest, WithoutFullRankKeysBesideTheCodesTheCodesAreSearched) {
  const SearchParams params = Usual(Scope::kPerQHead);
  EXPECT_EQ(ModeOf(*Filled(SmallConfig(KvStore::kNone), &backend_), params), SearchMode::kIndex);
  EXPECT_EQ(ModeOf(*Filled(testing::LowRankConfig(), &backend_), params), SearchMode::kIndex);
  const auto device = cuda::BackendOn(std::make_shared<cuda::HostDeviceControl>());
  for (Backend* const backend : std::initializer_list<Backend*>{device.get(), &backend_}) {  // a device as the CPU
    EXPECT_EQ(ModeOf(*Filled(SmallConfig(), backend), params), SearchMode::kExact);
  }
}

// 256 candidates a query head, at the default share and at none.
TEST_F(ShortZoneTest, BeyondFewCandidatesAreAllScoredExactly) {
  const IndexConfig config = Config();
  const auto index = Filled(config, &backend_, 1400);
  const std::vector<float> queries = Queries(config.geometry, 4);
  const auto device = cuda::BackendOn(std::make_shared<cuda::HostDeviceControl>());
  const auto on_device = Filled(config, device.get(), 1400);
  const auto answers_of = [&](const Index& asked, SearchParams params) {
    auto answers = asked.Retrieve({{{"s"}, 0, queries.data()}}, params);
    EXPECT_TRUE(answers.ok()) << answers.status();
    EXPECT_EQ((*answers)[0].path, SearchMode::kIndex);
    return *std::move(answers);
  };
  const auto found = [&](SearchParams params) { return answers_of(*index, params); };
  const int heads = config.geometry.num_q_heads;
  SearchParams usual = Usual(Scope::kPerQHead), reranked = usual;
  usual.rescore_k = 100;
  reranked.rescore_k = 60;  // of the candidates less than a third
  SearchParams all = usual;
  all.candidate_fraction = 1e-6;
  all.rescore_k = 256;
  EXPECT_TRUE(testing::SameAnswers(found(usual), found(all)));
  EXPECT_EQ(found(usual)[0].stats.refined, 256 * heads);
  EXPECT_EQ(found(reranked)[0].stats.refined, 60 * heads);
  SearchParams asked = usual;  // for a share of the zone
  asked.candidate_fraction = all.candidate_fraction;
  EXPECT_EQ(found(asked)[0].stats.refined, 100 * heads);
  EXPECT_TRUE(RefinesAll(usual, 300));
  EXPECT_FALSE(RefinesAll(usual, 301));
  EXPECT_FALSE(RefinesAll({.rescore_k = 200, .scope = Scope::kPerKvHead}, 256));
  EXPECT_FALSE(RefinesAll({.mass_p = .5, .rescore_k = 200, .scope = Scope::kPerQHead}, 256));
  EXPECT_FALSE(RefinesAll({.recall_target = .9, .rescore_k = 200, .scope = Scope::kPerQHead}, 256));
  EXPECT_EQ(answers_of(*on_device, usual)[0].stats.refined, 256 * heads) << "a device as the CPU";
}

TEST_F(ShortZoneTest, OfHeadsThatRetainDifferentTokens) {
  const IndexConfig config = Config();
  auto index = Filled(config, &backend_, 700);
  EvictParams evict;
  evict.scorer.name = "knorm";
  evict.budget.tokens = 300;
  ASSERT_TRUE(index->Evict({"s"}, 0, evict, {}).ok());
  const std::vector<float> queries = Queries(config.geometry, 4);
  for (const Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
    const AttendAnswer answer = One(*index, {"s"}, 0, queries, Usual(scope));
    EXPECT_EQ(answer.path, SearchMode::kExact);
    EXPECT_NE(answer.selected.dense_positions[0], answer.selected.dense_positions[1]);
    ExpectAsSelected(config.geometry, queries, answer);
    SearchParams exact = Usual(scope);
    exact.method = Method::kExact;
    EXPECT_TRUE(testing::SameAnswers({answer.selected}, *index->Retrieve({{{"s"}, 0, queries.data()}}, exact)));
  }
}

}  // namespace
}  // namespace seine
