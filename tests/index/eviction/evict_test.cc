// Eviction in an index: what is left is as if the retained tokens alone had been appended, under their own positions,
// through retrieval, appends, forks, truncations and failures.
#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "absl/strings/match.h"
#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::MakeIndex;
using testing::Names;
using testing::Queries;
using testing::SmallConfig;
using testing::TestBackend;
using testing::TokenRow;

using Sets = std::vector<std::vector<int32_t>>;

IndexConfig EvictingConfig(int64_t budget, int64_t interval) {
  IndexConfig config = SmallConfig();
  EvictionConfig eviction;
  eviction.budget.tokens = budget;
  eviction.interval = interval;
  config.eviction = eviction;
  return config;
}

// One head of a token's row.
std::string HeadRow(const Geometry& g, uint64_t name, int head) {
  const size_t bytes = g.head_dim * SizeOf(g.dtype);
  return TokenRow(g, name).substr(head * bytes, bytes);
}

// An index whose only head holds, one after another, the tokens of `positions` (named by position) as `head` has them.
struct Alone {
  Alone(const IndexConfig& full, int head, const std::vector<int32_t>& positions, Backend* backend) {
    IndexConfig config = full;
    config.eviction.reset();
    config.geometry.num_q_heads = full.geometry.group();
    config.geometry.num_kv_heads = 1;
    index = MakeIndex(config, backend);
    sequence = *index->CreateSequence("");
    std::string rows;
    for (const int32_t p : positions) rows += HeadRow(full.geometry, p, head);
    const TensorView view{rows.data(), static_cast<int64_t>(positions.size()), rows.size()};
    EXPECT_TRUE(index->Append(sequence, 0, 0, view, {}).ok());
  }
  std::unique_ptr<Index> index;
  SequenceHandle sequence;
};

SearchParams PerQHead(int top_k) {
  SearchParams params;
  params.top_k = top_k;
  params.scope = Scope::kPerQHead;
  params.with_candidates = true;
  return params;
}

// The layer's answers are, head by head, those of an index that never held the evicted tokens.
void ExpectAsIfAlone(const Index& index, const SequenceHandle& sequence, int layer, const Sets& kept,
                     Backend* backend) {
  const IndexConfig& config = index.config();
  const Geometry& g = config.geometry;
  const std::vector<float> queries = Queries(g, 3);
  for (const int top_k : {7, 65536}) {
    const SearchParams params = PerQHead(top_k);
    auto answers = index.Retrieve({{sequence, layer, queries.data()}}, params);
    ASSERT_TRUE(answers.ok() && (*answers)[0].status.ok());
    const ItemAnswer& answer = (*answers)[0];
    EXPECT_EQ(answer.zone_begin, 0);
    EXPECT_EQ(answer.zone_end, answer.num_tokens);
    for (int h = 0; h < g.num_kv_heads; ++h) {
      SCOPED_TRACE(::testing::Message() << "head " << h << " top_k " << top_k);
      const Alone alone(config, h, kept[h], backend);
      const float* own = queries.data() + h * g.group() * g.head_dim;
      const ItemAnswer want = (*alone.index->Retrieve({{alone.sequence, 0, own}}, params))[0];
      std::vector<int32_t> dense;
      for (int64_t i = 0; i < want.num_tokens; ++i) {
        if (i < want.zone_begin || i >= want.zone_end) dense.push_back(kept[h][i]);
      }
      EXPECT_EQ(answer.dense_positions[h], dense);
      for (int q = 0; q < g.group(); ++q) {
        std::vector<int32_t> positions, candidates;
        for (const int32_t place : want.positions[q]) positions.push_back(kept[h][place]);
        for (const int32_t place : want.candidates[q]) candidates.push_back(kept[h][place]);
        EXPECT_EQ(answer.positions[h * g.group() + q], positions);
        EXPECT_EQ(answer.scores[h * g.group() + q], want.scores[q]);
        EXPECT_EQ(answer.candidates[h * g.group() + q], candidates);
      }
    }
  }
}

// The positions of each head, by what a scorer is shown.
Sets Held(const Index& index, const SequenceHandle& sequence, int layer) {
  ScorerConfig knorm;
  knorm.name = "knorm";
  auto scores = index.Score(sequence, layer, knorm, {});
  EXPECT_TRUE(scores.ok()) << scores.status();
  return scores->positions;
}

