// Attend against direct attention in float64 over what it says that it attended, through every history of a sequence,
// and its errors.
#include "tests/index/direct_attention.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::AttendTest;
using testing::Direct;
using testing::Exact;
using testing::MakeIndex;
using testing::Names;
using testing::Queries;
using testing::TestBackend;
using testing::UpTo;

using absl::StatusCode;

TEST_F(AttendTest, EqualsDirectAttentionInEveryShape) {
  for (const int dim : {64, 80, 96, 128, 256}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      const IndexConfig config = Config(dtype, dim);
      auto index = MakeIndex(config, &backend_);
      const SequenceHandle seq = *index->CreateSequence("s");
      ASSERT_TRUE(AppendNames(index.get(), seq, 1, 0, Names(1, 420)).ok());
      const std::vector<float> queries = Queries(config.geometry, 4);
      for (const Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
        const AttendAnswer answer = One(*index, seq, 1, queries, Params(scope));
        EXPECT_EQ(answer.path, SearchMode::kIndex);
        EXPECT_EQ(answer.num_tokens, 420);
        ASSERT_EQ(answer.selected.positions.size(), scope == Scope::kPerQHead ? 6u : 2u);
        ExpectAsSelected(config.geometry, queries, answer);
        const auto found = *index->Retrieve({{seq, 1, queries.data()}}, Params(scope));
        EXPECT_TRUE(testing::SameAnswers({answer.selected}, found));
      }
    }
  }
}

TEST_F(AttendTest, AllOfTheZoneAndThePathsEqualDenseAttention) {
  IndexConfig config = Config();
  config.zones.dense_threshold = 200;
  auto index = MakeIndex(config, &backend_);
  const std::vector<float> queries = Queries(config.geometry, 4);
  for (const int64_t n : {1, 47, 199, 200, 3000}) {
    const SequenceHandle seq = *index->CreateSequence("");
    ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, n)).ok());
    for (const Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
      SearchParams params = Params(scope, 3000);
      const AttendAnswer answer = One(*index, seq, 0, queries, params);
      EXPECT_EQ(answer.path, n < 200 ? SearchMode::kDense : SearchMode::kIndex);
      ExpectDirect(config.geometry, queries, answer, {UpTo(n)});
      params.method = Method::kExact;
      const AttendAnswer exact = One(*index, seq, 0, queries, params);
      EXPECT_EQ(exact.path, n < 200 ? SearchMode::kDense : SearchMode::kExact);
      ExpectDirect(config.geometry, queries, exact, {UpTo(n)});
    }
  }
}

TEST_F(AttendTest, OverNothingIsZeroAndMinusInfinity) {
  auto index = MakeIndex(Config(), &backend_);
  const SequenceHandle seq = *index->CreateSequence("s");
  const std::vector<float> queries = Queries(index->config().geometry, 4);
  const AttendAnswer answer = One(*index, seq, 0, queries, Params());
  EXPECT_EQ(answer.path, SearchMode::kDense);
  EXPECT_EQ(answer.attended_tokens, 0);
  EXPECT_EQ(answer.output, std::vector<float>(6 * 64, 0.0f));
  EXPECT_EQ(answer.log_sum_exp, std::vector<float>(6, -INFINITY));
}

