// Retrieval: paths, batches, scopes and reductions against a direct computation, and wrong items.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::MakeIndex;
using testing::Names;
using testing::Queries;
using testing::Rows;
using testing::SameAnswers;
using testing::SmallConfig;
using testing::TestBackend;

using absl::StatusCode;

constexpr int kDim = 64;

// fp32 keys in a layer of `n` tokens, and logits computed directly in double.
class Oracle {
 public:
  Oracle(const Geometry& g, int64_t n) : g_(g), rows_(Rows(g, Names(1, n))), n_(n) {}
  double Logit(const std::vector<float>& queries, int q_head, int64_t position) const {
    const int64_t kv_head = q_head / g_.group();
    const char* row = rows_.data() + (position * g_.num_kv_heads + kv_head) * g_.head_dim * 4;
    double sum = 0;
    for (int i = 0; i < g_.head_dim; ++i) {
      float x;
      std::memcpy(&x, row + i * 4, 4);
      sum += double{x} * double{queries[q_head * g_.head_dim + i]};
    }
    return sum / std::sqrt(double(g_.head_dim));
  }
  double LogSumExp(const std::vector<float>& queries, int q_head) const {
    double sum = 0;
    for (int64_t p = 0; p < n_; ++p) sum += std::exp(Logit(queries, q_head, p));
    return std::log(sum);
  }

 private:
  const Geometry g_;
  const std::string rows_;
  const int64_t n_;
};

class RetrieveTest : public ::testing::Test {
 protected:
  static IndexConfig Config() {
    IndexConfig config = SmallConfig();
    config.geometry = {
        .num_layers = 2, .num_q_heads = 6, .num_kv_heads = 2, .head_dim = kDim, .dtype = DType::kFloat32};
    return config;
  }
  TestBackend backend_{2};
};

TEST_F(RetrieveTest, DenseBelowTheThresholdOrWithoutAZone) {
  IndexConfig config = Config();
  config.zones.dense_threshold = 300;
  auto index = MakeIndex(config, &backend_);
  const std::vector<float> queries = Queries(config.geometry, 1);
  for (const auto& [n, path] : {std::pair<int64_t, SearchMode>{0, SearchMode::kDense},
                                {20, SearchMode::kDense},
                                {299, SearchMode::kDense},
                                {300, SearchMode::kIndex},
                                {301, SearchMode::kIndex}}) {
    const SequenceHandle seq = *index->CreateSequence("");
    ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, n)).ok());
    SearchParams params;
    params.candidate_fraction = .05;  // the codes are searched, however short the zone
    for (const auto& [scope, sets] : {std::pair{Scope::kPerKvHead, 2u}, {Scope::kPerQHead, 6u}}) {
      params.scope = scope;
      const ItemAnswer answer = (*index->Retrieve({{seq, 0, queries.data()}}, params))[0];
      ASSERT_TRUE(answer.status.ok());
      EXPECT_EQ(answer.path, path) << n;
      EXPECT_EQ(answer.num_tokens, n);
      ASSERT_EQ(answer.positions.size(), sets);
      ASSERT_EQ(answer.scores.size(), sets);
      if (path == SearchMode::kDense) {
        EXPECT_EQ(answer.zone_begin, n);
        EXPECT_EQ(answer.zone_end, n);
        EXPECT_TRUE(answer.all_returned);
        for (const auto& set : answer.positions) EXPECT_TRUE(set.empty());
      } else {
        EXPECT_EQ(answer.zone_begin, 16);
        EXPECT_EQ(answer.zone_end, 16 + (n - 48) / 64 * 64);
        EXPECT_FALSE(answer.all_returned);
        for (const auto& set : answer.positions) {
          ASSERT_EQ(set.size(), 100u);
          EXPECT_TRUE(std::is_sorted(set.begin(), set.end()));
          EXPECT_GE(set.front(), answer.zone_begin);
          EXPECT_LT(set.back(), answer.zone_end);
        }
      }
    }
  }
}