class Evict : public ::testing::Test {
 protected:
  void Fill(const IndexConfig& config, int64_t tokens) {
    index_ = MakeIndex(config, &backend_);
    sequence_ = *index_->CreateSequence("");
    ASSERT_TRUE(AppendNames(index_.get(), sequence_, 0, 0, Names(0, tokens)).ok());
  }
  EvictAnswer Cut(const EvictParams& params, const ScorerInputs& given = {}) {
    auto answer = index_->Evict(sequence_, 0, params, given);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *answer : EvictAnswer();
  }

  TestBackend backend_;
  std::unique_ptr<Index> index_;
  SequenceHandle sequence_;
};

TEST_F(Evict, WhatIsLeftIsAsIfTheRestHadNeverBeen) {
  for (const HeadBudget heads : {HeadBudget::kUniform, HeadBudget::kAdaptive}) {
    Fill(SmallConfig(), 900);
    EvictParams params;
    params.budget = {.tokens = 300, .heads = heads};
    const EvictAnswer answer = Cut(params);
    EXPECT_EQ(answer.tokens_evicted, 2 * 600);
    EXPECT_EQ(answer.kept, Held(*index_, sequence_, 0));
    EXPECT_EQ(answer.kept[0].size() + answer.kept[1].size(), 600u);
    EXPECT_NE(answer.kept[0], answer.kept[1]);
    ExpectAsIfAlone(*index_, sequence_, 0, answer.kept, &backend_);
    EXPECT_EQ(index_->stats().evictions, 1);
    EXPECT_EQ(index_->stats().evicted_tokens, 1200);

    Sets held = answer.kept;  // appending goes on, over the next zone's end
    ASSERT_TRUE(AppendNames(index_.get(), sequence_, 0, 900, Names(900, 200)).ok());
    for (auto& head : held) {
      for (int32_t p = 900; p < 1100; ++p) head.push_back(p);
    }
    EXPECT_EQ(Held(*index_, sequence_, 0), held);
    ExpectAsIfAlone(*index_, sequence_, 0, held, &backend_);

    Sets again = Cut(params).kept;  // of what is held now
    ExpectAsIfAlone(*index_, sequence_, 0, again, &backend_);
    ASSERT_TRUE(index_->Truncate(sequence_, 950).ok());
    for (auto& head : again) head.erase(std::lower_bound(head.begin(), head.end(), 950), head.end());
    EXPECT_EQ(Held(*index_, sequence_, 0), again);
    ExpectAsIfAlone(*index_, sequence_, 0, again, &backend_);
    EXPECT_EQ((*index_->GetSequence(sequence_)).layer_tokens[0], 950);
  }
}

TEST_F(Evict, ADryRunAnswersTheSameAndChangesNothing) {
  Fill(SmallConfig(), 500);
  const auto before = testing::Probe(*index_, sequence_, 0);
  EvictParams params;
  params.budget.ratio = .75;
  params.dry_run = true;
  const EvictAnswer dry = Cut(params);
  EXPECT_EQ(dry.bytes_freed, 0);
  EXPECT_EQ(dry.tokens_evicted, 2 * 375);
  EXPECT_TRUE(testing::SameAnswers(before, testing::Probe(*index_, sequence_, 0)));
  params.dry_run = false;
  EXPECT_EQ(Cut(params).kept, dry.kept);
}

TEST_F(Evict, BytesAreReallyReturned) {
  Fill(SmallConfig(KvStore::kKeysValues), 4000);
  const IndexStats before = index_->stats();
  EvictParams params;
  params.budget.tokens = 400;
  const EvictAnswer answer = Cut(params);
  const IndexStats after = index_->stats();
  EXPECT_EQ(before.code_bytes + before.store_bytes - after.code_bytes - after.store_bytes, answer.bytes_freed);
  EXPECT_LT(after.code_bytes + after.store_bytes, (before.code_bytes + before.store_bytes) / 5);
  EXPECT_GT(backend_.freed, 0);
}

