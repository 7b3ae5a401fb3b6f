// Calls whose token stops: they end soon, apply nothing, and the index answers afterwards as before.
#include "kernels/stop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "index/stop_status.h"
#include "tests/index/synthetic_model.h"
#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::MakeIndex;
using testing::Names;
using testing::Probe;
using testing::SameAnswers;
using testing::SmallConfig;
using testing::TestBackend;

TEST(StopTest, TheStatusTellsTheReason) {
  EXPECT_TRUE(StopStatus().ok());
  for (const auto& [reason, code] : {std::pair{StopReason::kCancelled, absl::StatusCode::kCancelled},
                                     std::pair{StopReason::kDeadline, absl::StatusCode::kDeadlineExceeded},
                                     std::pair{StopReason::kShutdown, absl::StatusCode::kUnavailable}}) {
    const StopToken token;
    const StopScope scope(&token);
    EXPECT_TRUE(StopStatus().ok());
    token.Stop(reason);
    EXPECT_EQ(StopStatus().code(), code);
  }
}

// What has stopped before it begins does nothing that matters, whoever's loop it would have run in.
TEST(StopTest, AStoppedCallChangesNothing) {
  TestBackend backend(2);
  IndexConfig config = SmallConfig(KvStore::kKeysValues);
  auto index = MakeIndex(config, &backend);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 400)).ok());
  const auto before = Probe(*index, seq, 0);
  const std::vector<float> queries = testing::Queries(config.geometry, 3);
  std::vector<std::pair<std::string, std::function<absl::Status()>>> calls = {
      {"retrieve",
       [&] {
         return index->Retrieve({{seq, 0, queries.data()}}, config.search).status();
       }},
      {"attend",
       [&] {
         return index->Attend({{seq, 0, queries.data()}}, config.search, {}).status();
       }},
      {"append", [&] { return AppendNames(index.get(), seq, 0, 400, Names(401, 200)).status(); }},
  };
  for (const std::string& name : ScorerNames()) {
    if (name == "client" || name == "qfilters") continue;
    calls.emplace_back(name, [&index, &seq, &queries, name] {
      ScorerConfig scorer;
      scorer.name = name;
      scorer.query_window = name == "snapkv" ? 1 : scorer.query_window;
      const ScorerInputs given{.queries = queries.data(), .num_queries = 1};
      return index->Score(seq, 0, scorer, given).status();
    });
    calls.emplace_back(name, [&index, &seq, &queries, name] {
      EvictParams params;
      params.scorer.name = name;
      params.scorer.query_window = name == "snapkv" ? 1 : params.scorer.query_window;
      params.budget.tokens = 100;
      const ScorerInputs given{.queries = queries.data(), .num_queries = 1};
      return index->Evict(seq, 0, params, given).status();
    });
  }
  calls.emplace_back("diagnose", [&] { return index->Diagnose(seq, 0, DiagnoseParams(), {}).status(); });
  for (const auto& [name, call] : calls) {
    const StopToken token;
    token.Stop();
    const StopScope scope(&token);
    EXPECT_EQ(call().code(), absl::StatusCode::kCancelled) << name;
  }
  EXPECT_EQ(index->GetSequence(seq)->layer_tokens[0], 400);
  EXPECT_TRUE(SameAnswers(Probe(*index, seq, 0), before));
  for (const auto& [name, call] : calls) {
    if (name == "append") continue;
    EXPECT_TRUE(call().ok()) << name << ": " << call();
  }
}

double MsOf(const std::function<void()>& work) {
  const auto begin = StopToken::Clock::now();
  work();
  return std::chrono::duration<double, std::milli>(StopToken::Clock::now() - begin).count();
}

