// H2O that accumulates: running sums equal a float64 replay of the paper's rule (arXiv 2306.14048, algorithm 1), kept
// in step with the tokens through evictions, forks, truncations and failures.
#include "index/eviction/attention_sums.h"

#include <algorithm>
#include <map>
#include <thread>

#include "absl/strings/match.h"
#include "tests/index/direct_attention.h"

namespace seine {
namespace {

using testing::At;
using testing::MakeIndex;
using testing::Names;
using testing::Queries;
using testing::Rows;
using testing::Seen;
using testing::SmallConfig;
using testing::TestBackend;
using testing::TokenRow;
using testing::UpTo;
using testing::View;

using Sums = std::vector<std::map<int32_t, double>>;  // by KV head and position

constexpr int64_t kBudget = 64, kRecent = 32;

IndexConfig Accumulating(int64_t interval = 1) {
  IndexConfig config = SmallConfig(KvStore::kKeysValues);
  config.zones.dense_threshold = 1 << 20;  // everything held is attended
  EvictionConfig& eviction = config.eviction.emplace();
  eviction.scorer.name = "h2o";
  eviction.scorer.accumulate = true;
  eviction.budget.tokens = kBudget;
  eviction.keep.recent = kRecent;
  eviction.interval = interval;
  return config;
}

// The softmax weights of one query over keys at `positions`, in float64.
std::vector<double> Weights(const Geometry& g, const std::vector<float>& queries, int q_head,
                            const std::vector<int32_t>& positions) {
  const int begin = q_head / g.group() * g.head_dim;
  std::vector<double> weights;
  double sum = 0;
  for (const int32_t position : positions) {
    const std::string key = TokenRow(g, position);
    double logit = 0;
    for (int j = 0; j < g.head_dim; ++j) {
      logit += At(key, g.dtype, begin + j) * double{queries[q_head * g.head_dim + j]};
    }
    weights.push_back(std::exp(logit / std::sqrt(double(g.head_dim))));
    sum += weights.back();
  }
  for (double& w : weights) w /= sum;
  return weights;
}

// The paper's rule, head by head: what is held, and the running sum of each.
class Replay {
 public:
  explicit Replay(const Geometry& g) : geometry_(g), sums_(g.num_kv_heads) {}

  // The last of the tokens held stay, and of the others those with the largest sums, ties to the lowest position.
  void EvictTo(int64_t budget, int64_t recent) {
    for (auto& head : sums_) {
      std::vector<std::pair<double, int32_t>> order;
      for (const auto& [position, sum] : head) {
        if (position < length_ - recent) order.emplace_back(-sum, position);
      }
      std::sort(order.begin(), order.end());
      const int64_t hitters = budget - (static_cast<int64_t>(head.size()) - static_cast<int64_t>(order.size()));
      for (size_t i = hitters; i < order.size(); ++i) head.erase(order[i].second);
    }
  }
  void Append(int64_t count) {
    for (int64_t i = 0; i < count; ++i, ++length_) {
      for (auto& head : sums_) head[static_cast<int32_t>(length_)] = 0;
    }
  }
  // Every token at or before `position` gains what these queries pay it, mean over the group.
  void Attend(const std::vector<float>& queries, int64_t position) {
    for (int q = 0; q < geometry_.num_q_heads; ++q) {
      auto& head = sums_[q / geometry_.group()];
      std::vector<int32_t> seen;
      for (const auto& entry : head) {
        if (entry.first <= position) seen.push_back(entry.first);
      }
      const std::vector<double> weights = Weights(geometry_, queries, q, seen);
      for (size_t i = 0; i < seen.size(); ++i) head[seen[i]] += weights[i] / geometry_.group();
    }
  }
  const Sums& sums() const { return sums_; }
  int64_t held(int head) const { return static_cast<int64_t>(sums_[head].size()); }