// A device keeps codes apart; attention reads the host's memory, and goes on where there is nothing to search.
TEST_F(AttendTest, OverADevice) {
  auto plain = MakeIndex(Config(), &backend_);
  TestBackend device{2};
  device.apart = true;
  auto index = MakeIndex(Config(), &device);
  const std::vector<float> queries = Queries(index->config().geometry, 4);
  for (Index* one : {plain.get(), index.get()}) {
    for (const auto& [id, n] : {std::pair{"short", 40}, {"long", 400}}) {
      ASSERT_TRUE(AppendNames(one, *one->CreateSequence(id), 0, 0, Names(1, n)).ok());
    }
  }
  const AttendAnswer want = One(*plain, {"long"}, 0, queries, Params(), AttentionParams{.tail = true});
  EXPECT_EQ(One(*index, {"long"}, 0, queries, Params(), AttentionParams{.tail = true}).output, want.output);
  device.fail_operation = 0;
  EXPECT_EQ(index->Attend({{{"long"}, 0, queries.data()}}, Params(), {}).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(One(*index, {"long"}, 0, queries, Params(), AttentionParams{.tail = true}).output, want.output);
  device.lost = true;
  EXPECT_EQ(index->Attend({{{"long"}, 0, queries.data()}}, Params(), {}).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(One(*index, {"short"}, 0, queries, Params()).attended_tokens, 6 * 40);
}

// Two sequences that hold the two halves of a text merge to the attention over the whole.
TEST_F(AttendTest, DisjointHalvesMerge) {
  auto index = MakeIndex(Config(), &backend_);
  const Geometry& g = index->config().geometry;
  const std::vector<float> queries = Queries(g, 4);
  const SequenceHandle a = *index->CreateSequence("a"), b = *index->CreateSequence("b");
  ASSERT_TRUE(AppendNames(index.get(), a, 0, 0, Names(1, 300)).ok());
  ASSERT_TRUE(AppendNames(index.get(), b, 0, 0, Names(301, 250)).ok());
  const AttendAnswer one = One(*index, a, 0, queries, Params(Scope::kPerQHead, 1000));
  const AttendAnswer two = One(*index, b, 0, queries, Params(Scope::kPerQHead, 1000));
  for (int h = 0; h < g.num_q_heads; ++h) {
    const Exact whole = Direct(g, queries, h, UpTo(550));
    const double l1 = one.log_sum_exp[h], l2 = two.log_sum_exp[h];
    const double l = std::max(l1, l2) + std::log1p(std::exp(-std::fabs(l1 - l2)));
    EXPECT_NEAR(l, whole.log_sum_exp, 1e-5);
    for (int j = 0; j < g.head_dim; ++j) {
      const double merged =
          std::exp(l1 - l) * one.output[h * g.head_dim + j] + std::exp(l2 - l) * two.output[h * g.head_dim + j];
      ASSERT_NEAR(merged, whole.output[j], 1e-5);
    }
  }
}

TEST_F(AttendTest, ScaleIsThatOfTheCallElseOfTheSearch) {
  auto index = MakeIndex(Config(), &backend_);
  const Geometry& g = index->config().geometry;
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 300)).ok());
  const std::vector<float> queries = Queries(g, 4);
  SearchParams params = Params(Scope::kPerQHead, 1000);
  params.softmax_scale = .02f;
  ExpectDirect(g, queries, One(*index, seq, 0, queries, params), {UpTo(300)}, 1, .02f);
  ExpectDirect(g, queries, One(*index, seq, 0, queries, params, {.tail = false, .scale = .05f}), {UpTo(300)}, 1, .05f);
}

TEST_F(AttendTest, ASoftCapBendsLogits) {
  auto index = MakeIndex(Config(), &backend_);
  const Geometry& g = index->config().geometry;
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 300)).ok());
  const std::vector<float> queries = Queries(g, 4);
  for (const float cap : {.2f, 30.0f}) {
    const SearchParams all = Params(Scope::kPerQHead, 1000);
    ExpectDirect(g, queries, One(*index, seq, 0, queries, all, {.tail = false, .scale = .5f, .softcap = cap}),
                 {UpTo(300)}, 1, .5, cap);
    // The choice is the same as without it.
    const AttentionParams without = {.tail = false, .scale = .5f, .with_positions = true};
    AttentionParams with = without;
    with.softcap = cap;
    const AttendAnswer few = One(*index, seq, 0, queries, Params(), with);
    EXPECT_EQ(few.selected.positions, One(*index, seq, 0, queries, Params(), without).selected.positions);
    std::vector<std::vector<int32_t>> seen;
    for (int h = 0; h < g.num_q_heads; ++h) seen.push_back(Seen(g, few.selected, h));
    ExpectDirect(g, queries, few, seen, 1, .5, cap);
  }
}

