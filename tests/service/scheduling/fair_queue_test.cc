// The order of deficit round robin, by costs alone: no thread, no clock.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "service/scheduling/call_costs.h"
#include "service/scheduling/fair_queue.h"
#include "service/scheduling/long_work.h"
#include "service/scheduling/sharing.h"
#include "service/scheduling/tenant_work.h"

namespace seine {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

class FairQueueTest : public ::testing::Test {
 protected:
  // Tasks are due in the order in which they are pushed.
  void Push(TenantWork* tenant, const std::string& name, std::chrono::nanoseconds cost, bool is_long = false) {
    FairTask task;
    task.run = [this, name] { ran_.push_back(name); };
    task.drop = [this, name] { ran_.push_back("drop " + name); };
    task.tenant = tenant;
    task.cost = cost;
    task.is_long = is_long;
    task.due = FairTask::SteadyTime(microseconds(++pushed_));
    queue_.Push(std::move(task));
  }
  bool RunNext(bool long_too = true) {
    auto task = queue_.Pop([long_too](const TenantWork*) { return long_too; });
    if (task.has_value()) task->run();
    return task.has_value();
  }
  std::vector<std::string> RunAll() {
    while (RunNext()) {
    }
    return ran_;
  }

  FairQueue queue_;
  TenantWork acme_, beta_, gamma_;
  std::vector<std::string> ran_;
  int pushed_ = 0;
};

TEST_F(FairQueueTest, OneTenantsTasksComeAsTheyAreDue) {
  Push(&acme_, "1", milliseconds(500));
  Push(&acme_, "2", milliseconds(1));
  Push(&acme_, "3", milliseconds(70), /*is_long=*/true);
  EXPECT_EQ(RunAll(), (std::vector<std::string>{"1", "2", "3"}));
}

TEST_F(FairQueueTest, TenantsTakeTurnsByCost) {
  for (const char* name : {"a1", "a2", "a3", "a4"}) Push(&acme_, name, milliseconds(1));
  for (const char* name : {"b1", "b2"}) Push(&beta_, name, milliseconds(2));
  // A quantum is 1 ms: two of acme's tasks for one of beta's.
  EXPECT_EQ(RunAll(), (std::vector<std::string>{"a1", "a2", "b1", "a3", "a4", "b2"}));
}

TEST_F(FairQueueTest, SeveralSmallTasksShareAQuantum) {
  for (const char* name : {"a1", "a2", "a3"}) Push(&acme_, name, microseconds(500));
  for (const char* name : {"b1", "b2", "b3"}) Push(&beta_, name, microseconds(500));
  EXPECT_EQ(RunAll(), (std::vector<std::string>{"a1", "a2", "b1", "b2", "a3", "b3"}));
}

TEST_F(FairQueueTest, ALongTaskWaitsForAsMuchOfOthers) {
  Push(&acme_, "prefill", milliseconds(50), /*is_long=*/true);
  for (int i = 0; i < 200; ++i) Push(&beta_, "step", milliseconds(1));
  const std::vector<std::string> order = RunAll();
  const auto at = std::find(order.begin(), order.end(), "prefill") - order.begin();
  EXPECT_GE(at, 49);
  EXPECT_LE(at, 51);  // and no longer: it does not starve
}

// Whatever the others' tasks cost, and however many come, each tenant gets a third of the cost.
TEST_F(FairQueueTest, SharesAreEqualWhateverTasksCost) {
  std::map<TenantWork*, std::chrono::nanoseconds> spent;
  const std::map<TenantWork*, std::chrono::nanoseconds> costs = {
      {&acme_, milliseconds(37)}, {&beta_, microseconds(150)}, {&gamma_, milliseconds(3)}};
  for (const auto& [tenant, cost] : costs) {
    for (int i = 0; i < 20; ++i) Push(tenant, "", cost);
  }
  for (int i = 0; i < 20'000; ++i) {
    const auto task = queue_.Pop([](const TenantWork*) { return true; });
    ASSERT_TRUE(task.has_value());
    spent[task->tenant] += task->cost;
    Push(task->tenant, "", task->cost);
  }
  for (const auto& [tenant, time] : spent) EXPECT_NEAR(time / milliseconds(1), spent[&beta_] / milliseconds(1), 40);
}

TEST_F(FairQueueTest, WhoCostsMoreThanExpectedOwesIt) {
  for (const char* name : {"a1", "a2", "a3", "a4"}) Push(&acme_, name, milliseconds(1));
  for (const char* name : {"b1", "b2", "b3", "b4"}) Push(&beta_, name, milliseconds(1));
  ASSERT_TRUE(RunNext());
  queue_.Correct(&acme_, milliseconds(3));
  EXPECT_EQ(RunAll(), (std::vector<std::string>{"a1", "b1", "b2", "b3", "b4", "a2", "a3", "a4"}));
}

// What a tenant has run while nobody else waited is not held against it.
TEST_F(FairQueueTest, WhoWasAloneOwesNothing) {
  Push(&acme_, "a1", milliseconds(900));
  ASSERT_TRUE(RunNext());
  queue_.Correct(&acme_, milliseconds(900));
  Push(&acme_, "a2", milliseconds(1));
  Push(&beta_, "b1", milliseconds(1));
  Push(&beta_, "b2", milliseconds(1));
  EXPECT_EQ(RunAll(), (std::vector<std::string>{"a1", "a2", "b1", "b2"}));
}

// Nor is what it did not use kept for later: it gets no burst.
TEST_F(FairQueueTest, WhoWasIdleHasSavedNothing) {
  Push(&acme_, "a1", milliseconds(1));
  Push(&beta_, "b1", milliseconds(40));
  EXPECT_EQ(RunAll().size(), 2U);
  ran_.clear();
  for (const char* name : {"b2", "b3", "b4"}) Push(&beta_, name, milliseconds(1));
  for (const char* name : {"a2", "a3"}) Push(&acme_, name, milliseconds(1));
  EXPECT_EQ(RunAll(), (std::vector<std::string>{"b2", "a2", "b3", "a3", "b4"}));
}

TEST_F(FairQueueTest, ShortTasksPassLongOnesThatMayNotRun) {
  Push(&acme_, "long", milliseconds(5), /*is_long=*/true);
  Push(&acme_, "short", milliseconds(1));
  EXPECT_TRUE(RunNext(/*long_too=*/false));
  EXPECT_FALSE(RunNext(/*long_too=*/false));
  EXPECT_EQ(queue_.size(), 1U);
  EXPECT_EQ(RunAll(), (std::vector<std::string>{"short", "long"}));
}

TEST_F(FairQueueTest, TheLongestQueueGivesWay) {
  for (const char* name : {"a1", "a2", "a3"}) Push(&acme_, name, milliseconds(1));
  Push(&beta_, "b1", milliseconds(1));
  EXPECT_FALSE(queue_.DropFor(&acme_).has_value());
  auto dropped = queue_.DropFor(&beta_);
  ASSERT_TRUE(dropped.has_value());
  dropped->drop();
  EXPECT_EQ(ran_, (std::vector<std::string>{"drop a3"}));
  EXPECT_FALSE(queue_.DropFor(&beta_).has_value());  // 2 against 1: each would push the other out
  EXPECT_EQ(queue_.size(), 3U);
}

TEST(CallCosts, AreLearntFromTheCallsBefore) {
  CallCosts costs;
  EXPECT_GT(costs.Estimate(3, CostKind::kAppend, 8 << 20), milliseconds(5));
  EXPECT_LT(costs.Estimate(3, CostKind::kAppend, 2 << 10), microseconds(20));
  EXPECT_EQ(costs.Estimate(7, CostKind::kWhole, 0), milliseconds(10));
  for (int i = 0; i < 40; ++i) {
    costs.Took(7, CostKind::kWhole, 100, microseconds(50));
    costs.Took(8, CostKind::kSearch, 16 << 10, milliseconds(4));
  }
  EXPECT_LT(costs.Estimate(7, CostKind::kWhole, 100), microseconds(200));
  const double twice = costs.Estimate(8, CostKind::kSearch, 32 << 10) / std::chrono::nanoseconds(1);
  EXPECT_NEAR(twice, 8e6, 4e5);
  costs.Took(1000, CostKind::kSearch, 0, milliseconds(1));  // a method beyond the table
  EXPECT_GT(costs.Estimate(1001, CostKind::kSearch, 0), std::chrono::nanoseconds(0));
}

TEST(CallCosts, PartsOfPrefillsAreLongWorkHoweverFast) {
  EXPECT_TRUE(IsLongWork(CostKind::kAppend, kPrefillBytes + 1, microseconds(1)));
  EXPECT_FALSE(IsLongWork(CostKind::kAppend, kPrefillBytes, kLongWork));
  EXPECT_FALSE(IsLongWork(CostKind::kSearch, kPrefillBytes + 1, kLongWork));
  for (const CostKind kind : {CostKind::kAppend, CostKind::kSearch, CostKind::kWhole}) {
    EXPECT_TRUE(IsLongWork(kind, 0, kLongWork + std::chrono::nanoseconds(1)));
  }
}

}  // namespace
}  // namespace seine