 private:
  const Geometry geometry_;
  Sums sums_;
  int64_t length_ = 0;
};

class AccumulatingH2o : public ::testing::Test {
 protected:
  void Make(const IndexConfig& config) {
    index_ = MakeIndex(config, &backend_);
    sequence_ = *index_->CreateSequence("");
  }
  const Geometry& geometry() const { return index_->config().geometry; }
  absl::StatusOr<int64_t> Append(const SequenceHandle& to, int64_t begin, int64_t count, int64_t with = 0) {
    const std::string keys = Rows(geometry(), Names(begin, count));
    std::vector<float> queries;
    for (int64_t p = begin + count - with; p < begin + count; ++p) {
      const std::vector<float> one = Queries(geometry(), static_cast<uint32_t>(p));
      queries.insert(queries.end(), one.begin(), one.end());
    }
    return index_->Append(to, 0, begin, View(geometry(), keys), View(geometry(), keys),
                          {with > 0 ? queries.data() : nullptr, with});
  }
  AttendAnswer Attend(const SequenceHandle& of, int64_t position, const SearchParams& params = {}) {
    const std::vector<float> queries = Queries(geometry(), static_cast<uint32_t>(position));
    auto answers = index_->Attend({{of, 0, queries.data()}}, params, {.tail = false, .with_positions = true});
    EXPECT_TRUE(answers.ok() && (*answers)[0].status.ok());
    return (*answers)[0];
  }
  ScorerConfig Scorer() const { return index_->config().eviction->scorer; }
  Sums Held(const SequenceHandle& of) {
    auto scores = index_->Score(of, 0, Scorer(), {});
    EXPECT_TRUE(scores.ok()) << scores.status();
    Sums sums(geometry().num_kv_heads);
    for (size_t h = 0; h < sums.size() && scores.ok(); ++h) {
      for (size_t i = 0; i < scores->positions[h].size(); ++i) sums[h][scores->positions[h][i]] = scores->scores[h][i];
    }
    return sums;
  }
  static void ExpectEqual(const Sums& got, const Sums& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t h = 0; h < got.size(); ++h) {
      ASSERT_EQ(got[h].size(), want[h].size()) << "KV head " << h;
      for (const auto& [position, sum] : want[h]) {
        ASSERT_TRUE(got[h].contains(position)) << "KV head " << h << " lost " << position;
        EXPECT_NEAR(got[h].at(position), sum, 1e-5 * (1 + sum)) << "KV head " << h << " at " << position;
      }
    }
  }

  TestBackend backend_;
  std::unique_ptr<Index> index_;
  SequenceHandle sequence_;
};

TEST_F(AccumulatingH2o, EqualsAReplayOfThePapersRuleOver512Steps) {
  Make(Accumulating());
  Replay replay(geometry());
  for (int64_t p = 0; p < 512; ++p) {
    if (replay.held(0) > kBudget) replay.EvictTo(kBudget, kRecent);
    replay.Append(1);
    ASSERT_TRUE(Append(sequence_, p, 1).ok());
    replay.Attend(Queries(geometry(), static_cast<uint32_t>(p)), p);
    Attend(sequence_, p);
    if (p % 16 == 0 || p > 500) ExpectEqual(Held(sequence_), replay.sums());
    ASSERT_LE(index_->DescribeHead(sequence_, 0, 0)->num_retained, kBudget + 1);
  }
  EXPECT_EQ(index_->stats().evictions, 512 - kBudget - 1);
}

// The rule of the mean keeps others: the sum is not that in disguise.
TEST_F(AccumulatingH2o, AppendedQueriesCountAsThePromptsAttention) {
  Make(Accumulating(/*interval=*/200));
  Replay replay(geometry());
  ASSERT_TRUE(Append(sequence_, 0, 150, /*with=*/150).ok());
  replay.Append(150);
  for (int64_t p = 0; p < 150; ++p) replay.Attend(Queries(geometry(), static_cast<uint32_t>(p)), p);
  ExpectEqual(Held(sequence_), replay.sums());
  // The same from a call that is given the queries, by an index that keeps no sums.
  IndexConfig plain = index_->config();
  plain.eviction.reset();
  const ScorerConfig scorer = Scorer();
  Make(plain);
  ASSERT_TRUE(Append(sequence_, 0, 150).ok());
  std::vector<float> queries;
  for (int64_t p = 0; p < 150; ++p) {
    const std::vector<float> one = Queries(geometry(), static_cast<uint32_t>(p));
    queries.insert(queries.end(), one.begin(), one.end());
  }
  const auto scores = index_->Score(sequence_, 0, scorer, {.queries = queries.data(), .num_queries = 150});
  ASSERT_TRUE(scores.ok()) << scores.status();
  for (int h = 0; h < 2; ++h) {
    for (int p = 0; p < 150; ++p) EXPECT_NEAR(scores->scores[h][p], replay.sums()[h].at(p), 1e-4);
  }
  const absl::Status none = index_->Score(sequence_, 0, scorer, {}).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(none.message(), "accumulate")) << none;
}