// A layer of 8,192 tokens, and calls on it that take some hundred milliseconds.
class StopCallsTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 8192, kQueries = 160;

  StopCallsTest() {
    IndexConfig config = SmallConfig(KvStore::kKeysValues);
    config.geometry.num_layers = 1;
    config.geometry.num_q_heads = 8;
    index_ = MakeIndex(config, &backend_);
    seq_ = *index_->CreateSequence("s");
    EXPECT_TRUE(AppendNames(index_.get(), seq_, 0, 0, Names(1, kTokens)).ok());
    queries_ = testing::Queries(config.geometry, 3);
    for (int64_t i = 0; i < kQueries; ++i) many_queries_.insert(many_queries_.end(), queries_.begin(), queries_.end());
    exact_ = config.search;
    exact_.method = Method::kExact;
    before_ = Probe(*index_, seq_, 0);
  }

  // A call that is stopped, by its deadline or by another thread, ends long before it would have, and has changed
  // nothing. `work` must take many milliseconds.
  void ExpectStops(const char* what, const std::function<absl::Status()>& work) {
    absl::Status status;
    const double whole = MsOf([&] { status = work(); });
    EXPECT_TRUE(status.ok()) << what << ": " << status;
    EXPECT_GT(whole, 4) << what;
    const std::chrono::microseconds soon(static_cast<int64_t>(std::min(5000., whole * 1000 / 4)));
    double cut = 1e9, cancelled = 1e9;
    for (int i = 0; i < 2; ++i) {  // a busy machine may take its time once
      const StopToken late(StopToken::Clock::now() + soon);
      const StopScope scope(&late);
      cut = std::min(cut, MsOf([&] { status = work(); }));
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << what;
    }
    for (int i = 0; i < 2; ++i) {
      const StopToken token;
      const StopScope scope(&token);
      StopToken::Clock::time_point at;
      std::thread canceller([&] {
        std::this_thread::sleep_for(soon);
        at = StopToken::Clock::now();
        token.Stop();
      });
      do {
        status = work();
      } while (status.ok());  // it may have come to its end before
      const auto end = StopToken::Clock::now();
      canceller.join();
      cancelled = std::min(cancelled, std::chrono::duration<double, std::milli>(end - at).count());
      EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << what;
    }
    EXPECT_LT(cut, 5 + whole / 2) << what;
    EXPECT_LT(cancelled, whole / 2) << what;
    EXPECT_TRUE(SameAnswers(Probe(*index_, seq_, 0), before_)) << what;
    EXPECT_EQ(index_->ListSequences().size(), 1u) << what;
    EXPECT_EQ(index_->stats().store_bytes, index_->GetSequence(seq_)->store_bytes) << what;
    EXPECT_EQ(index_->stats().code_bytes, index_->GetSequence(seq_)->code_bytes) << what;
  }

  // What `work` does to a copy of the sequence, which then goes.
  absl::Status OnFork(const std::function<absl::Status(const SequenceHandle&)>& work) {
    const StopToken* const token = current_stop_token;
    const StopScope unstopped(nullptr);
    const SequenceHandle fork = *index_->Fork(seq_, "fork", -1);
    absl::Status status;
    {
      const StopScope scope(token);
      status = work(fork);
    }
    EXPECT_TRUE(index_->DeleteSequence(fork).ok());
    return status;
  }

  TestBackend backend_{2};
  std::unique_ptr<Index> index_;
  SequenceHandle seq_;
  std::vector<float> queries_, many_queries_;
  SearchParams exact_;
  std::vector<ItemAnswer> before_;
};

TEST_F(StopCallsTest, RetrieveAndAttend) {
  const std::vector<RetrieveItem> items(192, {seq_, 0, queries_.data()});
  ExpectStops("retrieve", [&] { return index_->Retrieve(items, exact_).status(); });
  AttentionParams attention;
  ExpectStops("attend", [&] { return index_->Attend(items, exact_, attention).status(); });
  RetrieveItem prompt{seq_, 0, many_queries_.data()};
  prompt.prompt_tokens = kQueries;
  const std::vector<RetrieveItem> prompts(4, prompt);
  for (const double mass : {1.0, .9}) {
    attention.prompt_mass = mass;
    ExpectStops("prompt", [&] { return index_->Attend(prompts, exact_, attention).status(); });
  }
}

TEST_F(StopCallsTest, Append) {
  const std::string keys = testing::Rows(index_->config().geometry, Names(1, 2000));
  std::string many;
  for (int i = 0; i < 60; ++i) many += keys;
  const TensorView rows = testing::View(index_->config().geometry, many);
  ExpectStops("append", [&] {
    return OnFork([&](const SequenceHandle& fork) {
      const auto length = index_->Append(fork, 0, kTokens, rows, rows);
      const SequenceInfo info = *index_->GetSequence(fork), of_source = *index_->GetSequence(seq_);
      EXPECT_EQ(info.layer_tokens[0], length.ok() ? *length : kTokens);
      if (length.ok()) return absl::OkStatus();
      EXPECT_LT(info.store_bytes, of_source.store_bytes * 21 / 20);  // what did not come, 15 times as much, is not held
      return length.status();
    });
  });
}

