// Long work makes way for others' short work, and gets its half; executors have the priority of their tasks.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <optional>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "kernels/priority.h"
#include "kernels/stop.h"
#include "service/scheduling/executor.h"
#include "service/scheduling/sharing.h"
#include "service/scheduling/tenant_work.h"

namespace seine {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

void WorkFor(Clock::duration time) {
  const auto end = Clock::now() + time;
  while (Clock::now() < end) {
  }
}

FairTask Task(TenantWork* tenant, bool is_long, std::function<void()> run) {
  FairTask task;
  task.run = std::move(run);
  task.tenant = tenant;
  task.cost = is_long ? milliseconds(10) : milliseconds(1);
  task.is_long = is_long;
  return task;
}

TEST(Sharing, OneTenantIsAlone) {
  Sharing sharing;
  TenantWork acme, beta;
  for (int i = 0; i < 3; ++i) sharing.Saw(&acme);
  EXPECT_FALSE(sharing.several());
  const ShortWork one(sharing, &acme);
  EXPECT_FALSE(sharing.IsOverFairShare(&acme));
  sharing.Saw(&beta);
  EXPECT_TRUE(sharing.several());
}

TEST(Sharing, WorkOfNoTenantIsNotCounted) {
  Sharing sharing;
  TenantWork acme;
  const ShortWork unseen(sharing, nullptr);
  EXPECT_EQ(sharing.others_short(&acme), 0);
  LongWork work(sharing, nullptr);
  EXPECT_EQ(current_yielder, nullptr);
}

TEST(Sharing, LongWorkWaitsForOthersAndNotForItsOwn) {
  Sharing sharing;
  TenantWork acme, beta;
  LongWork work(sharing, &acme);
  {
    const ShortWork own(sharing, &acme);
    EXPECT_FALSE(work.held());
    EXPECT_FALSE(work.Yield());
  }
  const ShortWork others(sharing, &beta);
  EXPECT_TRUE(work.held());
}

// Short work without an end: long work goes on all the same, and waits about as long as it works.
TEST(Sharing, LongWorkIsNotStarved) {
  Sharing sharing;
  TenantWork acme, beta;
  const ShortWork others(sharing, &beta);
  const StopToken token;
  const StopScope stop(&token);
  LongWork work(sharing, &acme);
  for (int piece = 0; piece < 20; ++piece) {
    WorkFor(milliseconds(1));
    EXPECT_FALSE(StopRequested());
  }
  EXPECT_GT(acme.yielded_ns(), 10'000'000);
  EXPECT_EQ(beta.yielded_ns(), 0);
}

TEST(Sharing, ItGoesOnOnceTheOthersHaveEnded) {
  Sharing sharing;
  TenantWork acme, beta;
  std::latch begun(1), waits(1);
  std::thread other([&] {
    const ShortWork work(sharing, &beta);
    begun.count_down();
    waits.wait();
    std::this_thread::sleep_for(milliseconds(5));
  });
  begun.wait();
  LongWork work(sharing, &acme);
  WorkFor(milliseconds(20));
  waits.count_down();
  EXPECT_TRUE(work.Yield());
  other.join();
  EXPECT_FALSE(work.Yield());
  EXPECT_GT(acme.yielded_ns(), 0);
}

TEST(Sharing, ACancelledCallDoesNotWaitOn) {
  Sharing sharing;
  TenantWork acme, beta;
  const ShortWork others(sharing, &beta);
  const StopToken token;
  const StopScope stop(&token);
  token.Stop();
  LongWork work(sharing, &acme);
  WorkFor(milliseconds(1));
  EXPECT_TRUE(StopRequested());
  EXPECT_LT(acme.yielded_ns(), 1'000'000);
}

// The pool's threads leave a loop that is held, and take another's.
TEST(Sharing, HelpersLeaveHeldLoops) {
  Sharing sharing;
  TenantWork acme, beta;
  const auto backend = MakeCpuBackend(4);
  const StopToken token;
  const StopScope stop(&token);
  LongWork work(sharing, &acme);
  const auto caller = std::this_thread::get_id();
  std::atomic<int> ran{0}, helped{0}, after{0};
  std::optional<ShortWork> others(std::in_place, sharing, &beta);
  backend->Run(64, [&](int) {
    ++ran;
    if (std::this_thread::get_id() != caller) ++helped;
  });
  EXPECT_EQ(ran.load(), 64);
  EXPECT_EQ(helped.load(), 0);
  others.reset();
  std::latch both(2);  // a helper has come
  backend->Run(2, [&](int) {
    ++after;
    both.arrive_and_wait();
  });
  EXPECT_EQ(after.load(), 2);
}

// Two tenants: each has two of four threads for its long tasks.
TEST(Executor, LongTasksLeaveThreadsForOthers) {
  Sharing sharing;
  TenantWork acme, beta;
  std::latch release(1), begun(2), answered(1);
  std::atomic<int> started{0}, running{0};
  {
    Executor executor(4, 100, sharing, "test");
    sharing.Saw(&acme), sharing.Saw(&beta);
    const auto hold = [&] {
      ++running;
      if (++started <= 2) begun.count_down();
      release.wait();
      --running;
    };
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(executor.Submit(Task(&acme, true, hold)));
    begun.wait();
    ASSERT_TRUE(executor.Submit(Task(&beta, false, [&] { answered.count_down(); })));
    answered.wait();
    EXPECT_EQ(running.load(), 2);
    EXPECT_EQ(executor.waiting(), 3);
    release.count_down();
  }
  EXPECT_EQ(beta.waits().count(), 1);
  EXPECT_EQ(acme.waits().count(), 5);
}

TEST(Executor, ItsThreadsHaveItsPriority) {
  const auto nice = [] { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); };
  Sharing sharing;
  int usual = 0, low = 0;
  {
    Executor executor(1, 4, sharing, "test"), long_tasks(1, 4, sharing, "test", Priority::kLow);
    ASSERT_TRUE(executor.Submit([&] { usual = nice(); }));
    ASSERT_TRUE(long_tasks.Submit([&] { low = nice(); }));
  }
  EXPECT_EQ(usual, nice());
  EXPECT_EQ(low, std::min(19, nice() + 10));
}

