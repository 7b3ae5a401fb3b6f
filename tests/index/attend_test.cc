// Attend against direct attention in float64 over what it says that it attended, through every history of a sequence,
// and its errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::kValueNames;
using testing::MakeIndex;
using testing::Names;
using testing::Queries;
using testing::SmallConfig;
using testing::TestBackend;
using testing::TokenRow;

using absl::StatusCode;

// Element `i` of a row in any dtype.
double At(const std::string& row, DType dtype, int i) {
  if (dtype == DType::kFloat32) {
    float x;
    std::memcpy(&x, row.data() + 4 * i, 4);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, row.data() + 2 * i, 2);
  if (dtype == DType::kFloat16) {
    _Float16 half;
    std::memcpy(&half, &bits, 2);
    return static_cast<double>(half);
  }
  const uint32_t wide = uint32_t{bits} << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}

struct Exact {
  std::vector<double> output;
  double log_sum_exp = -INFINITY;
};

// Attention of a query head over tokens at `positions`, named first_name + position, in float64.
Exact Direct(const Geometry& g, const std::vector<float>& queries, int q_head, const std::vector<int32_t>& positions,
             uint64_t first_name = 1, double scale = 0) {
  const int begin = q_head / g.group() * g.head_dim;
  if (scale == 0) scale = 1 / std::sqrt(double(g.head_dim));
  Exact exact;
  exact.output.assign(g.head_dim, 0);
  double sum = 0;
  for (const int32_t position : positions) {
    const std::string key = TokenRow(g, first_name + position);
    const std::string value = TokenRow(g, first_name + position + kValueNames);
    double logit = 0;
    for (int j = 0; j < g.head_dim; ++j) {
      logit += At(key, g.dtype, begin + j) * double{queries[q_head * g.head_dim + j]};
    }
    const double weight = std::exp(logit * scale);
    sum += weight;
    for (int j = 0; j < g.head_dim; ++j) exact.output[j] += weight * At(value, g.dtype, begin + j);
  }
  for (double& x : exact.output) x /= sum;
  if (sum > 0) exact.log_sum_exp = std::log(sum);
  return exact;
}

// What an answer says that a query head saw.
std::vector<int32_t> Seen(const Geometry& g, const ItemAnswer& answer, int q_head) {
  const int kv_head = q_head / g.group();
  const bool own = static_cast<int>(answer.positions.size()) == g.num_q_heads;
  std::vector<int32_t> seen = answer.positions[own ? q_head : kv_head];
  if (!answer.dense_positions.empty()) {
    seen.insert(seen.end(), answer.dense_positions[kv_head].begin(), answer.dense_positions[kv_head].end());
  } else {
    for (int32_t p = 0; p < answer.num_tokens; ++p) {
      if (p < answer.dense_begin || p >= answer.dense_end) seen.push_back(p);
    }
  }
  std::sort(seen.begin(), seen.end());
  return seen;
}

std::vector<int32_t> UpTo(int64_t n) {
  std::vector<int32_t> all(n);
  for (int64_t i = 0; i < n; ++i) all[i] = static_cast<int32_t>(i);
  return all;
}

class AttendTest : public ::testing::Test {
 protected:
  static IndexConfig Config(DType dtype = DType::kFloat16, int head_dim = 64) {
    IndexConfig config = SmallConfig(KvStore::kKeysValues);
    config.geometry = {.num_layers = 2, .num_q_heads = 6, .num_kv_heads = 2, .head_dim = head_dim, .dtype = dtype};
    return config;
  }
  static SearchParams Params(Scope scope = Scope::kPerQHead, int top_k = 20) {
    SearchParams params;
    params.scope = scope;
    params.top_k = top_k;
    return params;
  }
  static AttendAnswer One(const Index& index, const SequenceHandle& seq, int layer, const std::vector<float>& queries,
                          const SearchParams& params,
                          const AttentionParams& attention = {.tail = false, .with_positions = true}) {
    auto answers = index.Attend({{seq, layer, queries.data()}}, params, attention);
    EXPECT_TRUE(answers.ok()) << answers.status();
    EXPECT_TRUE((*answers)[0].status.ok()) << (*answers)[0].status;
    return (*answers)[0];
  }
  static void ExpectDirect(const Geometry& g, const std::vector<float>& queries, const AttendAnswer& answer,
                           const std::vector<std::vector<int32_t>>& seen, uint64_t first_name = 1, double scale = 0) {
    int64_t attended = 0;
    for (int h = 0; h < g.num_q_heads; ++h) {
      const std::vector<int32_t>& of_head = seen.size() == 1 ? seen[0] : seen[h];
      const Exact exact = Direct(g, queries, h, of_head, first_name, scale);
      EXPECT_NEAR(answer.log_sum_exp[h], exact.log_sum_exp, 1e-5) << h;
      for (int j = 0; j < g.head_dim; ++j) {
        ASSERT_NEAR(answer.output[h * g.head_dim + j], exact.output[j], 1e-5) << h << " " << j;
      }
      attended += static_cast<int64_t>(of_head.size());
    }
    EXPECT_EQ(answer.attended_tokens, attended);
  }
  // Against what the answer itself says that each head saw.
  static void ExpectAsSelected(const Geometry& g, const std::vector<float>& queries, const AttendAnswer& answer,
                               uint64_t first_name = 1) {
    std::vector<std::vector<int32_t>> seen;
    for (int h = 0; h < g.num_q_heads; ++h) seen.push_back(Seen(g, answer.selected, h));
    ExpectDirect(g, queries, answer, seen, first_name);
  }
  TestBackend backend_{2};
};

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
        EXPECT_EQ(answer.path, Path::kIndex);
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
      EXPECT_EQ(answer.path, n < 200 ? Path::kDense : Path::kIndex);
      ExpectDirect(config.geometry, queries, answer, {UpTo(n)});
      params.method = Method::kExact;
      const AttendAnswer exact = One(*index, seq, 0, queries, params);
      EXPECT_EQ(exact.path, n < 200 ? Path::kDense : Path::kExact);
      ExpectDirect(config.geometry, queries, exact, {UpTo(n)});
    }
  }
}