// A prompt longer than the index may hold is taken in parts: each part's queries pay to what is then held.
TEST_F(AccumulatingH2o, BlocksOfAPromptEqualAReplay) {
  Make(Accumulating(/*interval=*/40));
  Replay replay(geometry());
  ASSERT_TRUE(Append(sequence_, 0, 300, /*with=*/300).ok());
  for (int64_t begin = 0, count = kBudget + 40; begin < 300;
       begin += count, count = std::min<int64_t>(40, 300 - begin)) {
    if (begin > 0) replay.EvictTo(kBudget, kRecent);
    replay.Append(count);
    for (int64_t p = begin; p < begin + count; ++p) replay.Attend(Queries(geometry(), static_cast<uint32_t>(p)), p);
  }
  if (replay.held(0) == kBudget + 40) replay.EvictTo(kBudget, kRecent);
  ExpectEqual(Held(sequence_), replay.sums());
}

TEST_F(AccumulatingH2o, APositionCountsOnce) {
  Make(Accumulating(/*interval=*/40));
  ASSERT_TRUE(Append(sequence_, 0, 50, /*with=*/1).ok());
  const Sums once = Held(sequence_);
  Attend(sequence_, 49);
  Attend(sequence_, 49);
  EXPECT_EQ(Held(sequence_), once);
  ASSERT_TRUE(Append(sequence_, 0, 50, /*with=*/50).ok());  // a replay with queries of positions that are passed
  EXPECT_EQ(Held(sequence_), once);
  double paid = 0;
  for (const auto& [position, sum] : once[0]) paid += sum;
  EXPECT_NEAR(paid, 1, 1e-5);
}

TEST_F(AccumulatingH2o, WhatRetrievalChoosesIsWhatCounts) {
  IndexConfig config = Accumulating(/*interval=*/1000);
  config.zones.dense_threshold = 0;
  Make(config);
  SearchParams params;
  params.top_k = 12;
  params.candidate_fraction = .05;  // the codes are searched, however short the zone
  for (const Scope scope : {Scope::kPerKvHead, Scope::kPerQHead}) {
    params.scope = scope;
    sequence_ = *index_->CreateSequence("");
    ASSERT_TRUE(Append(sequence_, 0, 400).ok());
    const AttendAnswer answer = Attend(sequence_, 399, params);
    ASSERT_EQ(answer.path, SearchMode::kIndex);
    const std::vector<float> queries = Queries(geometry(), 399);
    Sums want(geometry().num_kv_heads);
    for (auto& head : want) {
      for (const int32_t p : UpTo(400)) head[p] = 0;
    }
    for (int q = 0; q < geometry().num_q_heads; ++q) {
      const std::vector<int32_t> seen = Seen(geometry(), answer.selected, q);
      ASSERT_LT(seen.size(), 400u);
      const std::vector<double> weights = Weights(geometry(), queries, q, seen);
      for (size_t i = 0; i < seen.size(); ++i) want[q / geometry().group()][seen[i]] += weights[i] / geometry().group();
    }
    ExpectEqual(Held(sequence_), want);
  }
}

TEST_F(AccumulatingH2o, ForksPartAndTruncationKeepsWhatWasPaid) {
  Make(Accumulating(/*interval=*/40));
  ASSERT_TRUE(Append(sequence_, 0, 60, /*with=*/60).ok());
  const Sums before = Held(sequence_);
  const SequenceHandle fork = *index_->Fork(sequence_, "", -1);
  EXPECT_EQ(Held(fork), before);
  ASSERT_TRUE(Append(fork, 60, 1).ok());
  Attend(fork, 60);
  EXPECT_EQ(Held(sequence_), before);
  EXPECT_NE(Held(fork)[0].at(0), before[0].at(0));
  // The fork's new token goes, and what its query paid stays; its position counts again.
  const Sums paid = Held(fork);
  ASSERT_TRUE(index_->Truncate(fork, 60).ok());
  ASSERT_TRUE(Append(fork, 60, 1).ok());
  for (int h = 0; h < 2; ++h) EXPECT_EQ(Held(fork)[h].at(10), paid[h].at(10));
  Attend(fork, 60);
  EXPECT_GT(Held(fork)[0].at(10), paid[0].at(10));
  EXPECT_LT(Held(fork)[0].at(60), 1);  // of its second life alone
  // A fork at an earlier position, whose tokens are then others: they begin with nothing.
  const SequenceHandle early = *index_->Fork(sequence_, "", 30);
  ASSERT_TRUE(Append(early, 30, 5, /*with=*/1).ok());
  EXPECT_EQ(Held(early)[0].size(), 35u);
  EXPECT_LT(Held(early)[0].at(31), 1);
}