TEST_F(Evict, AForkMadeBeforeKeepsItsTokensAndOneMadeAfterTheCut) {
  Fill(SmallConfig(), 600);
  const SequenceHandle before = *index_->Fork(sequence_, "before", -1);
  const auto whole = testing::Probe(*index_, before, 0);
  EvictParams params;
  params.budget.tokens = 200;
  const Sets kept = Cut(params).kept;
  const SequenceHandle after = *index_->Fork(sequence_, "after", 550);
  EXPECT_TRUE(testing::SameAnswers(whole, testing::Probe(*index_, before, 0)));
  ASSERT_TRUE(AppendNames(index_.get(), sequence_, 0, 600, Names(600, 150)).ok());
  ASSERT_TRUE(AppendNames(index_.get(), after, 0, 550, Names(2000, 150)).ok());
  Sets forked = kept, own = kept;
  for (int h = 0; h < 2; ++h) {
    forked[h].erase(std::lower_bound(forked[h].begin(), forked[h].end(), 550), forked[h].end());
    for (int32_t p = 550; p < 700; ++p) forked[h].push_back(p);
    for (int32_t p = 600; p < 750; ++p) own[h].push_back(p);
  }
  EXPECT_EQ(Held(*index_, after, 0), forked);
  EXPECT_EQ(Held(*index_, sequence_, 0), own);
  ExpectAsIfAlone(*index_, sequence_, 0, own, &backend_);
  EXPECT_TRUE(testing::SameAnswers(whole, testing::Probe(*index_, before, 0)));
}

TEST_F(Evict, RowsAreFoundByPositionAndEvictedOnesAreNamed) {
  Fill(SmallConfig(KvStore::kKeysValues), 300);
  EvictParams params;
  params.scorer.name = "streaming_llm";
  params.budget.tokens = 100;
  const Sets kept = Cut(params).kept;
  EXPECT_EQ(kept[0][4], 204);  // four sinks, then the last 96
  const Geometry& g = index_->config().geometry;
  std::string keys, values;
  ASSERT_TRUE(index_->Gather(sequence_, 0, 1, {2, 299, 204}, &keys, &values).ok());
  EXPECT_EQ(keys, HeadRow(g, 2, 1) + HeadRow(g, 299, 1) + HeadRow(g, 204, 1));
  EXPECT_EQ(values, HeadRow(g, 2 + testing::kValueNames, 1) + HeadRow(g, 299 + testing::kValueNames, 1) +
                        HeadRow(g, 204 + testing::kValueNames, 1));
  const absl::Status status = index_->Gather(sequence_, 0, 1, {2, 203}, &keys, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "positions[1]: 203 was evicted from KV head 1");
}

TEST_F(Evict, AReplayIsComparedWithWhatIsHeld) {
  Fill(SmallConfig(), 300);
  EvictParams params;
  params.scorer.name = "streaming_llm";
  params.budget.tokens = 100;
  Cut(params);
  EXPECT_TRUE(AppendNames(index_.get(), sequence_, 0, 200, Names(200, 100)).ok());
  EXPECT_TRUE(AppendNames(index_.get(), sequence_, 0, 100, Names(5000, 50)).ok());  // all evicted
  const auto wrong = AppendNames(index_.get(), sequence_, 0, 250, Names(7000, 1));
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(absl::StrContains(wrong.status().message(), "position 250"));
}