TEST_F(AttendTest, OverNothingIsZeroAndMinusInfinity) {
  auto index = MakeIndex(Config(), &backend_);
  const SequenceHandle seq = *index->CreateSequence("s");
  const std::vector<float> queries = Queries(index->config().geometry, 4);
  const AttendAnswer answer = One(*index, seq, 0, queries, Params());
  EXPECT_EQ(answer.path, Path::kDense);
  EXPECT_EQ(answer.attended_tokens, 0);
  EXPECT_EQ(answer.output, std::vector<float>(6 * 64, 0.0f));
  EXPECT_EQ(answer.log_sum_exp, std::vector<float>(6, -INFINITY));
}

// The means of a window's keys and values, in double, of names first_name + position.
struct Means {
  std::vector<double> key, value;
};
Means WindowMeans(const Geometry& g, int kv_head, const std::vector<int32_t>& positions) {
  Means means{std::vector<double>(g.head_dim), std::vector<double>(g.head_dim)};
  for (const int32_t position : positions) {
    const std::string key = TokenRow(g, 1 + position), value = TokenRow(g, 1 + position + kValueNames);
    for (int j = 0; j < g.head_dim; ++j) {
      means.key[j] += At(key, g.dtype, kv_head * g.head_dim + j) / 64;
      means.value[j] += At(value, g.dtype, kv_head * g.head_dim + j) / 64;
    }
  }
  return means;
}

// Attention over what a head saw and, for each window of `zone` (its positions in order), what it did not.
void ExpectTail(const Geometry& g, const std::vector<float>& queries, const AttendAnswer& answer, int q_head,
                const std::vector<int32_t>& zone) {
  const std::vector<int32_t> seen = Seen(g, answer.selected, q_head);
  const Exact exact = Direct(g, queries, q_head, seen);
  double sum = std::exp(exact.log_sum_exp);
  std::vector<double> want = exact.output;
  for (double& x : want) x *= sum;
  for (size_t first = 0; first < zone.size(); first += 64) {
    const std::vector<int32_t> window(zone.begin() + first, zone.begin() + first + 64);
    int64_t left = 64;
    for (const int32_t p : window) left -= std::binary_search(seen.begin(), seen.end(), p);
    const Means means = WindowMeans(g, q_head / g.group(), window);
    double dot = 0;
    for (int j = 0; j < g.head_dim; ++j) dot += means.key[j] * double{queries[q_head * g.head_dim + j]};
    const double weight = left * std::exp(dot / std::sqrt(double(g.head_dim)));
    sum += weight;
    for (int j = 0; j < g.head_dim; ++j) want[j] += weight * means.value[j];
  }
  // Means and queries are in int8.
  EXPECT_NEAR(answer.log_sum_exp[q_head], std::log(sum), 1e-2) << q_head;
  for (int j = 0; j < g.head_dim; ++j) {
    ASSERT_NEAR(answer.output[q_head * g.head_dim + j], want[j] / sum, 1e-2) << q_head << " " << j;
  }
}

constexpr AttentionParams kWithTail = {.tail = true, .with_positions = true};

// Positions [16, 16 + 64 windows).
std::vector<int32_t> ZoneOf(const AttendAnswer& answer) {
  std::vector<int32_t> zone = UpTo(answer.selected.dense_end);
  zone.erase(zone.begin(), zone.begin() + answer.selected.dense_begin);
  return zone;
}