TEST_F(AttendTest, AfterForkTruncateAndEviction) {
  auto index = MakeIndex(Config(), &backend_);
  const Geometry& g = index->config().geometry;
  const std::vector<float> queries = Queries(g, 4);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 600)).ok());
  const SequenceHandle fork = *index->Fork(seq, "fork", 500);
  ExpectAsSelected(g, queries, One(*index, fork, 0, queries, Params()));
  ASSERT_TRUE(index->Truncate(seq, 333).ok());
  ExpectAsSelected(g, queries, One(*index, seq, 0, queries, Params()));
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 333, Names(334, 400)).ok());
  ExpectAsSelected(g, queries, One(*index, seq, 0, queries, Params()));
  EvictParams evict;
  evict.scorer.name = "knorm";
  evict.budget.tokens = 300;
  ASSERT_TRUE(index->Evict(seq, 0, evict, {}).ok());
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 733, Names(734, 10)).ok());
  for (const Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
    const AttendAnswer evicted = One(*index, seq, 0, queries, Params(scope));
    EXPECT_EQ(evicted.path, SearchMode::kIndex);
    EXPECT_EQ(evicted.num_tokens, 743);
    ASSERT_EQ(evicted.selected.dense_positions.size(), 2u);
    EXPECT_NE(evicted.selected.dense_positions[0], evicted.selected.dense_positions[1]);
    ExpectAsSelected(g, queries, evicted);
    const AttendAnswer all = One(*index, seq, 0, queries, Params(scope, 1000));
    EXPECT_EQ(all.attended_tokens, 6 * 310);
    ExpectAsSelected(g, queries, all);
  }
  ExpectAsSelected(g, queries, One(*index, fork, 0, queries, Params()));
}

// A batch answers as each of its items would alone, in one thread or many, and wrong items for themselves.
TEST_F(AttendTest, BatchesAnswerItemByItem) {
  auto index = MakeIndex(Config(), &backend_);
  const Geometry& g = index->config().geometry;
  std::vector<SequenceHandle> handles;
  for (const int64_t n : {0, 3, 200, 2500, 900}) {
    handles.push_back(*index->CreateSequence(""));
    ASSERT_TRUE(AppendNames(index.get(), handles.back(), 0, 0, Names(n * 7, n)).ok());
  }
  std::vector<std::vector<float>> queries;
  for (uint32_t i = 0; i < 10; ++i) queries.push_back(Queries(g, i));
  std::vector<RetrieveItem> items;
  for (uint32_t i = 0; i < 10; ++i) items.push_back({handles[i % 5], 0, queries[i].data()});
  items[2].sequence = {"unknown", 0};
  items[3].layer = 7;
  queries[6][65] = NAN;
  items[7].queries = nullptr;
  const auto answers = *index->Attend(items, Params(), {});
  ASSERT_EQ(answers.size(), items.size());
  EXPECT_EQ(answers[2].status.code(), StatusCode::kNotFound);
  EXPECT_EQ(answers[3].status.message().substr(0, 7), "layer: ");
  EXPECT_EQ(answers[6].status.message().substr(0, 15), "queries: head 1");
  EXPECT_EQ(answers[7].status.message(), "queries: no data");
  for (const int i : {0, 1, 4, 5, 8, 9}) {
    const AttendAnswer alone = One(*index, items[i].sequence, 0, queries[i], Params(), {});
    EXPECT_EQ(answers[i].output, alone.output) << i;
    EXPECT_EQ(answers[i].log_sum_exp, alone.log_sum_exp) << i;
    EXPECT_EQ(answers[i].attended_tokens, alone.attended_tokens) << i;
    EXPECT_TRUE(answers[i].selected.positions.empty());
  }
}

TEST_F(AttendTest, WhatCannotBeFailsTheCall) {
  const std::vector<float> queries = Queries(Config().geometry, 1);
  for (const KvStore store : {KvStore::kNone, KvStore::kKeys}) {
    IndexConfig config = Config();
    config.kv_store = store;
    auto index = MakeIndex(config, &backend_);
    const auto answer = index->Attend({{*index->CreateSequence("s"), 0, queries.data()}}, Params(), {});
    EXPECT_EQ(answer.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(answer.status().message().substr(0, 20), "attention: kv_store ") << answer.status();
  }
  auto index = MakeIndex(Config(), &backend_);
  const std::vector<RetrieveItem> items = {{*index->CreateSequence("s"), 0, queries.data()}};
  for (const float scale : {-1.0f, NAN, INFINITY}) {
    const auto answer = index->Attend(items, Params(), {.scale = scale});
    EXPECT_EQ(answer.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(answer.status().message().substr(0, 16), "attention.scale:") << answer.status();
  }
  SearchParams params = Params();
  params.top_k = 0;
  EXPECT_EQ(index->Attend(items, params, {}).status().message().substr(0, 7), "top_k: ");
}

}  // namespace
}  // namespace seine