TEST_F(Evict, BlocksNeverHoldMoreThanBudgetAndBlockAndEqualADirectSimulation) {
  constexpr int64_t kBudget = 200, kBlock = 50, kTokens = 1500;
  for (const char* name : {"keydiff", "windowed_manifoldkv", "hybrid"}) {
    SCOPED_TRACE(name);
    IndexConfig config = EvictingConfig(kBudget, kBlock);
    config.eviction->scorer.name = name;
    if (config.eviction->scorer.name == std::string("windowed_manifoldkv")) config.eviction->scorer.window = 64;
    config.eviction->keep.sinks = 4;
    index_ = MakeIndex(config, &backend_);
    sequence_ = *index_->CreateSequence("");
    auto plain = MakeIndex(SmallConfig(), &backend_);
    const SequenceHandle simulated = *plain->CreateSequence("");
    for (int64_t begin = 0; begin < kTokens; begin += kBlock) {
      ASSERT_TRUE(AppendNames(index_.get(), sequence_, 0, begin, Names(begin, kBlock)).ok());
      ASSERT_TRUE(AppendNames(plain.get(), simulated, 0, begin, Names(begin, kBlock)).ok());
      if (begin + kBlock >= kBudget + kBlock) {
        EvictParams params;
        params.scorer = config.eviction->scorer;
        params.keep.sinks = 4;
        params.budget.tokens = kBudget;
        ASSERT_TRUE(plain->Evict(simulated, 0, params, {}).ok());
      }
      for (int h = 0; h < 2; ++h) EXPECT_LE(index_->DescribeHead(sequence_, 0, h)->num_retained, kBudget + kBlock);
    }
    EXPECT_EQ(Held(*index_, sequence_, 0), Held(*plain, simulated, 0));
    ExpectAsIfAlone(*index_, sequence_, 0, Held(*index_, sequence_, 0), &backend_);

    const SequenceHandle at_once = *index_->CreateSequence("");  // a long append is taken in parts
    ASSERT_TRUE(AppendNames(index_.get(), at_once, 0, 0, Names(0, kTokens)).ok());
    EXPECT_EQ(Held(*index_, at_once, 0), Held(*index_, sequence_, 0));
  }
}

// Sums kept token by token, also after a truncation, choose what a pass over all keys would.
TEST_F(Evict, StreamingEqualsRecomputation) {
  IndexConfig config = EvictingConfig(100, 30);
  config.eviction->budget.heads = HeadBudget::kAdaptive;
  Fill(config, 0);
  auto plain = MakeIndex(SmallConfig(), &backend_);
  const SequenceHandle simulated = *plain->CreateSequence("");
  int64_t length = 0;
  const auto step = [&](int64_t until) {
    for (; length < until; ++length) {
      ASSERT_TRUE(AppendNames(index_.get(), sequence_, 0, length, Names(length, 1)).ok());
      ASSERT_TRUE(AppendNames(plain.get(), simulated, 0, length, Names(length, 1)).ok());
      const Sets held = Held(*plain, simulated, 0);
      if ((held[0].size() + held[1].size() + 1) / 2 < 130) continue;  // budget + interval a head, on average
      EvictParams params;
      params.budget = config.eviction->budget;
      ASSERT_TRUE(plain->Evict(simulated, 0, params, {}).ok());
    }
    EXPECT_EQ(Held(*index_, sequence_, 0), Held(*plain, simulated, 0));
  };
  step(400);
  ASSERT_TRUE(index_->Truncate(sequence_, 370).ok());
  ASSERT_TRUE(plain->Truncate(simulated, 370).ok());
  length = 370;
  step(600);
}

TEST_F(Evict, ScorersTakeWhatComesWithTheCall) {
  Fill(SmallConfig(), 200);
  const Geometry& g = index_->config().geometry;
  std::vector<float> queries;
  for (uint32_t i = 0; i < 70; ++i) {
    const std::vector<float> one = Queries(g, i);
    queries.insert(queries.end(), one.begin(), one.end());
  }
  for (const char* name : {"snapkv", "tova", "h2o", "qfilters", "expected_attention"}) {
    EvictParams params;
    params.scorer.name = name;
    params.scorer.value_norms = params.scorer.name != "expected_attention";
    params.budget.tokens = 100;
    params.dry_run = true;
    const EvictAnswer answer = Cut(params, {.queries = queries.data(), .num_queries = 70});
    EXPECT_EQ(answer.kept[0].size(), 100u) << name;
  }
  std::vector<float> scores(200);
  for (int i = 0; i < 200; ++i) scores[i] = static_cast<float>(i % 2);
  EvictParams params;
  params.scorer.name = "client";
  params.budget.tokens = 100;
  ScorerInputs given;
  given.scores = {scores, scores};
  const Sets kept = Cut(params, given).kept;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(kept[1][i], 2 * i + 1);
}