TEST_F(AttendTest, TheTailIsThatOfTheWindowsMeansThroughEveryHistory) {
  for (const char* codec : {"rsq", "collision"}) {
    IndexConfig config = Config();
    if (std::string(codec) == "collision") {
      config.search.coarse = Coarse::kCollision;
      config.codec.centre = Centre::kNone;
    }
    auto index = MakeIndex(config, &backend_);
    const Geometry& g = config.geometry;
    const std::vector<float> queries = Queries(g, 4);
    const auto expect = [&](const SequenceHandle& seq, int64_t windows) {
      for (const Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
        SearchParams params = Params(scope);
        params.coarse = config.search.coarse;
        const AttendAnswer answer = One(*index, seq, 0, queries, params, kWithTail);
        EXPECT_TRUE(answer.tail);
        const std::vector<int32_t> zone = ZoneOf(answer);
        ASSERT_EQ(static_cast<int64_t>(zone.size()), 64 * windows);
        for (int h = 0; h < g.num_q_heads; ++h) ExpectTail(g, queries, answer, h, zone);
      }
    };
    const SequenceHandle seq = *index->CreateSequence("s");
    ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 600)).ok());
    expect(seq, 8);
    const SequenceHandle fork = *index->Fork(seq, "fork", 500);
    expect(fork, 7);
    ASSERT_TRUE(index->Truncate(seq, 333).ok());
    expect(seq, 4);
    for (int64_t n = 333; n < 500; ++n) ASSERT_TRUE(AppendNames(index.get(), seq, 0, n, Names(1 + n, 1)).ok());
    expect(seq, 7);
    const AttendAnswer one = One(*index, seq, 0, queries, index->config().search, kWithTail);
    EXPECT_EQ(one.output, One(*index, fork, 0, queries, index->config().search, kWithTail).output);
    ASSERT_TRUE(index->DeleteSequence(seq).ok());
    expect(fork, 7);
  }
}

TEST_F(AttendTest, TheTailAfterEvictionIsOfWhatIsRetained) {
  auto index = MakeIndex(Config(), &backend_);
  const Geometry& g = index->config().geometry;
  const std::vector<float> queries = Queries(g, 4);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 600)).ok());
  EvictParams evict;
  evict.scorer.name = "knorm";
  evict.budget.tokens = 300;
  const auto kept = index->Evict(seq, 0, evict, {});
  ASSERT_TRUE(kept.ok()) << kept.status();
  const AttendAnswer answer = One(*index, seq, 0, queries, Params(), kWithTail);
  EXPECT_TRUE(answer.tail);
  for (int h = 0; h < g.num_q_heads; ++h) {
    const std::vector<int32_t>& held = kept->kept[h / g.group()];
    ExpectTail(g, queries, answer, h, {held.begin() + 16, held.begin() + 16 + 192});
  }
}

// Where it is counted in unless the call says otherwise, and what it then gives where nothing is left over for it.
TEST_F(AttendTest, WhereTheTailIsCountedIn) {
  auto index = MakeIndex(Config(), &backend_);
  const std::vector<float> queries = Queries(index->config().geometry, 4);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 100)).ok());
  EXPECT_FALSE(One(*index, seq, 0, queries, Params(), kWithTail).tail);  // no zone yet
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 100, Names(101, 300)).ok());
  SearchParams exact = Params();
  exact.method = Method::kExact;
  EXPECT_TRUE(One(*index, seq, 0, queries, Params(), {}).tail);
  EXPECT_FALSE(One(*index, seq, 0, queries, Params(Scope::kPerKvHead), {}).tail);
  EXPECT_FALSE(One(*index, seq, 0, queries, exact, {}).tail);
  EXPECT_TRUE(One(*index, seq, 0, queries, exact, kWithTail).tail);
  EXPECT_FALSE(One(*index, seq, 0, queries, Params(), {.tail = false}).tail);
  const AttendAnswer all = One(*index, seq, 0, queries, Params(Scope::kPerQHead, 1000), kWithTail);
  EXPECT_EQ(all.output, One(*index, seq, 0, queries, Params(Scope::kPerQHead, 1000)).output);
}

// Every allocation of an append that adds windows fails once; nothing has changed then, and the same append succeeds.
TEST_F(AttendTest, WindowsSurviveEveryFailingAllocation) {
  auto index = MakeIndex(Config(), &backend_);
  const std::vector<float> queries = Queries(index->config().geometry, 4);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 300)).ok());
  const AttendAnswer before = One(*index, seq, 0, queries, Params(), kWithTail);
  const int64_t store_bytes = index->stats().store_bytes;
  const SequenceHandle fork = *index->Fork(seq, "fork", -1);  // shares the last pieces: they must be copied
  int failures = 0;
  for (;; ++failures) {
    backend_.fail_after = failures;
    const auto length = AppendNames(index.get(), seq, 0, 300, Names(301, 3000));
    backend_.fail_after = -1;
    if (length.ok()) break;
    ASSERT_EQ(length.status().code(), StatusCode::kResourceExhausted);
    const AttendAnswer after = One(*index, seq, 0, queries, Params(), kWithTail);
    ASSERT_EQ(after.output, before.output) << failures;
    ASSERT_EQ(index->stats().store_bytes, store_bytes);
  }
  EXPECT_GT(failures, 5);
  EXPECT_EQ(One(*index, fork, 0, queries, Params(), kWithTail).output, before.output);
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
    EXPECT_EQ(evicted.path, Path::kIndex);
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