TEST_F(AccumulatingH2o, AFullLayerThatNobodyAttendedIsRefusedUntilSomebodyDoes) {
  Make(Accumulating());
  for (int64_t p = 0; p <= kBudget; ++p) ASSERT_TRUE(Append(sequence_, p, 1).ok());
  const absl::Status refused = Append(sequence_, kBudget + 1, 1).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused.message(), "or attend at the last token")) << refused;
  const std::vector<float> queries = Queries(geometry(), 1);
  ASSERT_TRUE(index_->Retrieve({{sequence_, 0, queries.data()}}, SearchParams()).ok());  // adds nothing
  EXPECT_EQ(Append(sequence_, kBudget + 1, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  Attend(sequence_, kBudget);
  EXPECT_TRUE(Append(sequence_, kBudget + 1, 1).ok());
  // A call to an index of another scorer has no sums to look at.
  EXPECT_EQ(index_->DescribeHead(sequence_, 0, 0)->num_retained, kBudget + 1);
}

TEST_F(AccumulatingH2o, MemoryIsCountedAndFailuresChangeNothing) {
  Make(Accumulating(/*interval=*/40));
  ASSERT_TRUE(Append(sequence_, 0, 90, /*with=*/90).ok());
  IndexConfig means = index_->config();
  means.eviction->scorer.accumulate = false;
  means.eviction->keep_queries.reset();
  auto other = MakeIndex(means, &backend_);
  const SequenceHandle same = *other->CreateSequence("");
  const std::string keys = Rows(geometry(), Names(0, 90));
  ASSERT_TRUE(other->Append(same, 0, 0, View(geometry(), keys), View(geometry(), keys)).ok());
  const int64_t more = index_->GetSequence(sequence_)->store_bytes - other->GetSequence(same)->store_bytes;
  EXPECT_GE(more, 90 * 2 * 4);
  EXPECT_EQ(index_->stats().store_bytes, index_->GetSequence(sequence_)->store_bytes);

  const Sums before = Held(sequence_);
  const int64_t held = index_->stats().store_bytes;
  int failures = 0;
  for (int n = 0; n < 200; ++n) {
    backend_.fail_after = n;
    const SequenceHandle fork = *index_->Fork(sequence_, "", -1);
    const absl::StatusOr<int64_t> appended = Append(fork, 90, 80, /*with=*/80);
    backend_.fail_after = -1;
    if (appended.ok()) break;
    ++failures;
    EXPECT_EQ(appended.status().code(), absl::StatusCode::kResourceExhausted) << appended.status();
    EXPECT_EQ(Held(fork), before) << "after failure " << n;
    ASSERT_TRUE(index_->DeleteSequence(fork).ok());
    EXPECT_EQ(index_->stats().store_bytes, held) << "after failure " << n;
  }
  EXPECT_GT(failures, 2);
  EXPECT_EQ(Held(sequence_), before);
  for (const SequenceInfo& info : index_->ListSequences("", SIZE_MAX)) {
    ASSERT_TRUE(index_->DeleteSequence(info.handle).ok());
  }
  EXPECT_EQ(index_->stats().store_bytes, 0);
}

TEST_F(AccumulatingH2o, ThreadsThatAttendTheSameStepCountItOnce) {
  Make(Accumulating(/*interval=*/40));
  ASSERT_TRUE(Append(sequence_, 0, 70).ok());
  const SequenceHandle alone = *index_->Fork(sequence_, "", -1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) {
        Attend(sequence_, 69);
        index_->Fork(sequence_, "", -1).IgnoreError();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Attend(alone, 69);
  EXPECT_EQ(Held(sequence_), Held(alone));
}

TEST_F(AccumulatingH2o, AnotherScorersIndexRefusesAndKeepsNone) {
  IndexConfig config = Accumulating();
  config.eviction->scorer = {};
  Make(config);
  ASSERT_TRUE(Append(sequence_, 0, 20).ok());
  const std::vector<float> queries = Queries(geometry(), 19);
  const std::string keys = Rows(geometry(), Names(20, 1));
  EXPECT_FALSE(
      index_->Append(sequence_, 0, 20, View(geometry(), keys), View(geometry(), keys), {queries.data(), 1}).ok());
  ScorerConfig scorer;
  scorer.name = "keydiff";
  scorer.accumulate = true;
  EXPECT_TRUE(absl::StrContains(index_->Score(sequence_, 0, scorer, {}).status().message(), "h2o"));
}

}  // namespace
}  // namespace seine