TEST_F(Evict, AFailureForMemoryChangesNothing) {
  Fill(SmallConfig(KvStore::kKeysValues), 700);
  const auto before = testing::Probe(*index_, sequence_, 0);
  const IndexStats stats = index_->stats();
  EvictParams params;
  params.budget.tokens = 300;
  int failures = 0;
  for (int n = 0;; ++n) {
    backend_.fail_after = n;
    const auto answer = index_->Evict(sequence_, 0, params, {});
    backend_.fail_after = -1;
    if (answer.ok()) break;
    ++failures;
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(testing::SameAnswers(before, testing::Probe(*index_, sequence_, 0)));
    EXPECT_EQ(index_->stats().store_bytes, stats.store_bytes);
    EXPECT_EQ(index_->stats().evictions, 0);
  }
  EXPECT_GT(failures, 3);
}

// Whatever fails, and in whichever part: none of a long append is taken, and nothing is evicted for it.
TEST_F(Evict, ALongAppendIsTakenWholeOrNotAtAll) {
  IndexConfig config = EvictingConfig(100, 30);
  config.kv_store = KvStore::kKeysValues;
  const auto expected_of = [&] {
    Fill(config, 120);
    EXPECT_TRUE(AppendNames(index_.get(), sequence_, 0, 120, Names(120, 201)).ok());
    return Held(*index_, sequence_, 0);
  };
  const Sets expected = expected_of();
  for (std::atomic<int>* fail : {&backend_.fail_after, &backend_.fail_operation}) {
    Fill(config, 120);
    const auto before = testing::Probe(*index_, sequence_, 0);
    const int64_t store = (*index_->GetSequence(sequence_)).store_bytes;
    int failures = 0;
    for (int n = 0;; ++n) {
      *fail = n;
      const auto length = AppendNames(index_.get(), sequence_, 0, 120, Names(120, 200));
      *fail = -1;
      if (length.ok()) {
        EXPECT_EQ(*length, 320);
        break;
      }
      ++failures;
      EXPECT_EQ(length.status().code(), absl::StatusCode::kResourceExhausted);
      ASSERT_EQ((*index_->GetSequence(sequence_)).layer_tokens[0], 120);
      EXPECT_TRUE(testing::SameAnswers(before, testing::Probe(*index_, sequence_, 0)));
      EXPECT_EQ((*index_->GetSequence(sequence_)).store_bytes, store);
      EXPECT_EQ(index_->stats().evictions, 0);
    }
    EXPECT_GT(failures, 5);
    // The last cut may have been left to this append.
    ASSERT_TRUE(AppendNames(index_.get(), sequence_, 0, 320, Names(320, 1)).ok());
    EXPECT_EQ(Held(*index_, sequence_, 0), expected);
  }
}

TEST_F(Evict, ReadersAndAnEvictorAtOnce) {
  Fill(SmallConfig(), 600);
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    const std::vector<float> queries = Queries(index_->config().geometry, 5);
    while (!stop) {
      auto answers = index_->Retrieve({{sequence_, 0, queries.data()}}, PerQHead(20));
      ASSERT_TRUE(answers.ok() && (*answers)[0].status.ok());
    }
  });
  EvictParams params;
  for (int64_t budget = 500; budget >= 100; budget -= 50) {
    params.budget.tokens = budget;
    Cut(params);
  }
  stop = true;
  reader.join();
}

