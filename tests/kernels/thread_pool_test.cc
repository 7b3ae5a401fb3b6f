// Loops on the pool: each index once, from many callers at once.
#include "kernels/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <thread>
#include <vector>

#include "kernels/backend.h"

namespace seine {
namespace {

TEST(ThreadPool, RunsEveryIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (const int count : {0, 1, 2, 100}) {
      std::vector<std::atomic<int>> seen(count);
      pool.Run(count, [&](int i) { ++seen[i]; });
      for (const auto& s : seen) EXPECT_EQ(s, 1);
    }
  }
}

TEST(ThreadPool, ManyCallersShareIt) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) pool.Run(10, [&](int i) { sum += i; });
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(sum, 4 * 200 * 45);
}

int Nice() { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); }

class NeverHeld final : public Yielder {
 public:
  bool held() const override { return false; }
  bool Yield() override { return false; }
};

// Runs a loop of two tasks, one of them on a helper, and returns the helper's nice value.
int NiceOfHelper(ThreadPool* pool) {
  const auto caller = std::this_thread::get_id();
  std::atomic<int> nice{0};
  std::latch both(2);
  pool->Run(2, [&](int) {
    if (std::this_thread::get_id() != caller) nice = Nice();
    both.arrive_and_wait();
  });
  return nice;
}

TEST(ThreadPool, LongWorkHasHelpersOfLowPriority) {
  ThreadPool pool(2);
  const StopToken token;
  const StopScope stop(&token);
  {
    NeverHeld yielder;
    const YieldScope long_work(&yielder);
    EXPECT_EQ(NiceOfHelper(&pool), std::min(19, Nice() + 10));
  }
  EXPECT_EQ(NiceOfHelper(&pool), Nice());
}

// A short loop finds a helper though a long one keeps its own busy.
TEST(ThreadPool, ShortLoopsDoNotWaitForLongOnes) {
  ThreadPool pool(2);
  const StopToken token;
  std::latch held(2), release(1);
  std::thread long_caller([&] {
    const StopScope stop(&token);
    NeverHeld yielder;
    const YieldScope long_work(&yielder);
    pool.Run(2, [&](int) {
      held.count_down();
      release.wait();
    });
  });
  held.wait();
  EXPECT_EQ(NiceOfHelper(&pool), Nice());
  release.count_down();
  long_caller.join();
}

TEST(Buffer, MovesAndFrees) {
  const auto backend = MakeCpuBackend(1);
  Buffer a = backend->Allocate(1000, MemorySpace::kStore);
  ASSERT_TRUE(a);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 64, 0u);
  uint8_t* data = a.data();
  Buffer b = std::move(a);
  EXPECT_FALSE(a);
  EXPECT_EQ(b.data(), data);
  b = backend->Allocate(size_t{4} << 20, MemorySpace::kCodes);
  EXPECT_EQ(b.size(), size_t{4} << 20);
  EXPECT_FALSE(backend->Allocate(0, MemorySpace::kCodes));
}

}  // namespace
}  // namespace seine
