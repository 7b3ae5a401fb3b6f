// An index that evicts by itself with scorers that look at queries: it keeps what a simulation by calls keeps, which is
// given the queries; in decode steps, in blocks of a prompt, over forks, truncations and failures.
#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>

#include "absl/strings/match.h"
#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::MakeIndex;
using testing::Names;
using testing::Queries;
using testing::Rows;
using testing::SmallConfig;
using testing::TestBackend;
using testing::View;

using Sets = std::vector<std::vector<int32_t>>;

constexpr int64_t kKeptBudget = 100, kInterval = 30;

IndexConfig ByQueries(const char* scorer, int keep_queries = 0) {
  IndexConfig config = SmallConfig();
  EvictionConfig& eviction = config.eviction.emplace();
  eviction.scorer.name = scorer;
  if (eviction.scorer.name == "snapkv") eviction.scorer.query_window = 8;
  if (eviction.scorer.name == "expected_attention") eviction.scorer.value_norms = false;
  eviction.budget.tokens = kKeptBudget;
  eviction.keep.sinks = 2;
  eviction.interval = kInterval;
  if (keep_queries > 0) eviction.keep_queries = keep_queries;
  return config;
}

// Queries of positions [begin, end), each a function of its position and `seed`.
std::vector<float> QueriesOf(const Geometry& g, int64_t begin, int64_t end, uint32_t seed = 0) {
  std::vector<float> all;
  for (int64_t p = begin; p < end; ++p) {
    const std::vector<float> one = Queries(g, static_cast<uint32_t>(p) + seed);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

class OwnQueries : public ::testing::Test {
 protected:
  void Make(const IndexConfig& config) {
    index_ = MakeIndex(config, &backend_);
    sequence_ = *index_->CreateSequence("");
  }
  const Geometry& geometry() const { return index_->config().geometry; }

  // Tokens named by position, with the queries of the last `with` of them.
  absl::StatusOr<int64_t> Append(const SequenceHandle& to, int64_t begin, int64_t count, int64_t with = 0) {
    const std::string keys = Rows(geometry(), Names(begin, count));
    const std::vector<float> queries = QueriesOf(geometry(), begin + count - with, begin + count);
    return index_->Append(to, 0, begin, View(geometry(), keys), {}, {with > 0 ? queries.data() : nullptr, with});
  }
  // A decode step's question, at the last token.
  void Ask(const SequenceHandle& of, int64_t position, uint32_t seed = 0) {
    const std::vector<float> queries = QueriesOf(geometry(), position, position + 1, seed);
    auto answers = index_->Retrieve({{of, 0, queries.data()}}, index_->config().search);
    ASSERT_TRUE(answers.ok() && (*answers)[0].status.ok());
    ASSERT_EQ((*answers)[0].num_tokens, position + 1);
  }
  Sets Held(const Index& index, const SequenceHandle& sequence) {
    ScorerConfig knorm;
    knorm.name = "knorm";
    auto scores = index.Score(sequence, 0, knorm, {});
    EXPECT_TRUE(scores.ok()) << scores.status();
    return scores->positions;
  }
  Scores ScoresOf(const Index& index, const SequenceHandle& sequence, const ScorerInputs& given = {}) {
    auto scores = index.Score(sequence, 0, index_->config().eviction->scorer, given);
    EXPECT_TRUE(scores.ok()) << scores.status();
    return scores.ok() ? scores->scores : Scores();
  }

  TestBackend backend_;
  std::unique_ptr<Index> index_;
  SequenceHandle sequence_;
};

// The same by calls to an index that does nothing by itself.
class EvictionByCalls {
 public:
  EvictionByCalls(const IndexConfig& config, Backend* backend) : config_(config) {
    IndexConfig plain = config;
    plain.eviction.reset();
    index_ = MakeIndex(plain, backend);
    sequence_ = *index_->CreateSequence("");
    kept_ = QueriesKept(config);
  }
  const Index& index() const { return *index_; }
  const SequenceHandle& sequence() const { return sequence_; }

  void Append(int64_t begin, int64_t count) {
    const std::string keys = Rows(config_.geometry, Names(begin, count));
    ASSERT_TRUE(index_->Append(sequence_, 0, begin, View(config_.geometry, keys), {}).ok());
    length_ = begin + count;
  }
  void EvictIfFull() {
    if (index_->DescribeHead(sequence_, 0, 0)->num_retained < kKeptBudget + kInterval) return;
    EvictParams params;
    params.scorer = config_.eviction->scorer;
    params.budget = config_.eviction->budget;
    params.keep = config_.eviction->keep;
    const int64_t count = std::min<int64_t>(kept_, length_);
    const std::vector<float> queries = QueriesOf(config_.geometry, length_ - count, length_);
    const auto answer = index_->Evict(sequence_, 0, params, {.queries = queries.data(), .num_queries = count});
    ASSERT_TRUE(answer.ok()) << answer.status();
  }

 private:
  const IndexConfig config_;
  std::unique_ptr<Index> index_;
  SequenceHandle sequence_;
  int64_t kept_ = 0, length_ = 0;
};

constexpr const char* kScorers[] = {"snapkv", "tova", "h2o", "expected_attention"};

TEST_F(OwnQueries, DecodingEqualsADirectSimulation) {
  for (const char* name : kScorers) {
    SCOPED_TRACE(name);
    Make(ByQueries(name));
    EvictionByCalls simulation(index_->config(), &backend_);
    for (int64_t p = 0; p < 400; ++p) {
      simulation.EvictIfFull();  // a full layer is cut back before the next token, by queries up to the last one's
      ASSERT_TRUE(Append(sequence_, p, 1).ok());
      simulation.Append(p, 1);
      Ask(sequence_, p);
      for (int h = 0; h < 2; ++h)
        ASSERT_LE(index_->DescribeHead(sequence_, 0, h)->num_retained, kKeptBudget + kInterval);
    }
    EXPECT_EQ(Held(*index_, sequence_), Held(simulation.index(), simulation.sequence()));
    EXPECT_EQ(index_->stats().evictions, 9);
  }
}

TEST_F(OwnQueries, StepsThatBringTheirQueriesAreCutBackAtOnce) {
  Make(ByQueries("tova"));
  EvictionByCalls simulation(index_->config(), &backend_);
  for (int64_t p = 0; p < 250; ++p) {
    ASSERT_TRUE(Append(sequence_, p, 1, /*with=*/1).ok());
    simulation.Append(p, 1);
    simulation.EvictIfFull();
    ASSERT_LT(index_->DescribeHead(sequence_, 0, 0)->num_retained, kKeptBudget + kInterval);
  }
  EXPECT_EQ(Held(*index_, sequence_), Held(simulation.index(), simulation.sequence()));
}

TEST_F(OwnQueries, BlocksOfAPromptEqualADirectSimulationInPiecesAndAtOnce) {
  for (const char* name : kScorers) {
    SCOPED_TRACE(name);
    Make(ByQueries(name));
    EvictionByCalls simulation(index_->config(), &backend_);
    constexpr int64_t kTokens = 490;
    for (int64_t begin = 0; begin < kTokens; begin += 10) {
      ASSERT_TRUE(Append(sequence_, begin, 10, /*with=*/10).ok());
      simulation.Append(begin, 10);
      simulation.EvictIfFull();
      ASSERT_LT(index_->DescribeHead(sequence_, 0, 0)->num_retained, kKeptBudget + kInterval);
    }
    const Sets held = Held(*index_, sequence_);
    EXPECT_EQ(held, Held(simulation.index(), simulation.sequence()));
    const SequenceHandle at_once = *index_->CreateSequence("");
    ASSERT_TRUE(Append(at_once, 0, kTokens, /*with=*/kTokens).ok());
    EXPECT_EQ(Held(*index_, at_once), held);
  }
}

TEST_F(OwnQueries, CallsTakeThoseThatWereKept) {
  for (const char* name : kScorers) {
    SCOPED_TRACE(name);
    Make(ByQueries(name, /*keep_queries=*/20));
    ASSERT_TRUE(Append(sequence_, 0, 90, /*with=*/50).ok());
    const std::vector<float> last = QueriesOf(geometry(), 70, 90);
    const ScorerInputs given{.queries = last.data(), .num_queries = 20};
    EXPECT_EQ(ScoresOf(*index_, sequence_), ScoresOf(*index_, sequence_, given));
    EvictParams params;
    params.scorer = index_->config().eviction->scorer;
    params.budget.tokens = 40;
    params.dry_run = true;
    EXPECT_EQ(index_->Evict(sequence_, 0, params, {})->kept, index_->Evict(sequence_, 0, params, given)->kept);
    DiagnoseParams diagnose;
    diagnose.scorers = {params.scorer};
    const auto seen = index_->Diagnose(sequence_, 0, diagnose, {});
    ASSERT_TRUE(seen.ok()) << seen.status();
    ASSERT_EQ((*seen)[0].attention_correlation.size(), 1u);
    EXPECT_EQ((*seen)[0].attention_correlation,
              (*index_->Diagnose(sequence_, 0, diagnose, given))[0].attention_correlation);
  }
}

// A fork and a truncation know what a sequence knows that went no further.
TEST_F(OwnQueries, ForksAndTruncationsHaveTheQueriesOfTheirPositions) {
  for (const char* name : kScorers) {
    SCOPED_TRACE(name);
    Make(ByQueries(name, /*keep_queries=*/40));
    const SequenceHandle shorter = *index_->CreateSequence("shorter");
    ASSERT_TRUE(Append(sequence_, 0, 80, /*with=*/60).ok());
    ASSERT_TRUE(Append(shorter, 0, 70, /*with=*/30).ok());  // of positions 40 to 69
    const Scores whole = ScoresOf(*index_, sequence_), before = ScoresOf(*index_, shorter);
    const SequenceHandle fork = *index_->Fork(sequence_, "fork", 70);
    EXPECT_EQ(ScoresOf(*index_, fork), before);
    ASSERT_TRUE(Append(fork, 70, 1).ok());
    Ask(fork, 70, /*seed=*/1000);
    EXPECT_EQ(ScoresOf(*index_, sequence_), whole);
    EXPECT_NE(ScoresOf(*index_, fork)[0], before[0]);
    ASSERT_TRUE(index_->Truncate(sequence_, 70).ok());
    EXPECT_EQ(ScoresOf(*index_, sequence_), before);
  }
}

TEST_F(OwnQueries, AFullLayerWaitsForThemAndSaysSo) {
  Make(ByQueries("snapkv"));
  ASSERT_TRUE(Append(sequence_, 0, kKeptBudget + kInterval).ok());
  for (int i = 0; i < 2; ++i) {  // refused as often as it is tried; nothing changes
    const absl::Status status = Append(sequence_, 130, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(absl::StartsWith(status.message(), "queries: eviction looks at those of the last 30 of 130 positions"))
        << status;
    EXPECT_EQ((*index_->GetSequence(sequence_)).layer_tokens[0], 130);
  }
  ScorerConfig tova;
  tova.name = "tova";
  EXPECT_EQ(index_->Score(sequence_, 0, tova, {}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(index_->Score(sequence_, 0, {}, {}).status(), absl::OkStatus());  // keydiff needs none

  const SequenceHandle fork = *index_->Fork(sequence_, "fork", -1);
  Ask(sequence_, 129);  // either way out
  EXPECT_TRUE(Append(sequence_, 130, 1).ok());
  EXPECT_EQ(index_->DescribeHead(sequence_, 0, 0)->num_retained, kKeptBudget + 1);
  EXPECT_TRUE(Append(fork, 100, 30, /*with=*/8).ok());
  EXPECT_EQ(index_->DescribeHead(fork, 0, 0)->num_retained, kKeptBudget);

  // Queries that a later prompt has left behind are no better than none.
  const absl::Status late = Append(sequence_, 131, 100).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*index_->GetSequence(sequence_)).layer_tokens[0], 131);  // none of it, though the room held some
  EXPECT_TRUE(Append(sequence_, 131, 100, /*with=*/100).ok());
}

TEST_F(OwnQueries, FewerThanTheScorerWantsWillDo) {
  Make(ByQueries("snapkv"));
  ASSERT_TRUE(Append(sequence_, 0, 130).ok());
  Ask(sequence_, 129);
  ASSERT_TRUE(Append(sequence_, 130, 1).ok());
  const Sets held = Held(*index_, sequence_);
  EXPECT_EQ(held[0].size(), static_cast<size_t>(kKeptBudget) + 1);
  EXPECT_EQ(held[0][0], 0);
  EXPECT_EQ(held[0][1], 1);
  EXPECT_EQ(held[0].back(), 130);
  EXPECT_EQ(held[0][kKeptBudget - 1], 129);
}

// An engine that asks now and then: its last queries lie far apart, and no token of late may go for that.
TEST_F(OwnQueries, QueriesFarApartLeaveTheLastTokensAlone) {
  for (const char* name : kScorers) {
    SCOPED_TRACE(name);
    Make(ByQueries(name));
    for (int64_t p = 0; p < 300; ++p) {
      const int64_t held = index_->DescribeHead(sequence_, 0, 0)->num_retained;
      ASSERT_TRUE(Append(sequence_, p, 1).ok());
      if (p % 25 == 0) Ask(sequence_, p);
      if (held < kKeptBudget + kInterval) continue;
      const Sets left = Held(*index_, sequence_);  // cut back before the token was taken
      ASSERT_EQ(left[0].size(), static_cast<size_t>(kKeptBudget) + 1);
      if (name == std::string("expected_attention")) continue;  // which foretells, so that no token goes unjudged
      const int64_t unseen = p - (p - 1) / 25 * 25;             // tokens since the last query
      for (int64_t i = 0; i < unseen; ++i) EXPECT_EQ(left[0][kKeptBudget - i], p - i);
    }
  }
}

TEST_F(OwnQueries, MemoryIsCountedAndItsLimitHolds) {
  IndexConfig config = ByQueries("h2o", /*keep_queries=*/16);
  Make(config);
  const int64_t row = int64_t{4} * 64 * sizeof(float);
  ASSERT_TRUE(Append(sequence_, 0, 50, /*with=*/10).ok());
  EXPECT_EQ(index_->stats().query_bytes, 10 * row);
  const SequenceHandle fork = *index_->Fork(sequence_, "", -1);
  EXPECT_EQ(index_->stats().query_bytes, 10 * row);
  ASSERT_TRUE(Append(sequence_, 50, 20, /*with=*/20).ok());
  EXPECT_EQ(index_->stats().query_bytes, (10 + 16) * row);
  ASSERT_TRUE(index_->DeleteSequence(sequence_).ok());
  ASSERT_TRUE(index_->DeleteSequence(fork).ok());
  EXPECT_EQ(index_->stats().query_bytes, 0);

  auto budget = std::make_shared<MemoryBudget>(0, 0);
  index_ = MakeIndex(config, &backend_, budget);
  sequence_ = *index_->CreateSequence("");
  ASSERT_TRUE(Append(sequence_, 0, 50).ok());
  config.memory_limit_bytes = budget->used_bytes(Account::kHost) + 3 * row;
  Make(config);
  ASSERT_TRUE(Append(sequence_, 0, 50).ok());
  EXPECT_EQ(Append(sequence_, 40, 10, /*with=*/10).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(index_->stats().query_bytes, 0);
  EXPECT_TRUE(Append(sequence_, 48, 2, /*with=*/2).ok());
  Ask(sequence_, 49);  // the newer in the older one's place, which needs room for both
  EXPECT_EQ(index_->stats().query_bytes, 2 * row);
  EXPECT_EQ(index_->stats().dropped_queries, 0);
}

TEST_F(OwnQueries, WhereThereIsNoRoomAStepIsAnsweredAndCounted) {
  IndexConfig config = ByQueries("tova");
  auto budget = std::make_shared<MemoryBudget>(0, 0);
  index_ = MakeIndex(config, &backend_, budget);
  sequence_ = *index_->CreateSequence("");
  ASSERT_TRUE(Append(sequence_, 0, 50).ok());  // all dense, so no other sample of queries is taken
  config.memory_limit_bytes = budget->used_bytes(Account::kHost) + 100;
  Make(config);
  ASSERT_TRUE(Append(sequence_, 0, 50).ok());
  Ask(sequence_, 49);
  EXPECT_EQ(index_->stats().dropped_queries, 1);
  EXPECT_EQ(index_->stats().query_bytes, 0);
}

TEST_F(OwnQueries, ReadersAskWhileTokensComeAndForksGo) {
  Make(ByQueries("h2o", /*keep_queries=*/8));
  ASSERT_TRUE(Append(sequence_, 0, 1, /*with=*/1).ok());
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    const std::vector<float> queries = Queries(geometry(), 5);
    while (!stop) {
      auto answers = index_->Retrieve({{sequence_, 0, queries.data()}}, index_->config().search);
      ASSERT_TRUE(answers.ok() && (*answers)[0].status.ok());
    }
  });
  for (int64_t p = 1; p < 300; ++p) {
    while (true) {  // until the reader has asked of late
      const absl::Status status = Append(sequence_, p, 1).status();
      if (status.ok()) break;
      ASSERT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    }
    if (p % 20 != 0) continue;
    const auto fork = index_->Fork(sequence_, "", p - 5);
    ASSERT_TRUE(fork.ok()) << fork.status();
    EXPECT_TRUE(Append(*fork, p - 5, 3, /*with=*/3).ok());
    EXPECT_TRUE(index_->DeleteSequence(*fork).ok());
  }
  stop = true;
  reader.join();
  EXPECT_LE(Held(*index_, sequence_)[0].size(), static_cast<size_t>(kKeptBudget + kInterval));
  EXPECT_LE(index_->stats().query_bytes, int64_t{8} * 4 * 64 * 4);
}

TEST_F(OwnQueries, BadOnesAreNamed) {
  Make(ByQueries("tova"));
  const std::string keys = Rows(geometry(), Names(0, 10));
  std::vector<float> queries = QueriesOf(geometry(), 0, 11);
  const auto error = [&](Index* index, const SequenceHandle& sequence, const QueryView& view) {
    return std::string(index->Append(sequence, 0, 0, View(geometry(), keys), {}, view).status().message());
  };
  EXPECT_EQ(error(index_.get(), sequence_, {queries.data(), 11}), "queries: of 11 positions beside 10 tokens");
  EXPECT_EQ(error(index_.get(), sequence_, {queries.data(), -1}), "queries: of -1 positions beside 10 tokens");
  EXPECT_EQ(error(index_.get(), sequence_, {nullptr, 3}), "queries: no data");
  EXPECT_EQ(error(index_.get(), sequence_, {queries.data(), 0}), "queries: no data");
  queries[4 * 64 * 2 + 64] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(error(index_.get(), sequence_, {queries.data(), 5}), "queries: row 2, head 1 holds NaN or infinity");
  EXPECT_EQ((*index_->GetSequence(sequence_)).layer_tokens[0], 0);
  auto plain = MakeIndex(SmallConfig(), &backend_);
  EXPECT_EQ(error(plain.get(), *plain->CreateSequence(""), {queries.data(), 1}),
            "queries: given, but the index keeps none (eviction.keep_queries, subspace.full_rank_queries)");
}

TEST_F(OwnQueries, HowManyAreKept) {
  struct Case {
    const char* scorer;
    std::optional<int> asked;
    int kept;  // -1: refused
    const char* error;
  };
  const Case kCases[] = {
      {"keydiff", {}, 0, ""},
      {"keydiff", 32, 32, ""},
      {"snapkv", {}, 8, ""},
      {"snapkv", 16, 16, ""},
      {"tova", {}, 1, ""},
      {"h2o", {}, 128, ""},
      {"expected_attention", {}, 128, ""},
      {"snapkv", 0, -1, "eviction.keep_queries: 0, but snapkv looks at queries"},
      {"snapkv", 7, -1, "eviction.keep_queries: 7, but scorer.query_window is 8"},
      {"tova", 0, -1, "eviction.keep_queries: 0, but tova looks at queries"},
      {"expected_attention", 0, -1, "eviction.keep_queries: 0, but expected_attention looks at queries where there is"},
      {"h2o", -1, -1, "eviction.keep_queries: -1 is not in [0, 65536]"},
      {"h2o", 65537, -1, "eviction.keep_queries: 65537 is not in [0, 65536]"},
  };
  for (const Case& test : kCases) {
    IndexConfig config = ByQueries(test.scorer);
    config.eviction->keep_queries = test.asked;
    const auto index = Index::Create(config, &backend_);
    if (test.kept < 0) {
      EXPECT_TRUE(absl::StartsWith(index.status().message(), test.error)) << index.status();
      continue;
    }
    ASSERT_TRUE(index.ok()) << index.status();
    EXPECT_EQ((*index)->config().eviction->keep_queries, test.kept) << test.scorer;
  }
  IndexConfig config = ByQueries("snapkv");
  config.eviction->scorer.query_window = 101;
  EXPECT_TRUE(absl::StartsWith(Index::Create(config, &backend_).status().message(),
                               "eviction.budget.tokens: 100 in the last layer, but snapkv always keeps"));
}

}  // namespace
}  // namespace seine
