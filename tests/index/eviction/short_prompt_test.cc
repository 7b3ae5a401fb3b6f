// Prompts shorter than what a scorer looks at, or than the budget: nothing is evicted, nothing fails, and scores are of
// what queries there can be.
#include <algorithm>
#include <cmath>

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

// Scorers that look at queries, and how many tokens each keeps whatever the budget: snapkv its window,
// expected_attention its sinks.
struct Case {
  const char* scorer;
  int64_t window;
};
constexpr Case kCases[] = {{"snapkv", 64}, {"tova", 0}, {"h2o", 0}, {"expected_attention", 4}};

class ShortPrompts : public ::testing::Test {
 protected:
  void Fill(int64_t tokens) {
    index_ = MakeIndex(SmallConfig(), &backend_);
    sequence_ = *index_->CreateSequence("");
    ASSERT_TRUE(tokens == 0 || AppendNames(index_.get(), sequence_, 0, 0, Names(0, tokens)).ok());
    queries_.clear();
    for (int64_t p = 0; p < tokens; ++p) {
      const std::vector<float> one = Queries(index_->config().geometry, static_cast<uint32_t>(p));
      queries_.insert(queries_.end(), one.begin(), one.end());
    }
  }
  ScorerInputs Given(int64_t count) const {
    return {.queries = count > 0 ? queries_.data() : nullptr, .num_queries = count};
  }
  static ScorerConfig Named(const char* name) {
    ScorerConfig config;
    config.name = name;
    if (config.name == "expected_attention") config.value_norms = false;
    return config;
  }
  absl::StatusOr<EvictAnswer> Cut(const char* scorer, int64_t budget, const ScorerInputs& given) {
    EvictParams params;
    params.scorer = Named(scorer);
    params.budget.tokens = budget;
    return index_->Evict(sequence_, 0, params, given);
  }

  TestBackend backend_;
  std::unique_ptr<Index> index_;
  SequenceHandle sequence_;
  std::vector<float> queries_;
};

TEST_F(ShortPrompts, ABudgetThatHoldsThemEvictsNothing) {
  for (const Case& c : kCases) {
    for (const int64_t tokens : {0, 1, 10, 63}) {
      for (const bool asked : {true, false}) {
        SCOPED_TRACE(::testing::Message() << c.scorer << ", " << tokens << " tokens, queries " << asked);
        Fill(tokens);
        const auto answer = Cut(c.scorer, 100, Given(asked ? tokens : 0));
        ASSERT_TRUE(answer.ok()) << answer.status();
        EXPECT_EQ(answer->tokens_evicted, 0);
        ASSERT_EQ(answer->kept.size(), 2u);
        for (const auto& head : answer->kept) EXPECT_EQ(static_cast<int64_t>(head.size()), tokens);
      }
    }
  }
}

TEST_F(ShortPrompts, AWindowThatHoldsThemEvictsNothing) {
  for (const Case& c : kCases) {
    for (const int64_t tokens : {1, 10, 63, 64, 65}) {
      SCOPED_TRACE(::testing::Message() << c.scorer << ", " << tokens << " tokens");
      Fill(tokens);
      const int64_t budget = std::max<int64_t>(1, tokens / 3), kept = tokens <= c.window ? tokens : budget;
      const auto answer = Cut(c.scorer, budget, Given(tokens));
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_EQ(answer->tokens_evicted, 2 * (tokens - kept));
      for (const auto& head : answer->kept) EXPECT_EQ(static_cast<int64_t>(head.size()), kept);
    }
  }
}

TEST_F(ShortPrompts, ScoresAreOfTheQueriesThatThereCanBe) {
  for (const Case& c : kCases) {
    for (const int64_t tokens : {0, 1, 10, 63}) {
      SCOPED_TRACE(::testing::Message() << c.scorer << ", " << tokens << " tokens");
      Fill(tokens);
      const auto answer = index_->Score(sequence_, 0, Named(c.scorer), Given(tokens));
      ASSERT_TRUE(answer.ok()) << answer.status();
      ASSERT_EQ(answer->scores.size(), 2u);
      for (const auto& head : answer->scores) {
        ASSERT_EQ(static_cast<int64_t>(head.size()), tokens);
        for (const float score : head) EXPECT_TRUE(std::isfinite(score));
        // All are of the window, so none is worth less than another.
        if (tokens <= c.window) {
          EXPECT_EQ(head, std::vector<float>(tokens, 1.0f));
        }
      }
    }
  }
}

// A longer prompt still needs all of the window's queries.
TEST_F(ShortPrompts, WhereThereAreMoreTokensTheWindowIsAskedFor) {
  Fill(100);
  const auto scores = index_->Score(sequence_, 0, Named("snapkv"), Given(63));
  EXPECT_TRUE(absl::StrContains(scores.status().message(), "queries: snapkv needs those of the last 64 positions, 63 "))
      << scores.status();
  EXPECT_FALSE(Cut("snapkv", 80, Given(63)).ok());
  EXPECT_TRUE(Cut("snapkv", 80, Given(64)).ok());
}

// What comes with the call is looked at all the same.
TEST_F(ShortPrompts, BadInputIsRefusedWhereNothingWouldBeEvicted) {
  Fill(10);
  queries_.resize(11 * queries_.size() / 10);
  EXPECT_TRUE(absl::StrContains(Cut("snapkv", 100, Given(11)).status().message(), "queries: of 11 positions"));
  EvictParams params;
  params.scorer.name = "client";
  params.budget.tokens = 100;
  const std::vector<float> nine(9);
  const ScorerInputs given{.scores = {nine, nine}};
  EXPECT_TRUE(
      absl::StrContains(index_->Evict(sequence_, 0, params, given).status().message(), "scores[0]: 9 for a KV head"));
}

}  // namespace
}  // namespace seine