// Every scope and reduction, exact: scores against double, dense zones over several chunks included.
TEST_F(RetrieveTest, ExactScoresEqualADirectComputation) {
  IndexConfig config = Config();
  config.zones = {.sink = 2100, .local = 2100, .update_buffer = 64, .dense_threshold = 0};  // dense runs cross chunks
  auto index = MakeIndex(config, &backend_);
  const Geometry& g = config.geometry;
  const int64_t n = 4500;
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 1, 0, Names(1, n)).ok());
  const Oracle oracle(g, n);
  const std::vector<float> queries = Queries(g, 2);
  SearchParams params;
  params.method = Method::kExact;
  params.top_k = 300;  // more than the zone's 256
  for (const Scope scope : {Scope::kPerKvHead, Scope::kPerQHead}) {
    for (const GqaReduce reduce : {GqaReduce::kSoftmaxSum, GqaReduce::kMax, GqaReduce::kMean}) {
      params.scope = scope;
      params.gqa_reduce = reduce;
      const ItemAnswer answer = (*index->Retrieve({{seq, 1, queries.data()}}, params))[0];
      ASSERT_TRUE(answer.status.ok());
      EXPECT_EQ(answer.path, SearchMode::kExact);
      EXPECT_TRUE(answer.all_returned);
      ASSERT_EQ(answer.positions.size(), scope == Scope::kPerKvHead ? 2u : 6u);
      for (size_t set = 0; set < answer.positions.size(); ++set) {
        ASSERT_EQ(answer.positions[set].size(), 256u);
        for (size_t i = 0; i < 256; i += 5) {
          const int32_t position = answer.positions[set][i];
          ASSERT_EQ(position, 2100 + static_cast<int32_t>(i));
          double expected = reduce == GqaReduce::kMax ? -INFINITY : 0;
          if (scope == Scope::kPerQHead) {
            expected = oracle.Logit(queries, static_cast<int>(set), position);
          } else {
            for (int q = static_cast<int>(set) * 3; q < static_cast<int>(set) * 3 + 3; ++q) {
              const double logit = oracle.Logit(queries, q, position);
              if (reduce == GqaReduce::kMax) expected = std::max(expected, logit);
              if (reduce == GqaReduce::kMean) expected += logit / 3;
              if (reduce == GqaReduce::kSoftmaxSum && i % 50 == 0)
                expected += std::exp(logit - oracle.LogSumExp(queries, q));
            }
          }
          const bool weights = scope == Scope::kPerKvHead && reduce == GqaReduce::kSoftmaxSum;
          if (weights && i % 50 != 0) continue;
          EXPECT_NEAR(answer.scores[set][i], expected, weights ? 1e-4 * expected : 1e-4) << set << " " << i;
        }
      }
    }
  }
}

TEST_F(RetrieveTest, IndexFindsWhatExactFinds) {
  auto index = MakeIndex(Config(), &backend_);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 6000)).ok());
  SearchParams exact, params;
  exact.scope = params.scope = Scope::kPerQHead;
  exact.method = Method::kExact;
  params.candidate_fraction = .2;
  size_t found = 0, wanted = 0;
  for (uint32_t seed = 0; seed < 8; ++seed) {
    const std::vector<float> queries = Queries(Config().geometry, 100 + seed);
    const auto truth = *index->Retrieve({{seq, 0, queries.data()}}, exact);
    const auto answer = *index->Retrieve({{seq, 0, queries.data()}}, params);
    EXPECT_EQ(answer[0].path, SearchMode::kIndex);
    EXPECT_GT(answer[0].stats.scanned_keys, 0);
    for (int q = 0; q < 6; ++q) {
      for (const int32_t p : truth[0].positions[q]) {
        found += std::binary_search(answer[0].positions[q].begin(), answer[0].positions[q].end(), p);
      }
      wanted += truth[0].positions[q].size();
    }
  }
  EXPECT_EQ(wanted, 8u * 6 * 100);
  EXPECT_GE(static_cast<double>(found), .95 * static_cast<double>(wanted));
}

// A batch of ragged lengths, doubles and both layers answers as each item would alone, whatever else is in it.
TEST_F(RetrieveTest, RaggedBatchesAnswerItemByItem) {
  auto index = MakeIndex(Config(), &backend_);
  const Geometry& g = index->config().geometry;
  std::vector<SequenceHandle> handles;
  std::vector<std::vector<float>> queries;
  std::vector<RetrieveItem> items;
  for (const int64_t n : {0, 1, 47, 112, 113, 500, 2200, 48 + 64}) {
    handles.push_back(*index->CreateSequence(""));
    ASSERT_TRUE(AppendNames(index.get(), handles.back(), 0, 0, Names(n * 7, n)).ok());
    ASSERT_TRUE(AppendNames(index.get(), handles.back(), 1, 0, Names(n * 11, n + 70)).ok());
  }
  for (uint32_t i = 0; i < 40; ++i) queries.push_back(Queries(g, i));
  for (uint32_t i = 0; i < 40; ++i) {
    items.push_back({handles[(i * 5) % handles.size()], static_cast<int>(i / 8 % 2), queries[i].data()});
  }
  items[3].sequence = {"unknown", 0};
  items[5].sequence.generation += 100;
  items[7].layer = 2;
  items[9].layer = -1;
  items[11].queries = nullptr;
  queries[13][4 * kDim] = NAN;
  queries[15][5 * kDim + 63] = INFINITY;
  queries[17][0] = 1e30f;
  for (const Scope scope : {Scope::kPerKvHead, Scope::kPerQHead}) {
    SearchParams params;
    params.scope = scope;
    params.top_k = 20;
    params.with_candidates = true;
    const auto answers = *index->Retrieve(items, params);
    ASSERT_EQ(answers.size(), items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      EXPECT_TRUE(SameAnswers({answers[i]}, *index->Retrieve({items[i]}, params))) << i;
    }
    EXPECT_EQ(answers[3].status.code(), StatusCode::kNotFound);
    EXPECT_EQ(answers[5].status.code(), StatusCode::kFailedPrecondition);
    for (const int i : {7, 9, 11, 13, 15, 17}) EXPECT_EQ(answers[i].status.code(), StatusCode::kInvalidArgument) << i;
    EXPECT_EQ(answers[7].status.message().substr(0, 7), "layer: ");
    EXPECT_EQ(answers[13].status.message().substr(0, 15), "queries: head 4") << answers[13].status;
    int searched = 0;
    for (const ItemAnswer& answer : answers) searched += answer.status.ok() && answer.path == SearchMode::kIndex;
    EXPECT_GE(searched, 15);
  }
  EXPECT_TRUE(index->Retrieve({}, SearchParams())->empty());
}