TEST(Executor, OneTenantHasAllThreads) {
  Sharing sharing;
  TenantWork acme;
  std::latch all(4);
  Executor executor(4, 100, sharing, "test");
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(executor.Submit(Task(&acme, true, [&] { all.arrive_and_wait(); })));
}

// A full queue is full for who filled it.
TEST(Executor, WhoFilledTheQueueGivesWay) {
  Sharing sharing;
  TenantWork acme, beta;
  std::latch begun(1), release(1);
  std::atomic<int> ran{0}, dropped{0};
  {
    Executor executor(1, 4, sharing, "test");
    ASSERT_TRUE(executor.Submit([&] {
      begun.count_down();
      release.wait();
    }));
    begun.wait();
    const auto submit = [&](TenantWork* tenant) {
      FairTask task = Task(tenant, false, [&] { ++ran; });
      task.drop = [&] { ++dropped; };
      return executor.Submit(std::move(task));
    };
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(submit(&acme));
    EXPECT_FALSE(submit(&acme));
    EXPECT_EQ(dropped.load(), 0);
    EXPECT_TRUE(submit(&beta));
    EXPECT_TRUE(submit(&beta));
    EXPECT_FALSE(submit(&beta));  // it has as much as the other now
    EXPECT_FALSE(submit(&acme));
    EXPECT_EQ(dropped.load(), 2);
    EXPECT_EQ(executor.waiting(), 4);
    EXPECT_EQ(executor.refused(), 5);
    release.count_down();
  }
  EXPECT_EQ(ran.load(), 4);
}

}  // namespace
}  // namespace seine
