// The tail of Attend against a direct computation from the means of windows, through every history of a sequence.

#include "tests/index/direct_attention.h"
#include "tests/index/synthetic_model.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::At;
using testing::AttendTest;
using testing::Direct;
using testing::Exact;
using testing::kValueNames;
using testing::MakeIndex;
using testing::Names;
using testing::Queries;
using testing::Seen;
using testing::TokenRow;
using testing::UpTo;
using testing::View;
using testing::WaitForBackground;

using absl::StatusCode;

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

using AttendTailTest = AttendTest;

constexpr AttentionParams kWithTail = {.tail = true, .with_positions = true};

// Positions [16, 16 + 64 windows).
std::vector<int32_t> ZoneOf(const AttendAnswer& answer) {
  std::vector<int32_t> zone = UpTo(answer.selected.zone_end);
  zone.erase(zone.begin(), zone.begin() + answer.selected.zone_begin);
  return zone;
}

TEST_F(AttendTailTest, TheTailIsThatOfTheWindowsMeansThroughEveryHistory) {
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

TEST_F(AttendTailTest, TheTailAfterEvictionIsOfWhatIsRetained) {
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
TEST_F(AttendTailTest, WhereTheTailIsCountedIn) {
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
TEST_F(AttendTailTest, WindowsSurviveEveryFailingAllocation) {
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

// Chosen exactly, with the tail: nothing of it depends on the codes, so a layer that is encoded anew answers with the
// same bits.
TEST_F(AttendTailTest, TheTailIsTheSameAfterReencoding) {
  const testing::MadeUpModel model({.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64});
  IndexConfig config = testing::BalancedConfig(model, model.Measure(), KvStore::kKeysValues);
  config.codec.horizon = 512;
  auto index = MakeIndex(config, &backend_);
  const Geometry& g = config.geometry;
  const SequenceHandle seq = *index->CreateSequence("s");
  const std::string rows = model.KeyRows(0, 2024);
  const size_t first = 600 * rows.size() / 2024;
  const auto append = [&](int64_t position, const std::string& part) {
    return index->Append(seq, 0, position, View(g, part), View(g, part)).status();
  };
  ASSERT_TRUE(append(0, rows.substr(0, first)).ok());
  ASSERT_TRUE(append(600, rows.substr(first)).ok());  // beyond the horizon
  SearchParams exact = Params();
  exact.method = Method::kExact;
  const std::vector<float> queries = Queries(g, 4);
  const SequenceHandle fresh = *index->CreateSequence("fresh");
  ASSERT_TRUE(index->Append(fresh, 0, 0, View(g, rows), View(g, rows)).ok());
  const AttendAnswer want = One(*index, fresh, 0, queries, exact, kWithTail);
  EXPECT_EQ(One(*index, seq, 0, queries, exact, kWithTail).output, want.output);
  WaitForBackground(*index);
  ASSERT_EQ(index->stats().reencoded_layers, 1);
  const AttendAnswer after = One(*index, seq, 0, queries, exact, kWithTail);
  EXPECT_EQ(after.output, want.output);
  EXPECT_EQ(after.log_sum_exp, want.log_sum_exp);
  EXPECT_TRUE(after.tail);
}

}  // namespace
}  // namespace seine