TEST_F(StopCallsTest, ScoreEvictAndDiagnose) {
  const ScorerInputs given{.queries = many_queries_.data(), .num_queries = kQueries};
  EvictParams params;
  params.scorer.name = "h2o";
  params.budget.ratio = .5;
  ExpectStops("h2o", [&] { return index_->Score(seq_, 0, params.scorer, given).status(); });
  ExpectStops("evict", [&] {
    return OnFork([&](const SequenceHandle& fork) { return index_->Evict(fork, 0, params, given).status(); });
  });
  DiagnoseParams diagnose;
  diagnose.scorers = {params.scorer};
  ExpectStops("diagnose", [&] { return index_->Diagnose(seq_, 0, diagnose, given).status(); });
}

TEST_F(StopCallsTest, LongScorers) {
  const ScorerInputs given{.queries = many_queries_.data(), .num_queries = kQueries};
  ScorerConfig expected;
  expected.name = "expected_attention";
  ExpectStops("expected attention", [&] { return index_->Score(seq_, 0, expected, given).status(); });
  ScorerConfig pairwise;
  pairwise.anchor = Anchor::kPairwise;
  ExpectStops("pairwise", [&] { return index_->Score(seq_, 0, pairwise, {}).status(); });
}

TEST_F(StopCallsTest, MeasureAndReadingRows) {
  ASSERT_TRUE(index_->Retrieve({{seq_, 0, queries_.data()}}, index_->config().search).ok());
  ExpectStops("measure", [&] { return index_->Measure({seq_}, 0).status(); });
  std::vector<int32_t> positions(1 << 20);
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i * 7919 % kTokens);
  std::string keys, values;
  ExpectStops("gather", [&] { return index_->Gather(seq_, 0, 1, positions, &keys, &values); });
}

// A call that waits for a layer gives up too, whatever it would have done there.
TEST_F(StopCallsTest, AStoppedCallWaitsForNoLayer) {
  struct Held : TestBackend {
    Outcome Encode(const EncodeTask* tasks, int count) override {
      if (shut) {
        inside = true;
        while (shut) std::this_thread::yield();
      }
      return TestBackend::Encode(tasks, count);
    }
    std::atomic<bool> shut{false}, inside{false};
  } backend;
  auto index = MakeIndex(SmallConfig(KvStore::kKeysValues), &backend);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 400)).ok());
  backend.shut = true;
  std::thread append([&] { EXPECT_TRUE(AppendNames(index.get(), seq, 0, 400, Names(401, 200)).ok()); });
  while (!backend.inside) std::this_thread::yield();
  const std::vector<float> queries = testing::Queries(index->config().geometry, 3);
  const std::vector<int32_t> positions = {1};
  EvictParams evict;
  evict.scorer.name = "knorm";
  evict.budget.ratio = .5;
  std::string keys;
  const std::vector<std::pair<std::string, std::function<absl::Status()>>> calls = {
      {"retrieve",
       [&] {
         return index->Retrieve({{seq, 0, queries.data()}}, index->config().search).status();
       }},
      {"attend",
       [&] {
         return index->Attend({{seq, 0, queries.data()}}, index->config().search, {}).status();
       }},
      {"append", [&] { return AppendNames(index.get(), seq, 0, 400, Names(401, 200)).status(); }},
      {"score", [&] { return index->Score(seq, 0, evict.scorer, {}).status(); }},
      {"evict", [&] { return index->Evict(seq, 0, evict, {}).status(); }},
      {"diagnose", [&] { return index->Diagnose(seq, 0, {}, {}).status(); }},
      {"gather", [&] { return index->Gather(seq, 0, 0, positions, &keys, nullptr); }},
      {"measure", [&] { return index->Measure({seq}, 0).status(); }},
      {"fork", [&] { return index->Fork(seq, "f", -1).status(); }},
      {"truncate", [&] { return index->Truncate(seq, 10); }},
  };
  for (const auto& [name, call] : calls) {
    const StopToken token(StopToken::Clock::now() + std::chrono::milliseconds(2));
    const StopScope scope(&token);
    EXPECT_EQ(call().code(), absl::StatusCode::kDeadlineExceeded) << name;
  }
  backend.shut = false;
  append.join();
  EXPECT_EQ(index->GetSequence(seq)->layer_tokens[0], 600);
  EXPECT_EQ(index->ListSequences().size(), 1u);
}