TEST_F(RetrieveTest, ParametersThatDoNotFitTheIndexFailTheCall) {
  IndexConfig config = Config();
  config.kv_store = KvStore::kNone;
  auto index = MakeIndex(config, &backend_);
  const std::vector<float> queries = Queries(config.geometry, 1);
  const std::vector<RetrieveItem> items = {{*index->CreateSequence("s"), 0, queries.data()}};
  SearchParams params;
  params.method = Method::kExact;
  EXPECT_EQ(index->Retrieve(items, params).status().code(), StatusCode::kFailedPrecondition);
  params = SearchParams();
  params.coarse = Coarse::kCollision;
  const absl::Status status = index->Retrieve(items, params).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().substr(0, 8), "coarse: ");
  params = SearchParams();
  params.recall_target = .9;  // rsq does not predict its noise
  EXPECT_EQ(index->Retrieve(items, params).status().message().substr(0, 15), "recall_target: ");
}

TEST_F(RetrieveTest, CheckedParametersServeManyCallsOfTheirIndexAlone) {
  IndexConfig config = Config();
  config.kv_store = KvStore::kKeysValues;
  auto index = MakeIndex(config, &backend_), other = MakeIndex(config, &backend_);
  const std::vector<float> queries = Queries(config.geometry, 1);
  const std::vector<RetrieveItem> items = {{*index->CreateSequence("s"), 0, queries.data()}};
  const std::vector<RetrieveItem> others = {{*other->CreateSequence("s"), 0, queries.data()}};
  const auto search = index->Check(SearchParams());
  const auto attention = index->Check(AttentionParams());
  ASSERT_TRUE(search.ok() && attention.ok());
  for (int call = 0; call < 2; ++call) {
    EXPECT_TRUE(index->Retrieve(items, *search, {}).ok());
    EXPECT_TRUE(index->Attend(items, *search, *attention, {}).ok());
  }
  EXPECT_EQ(other->Retrieve(others, *search, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(other->Attend(others, *other->Check(SearchParams()), *attention, {}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(RetrieveTest, ACheckHasTheErrorsOfTheCall) {
  IndexConfig config = Config();
  config.kv_store = KvStore::kKeysValues;
  auto index = MakeIndex(config, &backend_);
  for (const SearchParams& wrong :
       {SearchParams{.top_k = 0}, SearchParams{.candidate_fraction = 2}, SearchParams{.rescore_k = -1},
        SearchParams{.coarse = Coarse::kCollision}, SearchParams{.recall_target = .9}}) {
    const absl::Status status = index->Check(wrong).status();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(index->Retrieve({}, wrong).status(), status);
    EXPECT_EQ(index->Attend({}, wrong, {}).status(), status);
  }
  const AttentionParams negative = {.scale = -1};
  EXPECT_EQ(index->Attend({}, SearchParams(), negative).status(), index->Check(negative).status());
}

TEST_F(RetrieveTest, EveryHeadDimensionAndGroup) {
  for (const int dim : kHeadDims) {
    for (const auto& [kv_heads, group] : {std::pair{1, 1}, {3, 3}, {1, 32}}) {
      IndexConfig config = Config();
      config.geometry = {.num_layers = 1,
                         .num_q_heads = kv_heads * group,
                         .num_kv_heads = kv_heads,
                         .head_dim = dim,
                         .dtype = DType::kFloat16};
      auto index = MakeIndex(config, &backend_);
      const SequenceHandle seq = *index->CreateSequence("s");
      ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 400)).ok());
      const std::vector<float> queries = Queries(config.geometry, 5);
      SearchParams params, exact;
      params.scope = exact.scope = Scope::kPerQHead;
      params.top_k = exact.top_k = 10;
      params.candidate_fraction = 1;
      exact.method = Method::kExact;
      const ItemAnswer answer = (*index->Retrieve({{seq, 0, queries.data()}}, params))[0];
      const ItemAnswer truth = (*index->Retrieve({{seq, 0, queries.data()}}, exact))[0];
      // 320 keys, of which 200 are scored exactly: the best ten are always among them.
      EXPECT_EQ(answer.positions, truth.positions) << dim << " " << group;
      EXPECT_EQ(answer.scores, truth.scores) << dim << " " << group;
    }
  }
}

}  // namespace
}  // namespace seine
