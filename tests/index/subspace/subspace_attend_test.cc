// Attend over an index that keeps its zone low-rank, against attention in float64 over the rows as they read and, for
// the tail, over the means of their windows: after appends, cuts, evictions and forks.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "tests/index/direct_attention.h"
#include "tests/index/subspace/low_rank_simulation.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::AttendTest;
using testing::Exact;
using testing::LowRankConfig;
using testing::MakeIndex;
using testing::Names;
using testing::Queries;
using testing::Seen;
using testing::Simulation;
using testing::SubspaceCase;
using testing::TestBackend;

constexpr AttentionParams kNoTail = {.tail = false, .with_positions = true};
constexpr AttentionParams kWithTail = {.tail = true, .with_positions = true};

class SubspaceAttendTest : public ::testing::TestWithParam<SubspaceCase> {
 protected:
  SubspaceAttendTest() : config(LowRankConfig(GetParam().full_rank, GetParam().frame)) {
    config.geometry.num_q_heads = 6;
    Make();
  }
  void Make() {
    index = MakeIndex(config, &backend);
    sequence = *index->CreateSequence("");
    simulation = std::make_unique<Simulation>(config, &ledger);
    queries = Queries(config.geometry, 4);
  }

  void Append(uint64_t first_name, int64_t count) {
    const int64_t position = index->GetSequence(sequence)->layer_tokens[0];
    ASSERT_TRUE(AppendNames(index.get(), sequence, 0, position, Names(first_name, count)).ok());
    simulation->Append(Names(first_name, count), static_cast<int32_t>(position));
  }

  AttendAnswer Attend(const SequenceHandle& of, const SearchParams& params, const AttentionParams& attention) const {
    auto answers = index->Attend({{of, 0, queries.data()}}, params, attention);
    EXPECT_TRUE(answers.ok()) << answers.status();
    EXPECT_TRUE((*answers)[0].status.ok()) << (*answers)[0].status;
    return (*answers)[0];
  }

  // Weights and values of what a query head saw, then of stand-ins: in float64.
  struct Sum {
    double weight = 0;
    std::vector<double> output;
    void Add(double w, const std::vector<double>& value) {
      weight += w;
      output.resize(value.size());
      for (size_t j = 0; j < value.size(); ++j) output[j] += w * value[j];
    }
  };
  double Logit(int q_head, const std::vector<double>& key) const {
    const float* query = &queries[q_head * config.geometry.head_dim];
    return std::inner_product(key.begin(), key.end(), query, 0.0) / std::sqrt(double(config.geometry.head_dim));
  }

  // A KV head's rows as they read.
  struct Head {
    std::vector<int32_t> positions;
    std::vector<std::vector<double>> keys, values;
  };
  std::vector<Head> Read(const Simulation& held) const {
    std::vector<Head> heads(config.geometry.num_kv_heads);
    for (int h = 0; h < config.geometry.num_kv_heads; ++h) {
      heads[h].positions = held.positions(h);
      for (int64_t place = 0; place < held.size(h); ++place) {
        const std::vector<float> key = held.Row(h, place, false), value = held.Row(h, place, true);
        heads[h].keys.emplace_back(key.begin(), key.end());
        heads[h].values.emplace_back(value.begin(), value.end());
      }
    }
    return heads;
  }

  Sum SumOf(const std::vector<Head>& heads, const AttendAnswer& answer, int q_head) const {
    const Head& head = heads[q_head / config.geometry.group()];
    Sum sum;
    for (const int32_t position : Seen(config.geometry, answer.selected, q_head)) {
      const auto at = std::lower_bound(head.positions.begin(), head.positions.end(), position);
      const auto place = at - head.positions.begin();
      sum.Add(std::exp(Logit(q_head, head.keys[place])), head.values[place]);
    }
    return sum;
  }

  // The windows of places [sink, sink + 64 windows) for what of each the head did not see.
  void AddTail(const std::vector<Head>& heads, const AttendAnswer& answer, int q_head, int windows, Sum* sum) const {
    const Head& head = heads[q_head / config.geometry.group()];
    const std::vector<int32_t> seen = Seen(config.geometry, answer.selected, q_head);
    for (int w = 0; w < windows; ++w) {
      std::vector<double> key(config.geometry.head_dim), value(key.size());
      int left = 64;
      for (int64_t place = 16 + 64 * w; place < 16 + 64 * (w + 1); ++place) {
        for (size_t j = 0; j < key.size(); ++j) {
          key[j] += head.keys[place][j] / 64;
          value[j] += head.values[place][j] / 64;
        }
        left -= std::binary_search(seen.begin(), seen.end(), head.positions[place]) ? 1 : 0;
      }
      sum->Add(left * std::exp(Logit(q_head, key)), value);
    }
  }

  void Expect(const AttendAnswer& answer, int q_head, const Sum& sum, double tolerance) const {
    EXPECT_NEAR(answer.log_sum_exp[q_head], std::log(sum.weight), tolerance) << q_head;
    for (int j = 0; j < config.geometry.head_dim; ++j) {
      ASSERT_NEAR(answer.output[q_head * config.geometry.head_dim + j], sum.output[j] / sum.weight, tolerance)
          << q_head << " " << j;
    }
  }