// Low-rank rows are learnt from and projected as they come, and rebuilt for whoever reads them.
TEST(StopTest, LowRankRows) {
  TestBackend backend(2);
  IndexConfig config = SmallConfig(KvStore::kKeysValues);
  config.subspace.emplace();
  config.subspace->key_rank = config.subspace->value_rank = 32;
  auto index = MakeIndex(config, &backend);
  const SequenceHandle seq = *index->CreateSequence("s");
  const std::string rows = testing::Rows(config.geometry, Names(1, 20000));
  const TensorView view = testing::View(config.geometry, rows);
  const auto append = [&] { return index->Append(seq, 0, 0, view, view).status(); };
  double cut = 1e9;
  for (int i = 0; i < 3; ++i) {
    const StopToken token(StopToken::Clock::now() + std::chrono::milliseconds(5));
    const StopScope scope(&token);
    cut = std::min(cut, MsOf([&] { EXPECT_EQ(append().code(), absl::StatusCode::kDeadlineExceeded); }));
    EXPECT_EQ(index->GetSequence(seq)->layer_tokens[0], 0);
  }
  EXPECT_LT(cut, 5 + MsOf([&] { EXPECT_TRUE(append().ok()); }) / 2);
  std::vector<int32_t> positions;
  std::string keys, values, again;
  const auto read = [&] { return index->Reconstruct(seq, 0, 0, 0, 20000, &positions, &keys, &values); };
  ScorerConfig knorm;
  knorm.name = "knorm";
  ASSERT_TRUE(read().ok());
  again = keys;
  {
    const StopToken token;
    token.Stop();
    const StopScope scope(&token);
    EXPECT_EQ(read().code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(index->Score(seq, 0, knorm, {}).status().code(), absl::StatusCode::kCancelled);
  }
  EXPECT_TRUE(read().ok());
  EXPECT_EQ(keys, again);
  EXPECT_TRUE(index->Score(seq, 0, knorm, {}).ok());
}

// Encodes nothing while its gate is shut, for three seconds at most, but for calls that are stopped.
struct StopGate : TestBackend {
  Outcome Encode(const EncodeTask* tasks, int count) override {
    const auto most = StopToken::Clock::now() + std::chrono::seconds(3);
    while (shut && !StopRequested() && StopToken::Clock::now() < most) {
      inside = true;
      std::this_thread::yield();
    }
    return TestBackend::Encode(tasks, count);
  }
  std::atomic<bool> shut{false}, inside{false};
};

class StopReencodingTest : public ::testing::Test {
 protected:
  // A layer whose codes are made for the positions of its first tokens, and are to be made anew.
  StopReencodingTest() {
    IndexConfig config = testing::BalancedConfig(model_, model_.Measure(1024));
    config.codec.horizon = 512;
    index_ = MakeIndex(config, &gate_);
    seq_ = *index_->CreateSequence("s");
    Append(0, 600);
    Append(600, 500);
    gate_.shut = true;
  }

  void Append(int64_t first, int64_t count) {
    const std::string rows = model_.KeyRows(first, count);
    const auto length = index_->Append(seq_, 0, first, testing::View(model_.geometry(), rows), {});
    EXPECT_TRUE(length.ok()) << length.status();
  }
  absl::StatusOr<std::vector<ItemAnswer>> Ask() {
    const std::vector<float> queries = model_.Query(1099, 1);
    return index_->Retrieve({{seq_, 0, queries.data()}}, index_->config().search);
  }

  const testing::MadeUpModel model_{
      {.num_layers = 1, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64, .dtype = DType::kFloat16}};
  StopGate gate_;
  std::unique_ptr<Index> index_;
  SequenceHandle seq_;
};

TEST_F(StopReencodingTest, AnAnswerThatWaitsForItGivesUp) {
  {  // at work itself,
    const StopToken token;
    const StopScope scope(&token);
    std::thread canceller([&] {
      while (!gate_.inside) std::this_thread::yield();
      token.Stop();
    });
    EXPECT_EQ(Ask().status().code(), absl::StatusCode::kCancelled);
    canceller.join();
  }
  {  // and behind the reencoder's own thread, which has it now
    const StopToken token(StopToken::Clock::now() + std::chrono::milliseconds(5));
    const StopScope scope(&token);
    EXPECT_EQ(Ask().status().code(), absl::StatusCode::kDeadlineExceeded);
  }
  gate_.shut = false;
  const auto answers = Ask();
  ASSERT_TRUE(answers.ok()) << answers.status();
  EXPECT_FALSE(answers->at(0).codes_stale);
}

TEST_F(StopReencodingTest, EndsWithTheIndex) {
  {
    const StopToken token(StopToken::Clock::now());
    const StopScope scope(&token);
    EXPECT_FALSE(Ask().ok());  // leaves it to the reencoder's thread
  }
  while (!gate_.inside) std::this_thread::yield();
  EXPECT_LT(MsOf([this] { index_.reset(); }), 1500);
}

}  // namespace
}  // namespace seine
