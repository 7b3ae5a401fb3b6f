// Tokens that end a call: what they say, and how the thread pool hands them on.
#include "kernels/stop.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "kernels/thread_pool.h"

namespace seine {
namespace {

TEST(Stop, TheFirstReasonStays) {
  const StopToken token;
  EXPECT_FALSE(token.stop_requested());
  token.Stop(StopReason::kShutdown);
  token.Stop();
  EXPECT_TRUE(token.stop_requested());
  EXPECT_EQ(token.reason(), StopReason::kShutdown);
}

TEST(Stop, ADeadlineStopsByItself) {
  EXPECT_FALSE(StopToken(StopToken::Clock::now() + std::chrono::hours(1)).stop_requested());
  const StopToken past(StopToken::Clock::now());
  EXPECT_EQ(past.reason(), StopReason::kDeadline);
  past.Stop();
  EXPECT_EQ(past.reason(), StopReason::kDeadline);
}

TEST(Stop, ScopesNest) {
  const StopToken stopped, other;
  stopped.Stop();
  EXPECT_FALSE(StopRequested());
  {
    const StopScope outer(&stopped);
    EXPECT_TRUE(StopRequested());
    {
      const StopScope inner(&other);
      EXPECT_FALSE(StopRequested());
      const StopScope none(nullptr);
      EXPECT_FALSE(StopRequested());
    }
    EXPECT_TRUE(StopRequested());
  }
  EXPECT_FALSE(StopRequested());
}

TEST(Stop, IsCurrentWhereverALoopRuns) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const StopToken token;
    std::atomic<int> seen{0}, foreign{0};
    {
      const StopScope scope(&token);
      pool.Run(100, [&](int) { (current_stop_token == &token ? seen : foreign)++; });
    }
    pool.Run(100, [&](int) { foreign += current_stop_token != nullptr; });  // none is left behind
    EXPECT_EQ(seen, 100);
    EXPECT_EQ(foreign, 0);
  }
}

TEST(Stop, LeavesOutWhatIsNotBegun) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const StopToken token;
    const StopScope scope(&token);
    std::atomic<int> ran{0};
    pool.Run(1000, [&](int) {
      if (++ran == 5) token.Stop();
    });
    EXPECT_GE(ran, 5);
    EXPECT_LE(ran, 5 + threads);
    pool.Run(1000, [&](int) { ++ran; });
    EXPECT_LE(ran, 5 + threads);
    const StopScope none(nullptr);
    ran = 0;
    pool.Run(100, [&](int) { ++ran; });
    EXPECT_EQ(ran, 100);
  }
}

}  // namespace
}  // namespace seine
