// The idle tier under concurrent calls: families come and go beneath them, and every answer is right. Run under
// ThreadSanitizer too.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "index/stop_status.h"
#include "kernels/stop.h"
#include "tests/index/idle/idle_fixture.h"

namespace seine {
namespace {

using testing::AnswersOf;
using testing::IdleTest;

void Join(std::vector<std::thread>* threads) {
  for (std::thread& thread : *threads) thread.join();
}

TEST_F(IdleTest, StepsGoOnWhileTheTierTakesWhatItCan) {
  Open(0, std::chrono::nanoseconds(1));
  std::map<std::string, testing::Answers> expected;
  for (int s = 0; s < 3; ++s) {
    const std::string id = "s" + std::to_string(s);
    Make(id, 80);
    expected[id] = AnswersOf(*index_, id);
  }
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; !done; ++i) {
        const std::string id = "s" + std::to_string(i % 3);
        EXPECT_TRUE(AnswersOf(*index_, id) == expected.at(id)) << id;
      }
    });
  }
  while (tier_->Read().restores < 30) tier_->SpillIdle();
  done = true;
  Join(&threads);
  const IdleReading read = tier_->Read();
  EXPECT_EQ(read.restores_failed + read.spills_failed, 0);
  EXPECT_GE(read.spills_idle, read.restores);
}

TEST_F(IdleTest, CallsAtOnceShareOneRestore) {
  constexpr int kCalls = 8;
  Open();
  Make("a", 900);
  ASSERT_TRUE(index_->Fork({"a", 0}, "b", -1).ok());
  const testing::Answers answers = AnswersOf(*index_, "a");
  ASSERT_TRUE(tier_->SpillOldest(*budget_));
  std::vector<std::thread> threads;
  for (int i = 0; i < kCalls; ++i) {
    threads.emplace_back([&, i] { EXPECT_TRUE(AnswersOf(*index_, i % 2 == 0 ? "a" : "b") == answers); });
  }
  Join(&threads);
  EXPECT_EQ(tier_->Read().restores, 1);
}

TEST_F(IdleTest, AFamilyWithACallInFlightStays) {
  Open();
  Make("busy", 900);
  Make("idle");
  std::atomic<bool> began{false}, goes_on{false};
  const std::vector<float> queries = testing::Queries(index_->config().geometry, 5);
  std::thread call([&] {
    const auto wait = [&](size_t) {
      began = true;
      WaitFor(goes_on);
    };
    const auto params = index_->Check(index_->config().search);
    EXPECT_TRUE(index_->Retrieve({{{"busy", 0}, 0, queries.data()}}, *params, wait).ok());
  });
  WaitFor(began);
  EXPECT_TRUE(tier_->SpillOldest(*budget_));
  EXPECT_FALSE(tier_->SpillOldest(*budget_));
  EXPECT_TRUE(OnDisk("idle"));
  EXPECT_FALSE(OnDisk("busy"));
  goes_on = true;
  call.join();
  EXPECT_TRUE(tier_->SpillOldest(*budget_));
}

TEST_F(IdleTest, WhoWaitsForAFamilyKeepsItsDeadline) {
  Open();
  Make("a");
  const testing::Answers answers = AnswersOf(*index_, "a");
  disk_.stands = true;
  std::thread spiller([this] { EXPECT_TRUE(tier_->SpillOldest(*budget_)); });
  WaitFor(disk_.waits);
  {
    const StopToken token(StopToken::Clock::now() + std::chrono::milliseconds(20));
    const StopScope scope(&token);
    const absl::Status late = index_->Gather({"a", 0}, 0, 0, {}, nullptr, nullptr);
    EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  }
  disk_.stands = false;
  spiller.join();
  EXPECT_TRUE(AnswersOf(*index_, "a") == answers);
}

TEST_F(IdleTest, WhoWaitsForRoomKeepsItsDeadline) {
  Open();
  Make("a");
  Make("b");
  budget_->SetLimit(budget_->used_bytes(), Account::kHost);
  disk_.stands = true;
  std::thread spiller([this] { EXPECT_TRUE(tier_->SpillOldest(*budget_)); });
  WaitFor(disk_.waits);
  {
    const StopToken token(StopToken::Clock::now() + std::chrono::milliseconds(20));
    const StopScope scope(&token);
    const absl::Status late = index_->CreateSequence("c").status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  }
  disk_.stands = false;
  spiller.join();
  EXPECT_TRUE(index_->CreateSequence("c").ok());
}

TEST_F(IdleTest, AnswersStayRightWhileMemoryHoldsAFewFamilies) {
  constexpr int kFamilies = 20, kThreads = 3, kCalls = 40;
  Open();
  std::map<std::string, testing::Answers> expected;
  for (int f = 0; f < kFamilies; ++f) {
    const std::string id = "s" + std::to_string(f);
    Make(id, 300 + f);
    expected[id] = AnswersOf(*index_, id);
  }
  budget_->SetLimit(budget_->used_bytes() / 4, Account::kHost);  // three calls hold a family each
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      for (int i = 0; i < kCalls; ++i) {
        const std::string id = "s" + std::to_string(std::min(random() % kFamilies, random() % kFamilies));
        EXPECT_TRUE(AnswersOf(*index_, id) == expected.at(id)) << id;
        if (i % 8 != 0) continue;
        const std::string fork = "fork-" + std::to_string(t);
        EXPECT_TRUE(index_->Fork({id, 0}, fork, -1).ok());
        EXPECT_TRUE(AnswersOf(*index_, fork) == expected.at(id)) << id;
        EXPECT_TRUE(index_->DeleteSequence({fork, 0}).ok());
        EXPECT_GE(index_->ListSequences("r", 100).size(), kFamilies);
        EXPECT_GE(index_->num_tokens(), 300 * kFamilies);
      }
    });
  }
  Join(&threads);
  const IdleReading read = tier_->Read();
  EXPECT_GE(read.restores, kFamilies / 2);
  EXPECT_EQ(read.restores_failed + read.spills_failed, 0);
}

}  // namespace
}  // namespace seine