  // Every scope, sets small and of all the zone; and the tail of `windows`.
  void ExpectExact(const SequenceHandle& of, const Simulation& held, int windows) const {
    const std::vector<Head> heads = Read(held);
    for (const Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
      for (const int top_k : {20, 5000}) {
        SearchParams params;
        params.scope = scope;
        params.top_k = top_k;
        const AttendAnswer answer = Attend(of, params, kNoTail), tail = Attend(of, params, kWithTail);
        EXPECT_EQ(tail.tail, windows > 0);
        EXPECT_FALSE(answer.tail);
        for (int q = 0; q < config.geometry.num_q_heads; ++q) {
          Sum sum = SumOf(heads, answer, q);
          Expect(answer, q, sum, 1e-5);
          AddTail(heads, tail, q, windows, &sum);
          Expect(tail, q, sum, windows > 0 ? 1e-2 : 1e-5);  // means and queries are in int8
        }
      }
    }
  }

  TestBackend backend{2};
  MemoryLedger ledger{&backend, 0, 0, nullptr};
  IndexConfig config;
  std::unique_ptr<Index> index;
  SequenceHandle sequence;
  std::unique_ptr<Simulation> simulation;
  std::vector<float> queries;
};

TEST_P(SubspaceAttendTest, IsOverTheRowsAsTheyRead) {
  Append(0, 40);  // dense, and full-rank
  ExpectExact(sequence, *simulation, 0);
  Append(40, 560);
  ExpectExact(sequence, *simulation, 8);
  const SequenceHandle fork = *index->Fork(sequence, "", -1);
  const Simulation forked = *simulation;
  ASSERT_TRUE(index->Truncate(sequence, 333).ok());  // tokens that are dense again stay low-rank
  simulation->Truncate(333);
  ExpectExact(sequence, *simulation, 4);
  for (uint64_t name = 1000; name < 1150; ++name) Append(name, 1);
  ExpectExact(sequence, *simulation, 6);
  EvictParams evict;
  evict.scorer.name = "keydiff";
  evict.budget.tokens = 300;
  const auto kept = index->Evict(sequence, 0, evict, {});
  ASSERT_TRUE(kept.ok()) << kept.status();
  simulation->Keep(kept->kept);
  ExpectExact(sequence, *simulation, 3);
  ExpectExact(fork, forked, 8);
}

// Once retained tokens that came as they were are low-rank too, the tail's means are those of before.
TEST_P(SubspaceAttendTest, AppendsAfterAnEviction) {
  Append(0, 400);
  EvictParams evict;
  evict.scorer.name = "keydiff";
  evict.budget.tokens = 230;
  const auto kept = index->Evict(sequence, 0, evict, {});
  ASSERT_TRUE(kept.ok()) << kept.status();
  simulation->Keep(kept->kept);
  Append(400, 150);
  SearchParams params;
  params.scope = Scope::kPerQHead;
  const AttendAnswer answer = Attend(sequence, params, kNoTail);
  const std::vector<Head> heads = Read(*simulation);
  for (int q = 0; q < config.geometry.num_q_heads; ++q) Expect(answer, q, SumOf(heads, answer, q), 1e-5);
  EXPECT_TRUE(Attend(sequence, params, kWithTail).tail);
}

TEST_P(SubspaceAttendTest, BelowTheThresholdAllIsAttendedAsItReads) {
  config.zones.dense_threshold = 300;
  Make();
  Append(0, 700);
  ASSERT_TRUE(index->Truncate(sequence, 290).ok());
  simulation->Truncate(290);
  SearchParams params;
  const AttendAnswer answer = Attend(sequence, params, kWithTail);
  EXPECT_EQ(answer.path, SearchMode::kDense);
  EXPECT_FALSE(answer.tail);
  EXPECT_EQ(answer.attended_tokens, 6 * 290);
  const std::vector<Head> heads = Read(*simulation);
  for (int q = 0; q < config.geometry.num_q_heads; ++q) Expect(answer, q, SumOf(heads, answer, q), 1e-5);
}

TEST_P(SubspaceAttendTest, TheSameBitsHoweverTheTokensCame) {
  Append(0, 600);
  const SequenceHandle other = *index->CreateSequence("");
  for (uint64_t n = 0; n < 600; n += 1 + n % 5) {
    ASSERT_TRUE(
        AppendNames(index.get(), other, 0, static_cast<int64_t>(n), Names(n, 1 + static_cast<int64_t>(n % 5))).ok());
  }
  ASSERT_TRUE(index->Truncate(other, 600).ok());
  SearchParams params;
  params.scope = Scope::kPerQHead;
  const AttendAnswer a = Attend(sequence, params, kWithTail), b = Attend(other, params, kWithTail);
  EXPECT_EQ(a.output, b.output);
  EXPECT_EQ(a.log_sum_exp, b.log_sum_exp);
}

TEST_P(SubspaceAttendTest, OfTheWholeRankIsNearToFullRank) {
  config.subspace->key_rank = config.subspace->value_rank = 64;
  Make();
  Append(0, 600);
  SearchParams params;
  params.scope = Scope::kPerQHead;
  params.method = Method::kExact;
  const AttendAnswer low = Attend(sequence, params, kWithTail);
  config.subspace.reset();
  index = MakeIndex(config, &backend);
  sequence = *index->CreateSequence("");
  ASSERT_TRUE(AppendNames(index.get(), sequence, 0, 0, Names(0, 600)).ok());
  const AttendAnswer full = Attend(sequence, params, kWithTail);
  for (size_t i = 0; i < full.output.size(); ++i) ASSERT_NEAR(low.output[i], full.output[i], 1e-2) << i;
}

INSTANTIATE_TEST_SUITE_P(Settings, SubspaceAttendTest,
                         ::testing::Values(SubspaceCase{"plain", 0, KeyFrame::kPostRope},
                                           SubspaceCase{"hybrid_pre_rope", .1, KeyFrame::kPreRope}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace seine