TEST_F(Evict, BadInputIsNamed) {
  Fill(SmallConfig(), 200);
  EvictParams params;
  params.budget.tokens = 100;
  const auto error = [&](const EvictParams& p, const ScorerInputs& given = {}) {
    const auto answer = index_->Evict(sequence_, 0, p, given);
    return answer.ok() ? std::string("none") : std::string(answer.status().message());
  };
  EvictParams bad = params;
  bad.budget.tokens = 0;
  EXPECT_TRUE(absl::StrContains(error(bad), "budget.tokens: neither"));
  bad = params;
  bad.scorer.name = "guess";
  EXPECT_TRUE(absl::StrContains(error(bad), "scorer.name: unknown scorer"));
  bad.scorer.name = "expected_attention";
  EXPECT_TRUE(absl::StrContains(error(bad), "scorer.value_norms"));
  bad.scorer.name = "snapkv";
  EXPECT_TRUE(absl::StrContains(error(bad), "queries: snapkv"));
  std::vector<float> queries(4 * 64 * 201, 1.0f);
  EXPECT_TRUE(absl::StrContains(error(bad, {.queries = queries.data(), .num_queries = 201}), "queries: of 201"));
  queries[64 * 5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(absl::StrContains(error(bad, {.queries = queries.data(), .num_queries = 80}), "queries: row 1, head 1"));
  bad.scorer.name = "client";
  EXPECT_TRUE(absl::StrContains(error(bad), "scores: 0 heads given"));
  const std::vector<float> scores(150);
  ScorerInputs given;
  given.scores = {scores, scores};
  EXPECT_TRUE(absl::StrContains(error(bad, given), "scores[0]: 150 for a KV head that holds 200"));
  EXPECT_EQ(index_->Evict(sequence_, 9, params, {}).status().code(), absl::StatusCode::kInvalidArgument);
  auto none = MakeIndex(SmallConfig(KvStore::kNone), &backend_);
  const SequenceHandle sequence = *none->CreateSequence("");
  EXPECT_EQ(none->Evict(sequence, 0, params, {}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(Evict, SettingsOfAnIndexThatEvictsByItself) {
  struct Case {
    const char* error;
    void (*set)(IndexConfig*);
  };
  const Case kCases[] = {
      {"kv_store: eviction needs", [](IndexConfig* c) { c->kv_store = KvStore::kNone; }},
      {"eviction.scorer.name: unknown", [](IndexConfig* c) { c->eviction->scorer.name = "x"; }},
      {"eviction.scorer.name: client needs", [](IndexConfig* c) { c->eviction->scorer.name = "client"; }},
      {"eviction.profile: qfilters needs one", [](IndexConfig* c) { c->eviction->scorer.name = "qfilters"; }},
      {"eviction.filters: 1 layers where",
       [](IndexConfig* c) { c->eviction->scorer.name = "qfilters", c->eviction->filters.resize(1); }},
      {"eviction.filters: 0 numbers",
       [](IndexConfig* c) { c->eviction->scorer.name = "qfilters", c->eviction->filters.resize(2); }},
      {"eviction.profile: given, but keydiff", [](IndexConfig* c) { c->eviction->filters.resize(2); }},
      {"eviction.budget.ratio: given beside", [](IndexConfig* c) { c->eviction->budget.ratio = .5; }},
      {"eviction.budget.tokens: an index", [](IndexConfig* c) { c->eviction->budget = {.ratio = .5}; }},
      {"eviction.budget.tokens: 9223372036854775807 sinks and 9223372036854775807",
       [](IndexConfig* c) { c->eviction->keep = {.sinks = INT64_MAX, .recent = INT64_MAX}; }},
      {"eviction.budget.tokens: 60 sinks and 50 recent tokens leave no room in 100",
       [](IndexConfig* c) { c->eviction->keep = {.sinks = 60, .recent_share = .5}; }},
      {"eviction.scorer.anchor: pairwise compares at most 8192 tokens, and a head may hold 8193",
       [](IndexConfig* c) { c->eviction->budget.tokens = 8163, c->eviction->scorer.anchor = Anchor::kPairwise; }},
      {"eviction.budget.tokens: 80 sinks and 30",
       [](IndexConfig* c) { c->eviction->keep = {.sinks = 80, .recent = 30}; }},
      {"eviction.keep.positions: come with", [](IndexConfig* c) { c->eviction->keep.positions = {1}; }},
      {"eviction.interval: 0 is not in", [](IndexConfig* c) { c->eviction->interval = 0; }},
      {"eviction.budget.tokens: 100 in the last layer, but snapkv always keeps scorer.query_window, 101",
       [](IndexConfig* c) { c->eviction->scorer.name = "snapkv", c->eviction->scorer.query_window = 101; }},
      {"eviction.budget.tokens: 3 in the last layer, but expected_attention always keeps scorer.sink, 4",
       [](IndexConfig* c) {
         c->eviction->scorer.name = "expected_attention", c->eviction->scorer.value_norms = false;
         c->eviction->budget.tokens = 3;
       }},
  };
  for (const Case& test : kCases) {
    IndexConfig config = EvictingConfig(100, 30);
    test.set(&config);
    const absl::Status status = Index::Create(config, &backend_).status();
    EXPECT_TRUE(absl::StrContains(status.message(), test.error)) << status << "\nwanted: " << test.error;
  }
}

}  // namespace
}  // namespace seine
