// The mutex that is taken in turn: it excludes, nobody overtakes, and a stopped call gives up.
#include "index/fair_mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "kernels/stop.h"

namespace seine {
namespace {

using std::chrono::milliseconds;

// Once somebody waits, try_lock_shared fails although readers alone hold the mutex.
void AwaitWaiter(FairMutex* mutex) {
  while (mutex->try_lock_shared()) {
    mutex->unlock_shared();
    std::this_thread::yield();
  }
}

TEST(FairMutexTest, WritersExcludeAll) {
  FairMutex mutex;
  int value = 0, twice = 0;
  std::atomic<int> torn{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 3000; ++i) {
        const std::unique_lock<FairMutex> lock(mutex);
        ++value;
        twice = 2 * value;
      }
    });
    threads.emplace_back([&] {
      for (int i = 0; i < 3000; ++i) {
        const std::shared_lock<FairMutex> lock(mutex);
        torn += twice != 2 * value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(value, 9000);
  EXPECT_EQ(torn, 0);
  EXPECT_TRUE(mutex.try_lock());  // nothing is left behind
  mutex.unlock();
}

TEST(FairMutexTest, ReadersShare) {
  FairMutex mutex;
  mutex.lock_shared();
  EXPECT_TRUE(mutex.try_lock_shared());
  EXPECT_FALSE(mutex.try_lock());
  mutex.unlock_shared();
  EXPECT_FALSE(mutex.try_lock());
  mutex.unlock_shared();
  EXPECT_TRUE(mutex.try_lock());
  EXPECT_FALSE(mutex.try_lock_shared());
  mutex.unlock();
}

TEST(FairMutexTest, LaterReadersWaitBehindAWriter) {
  FairMutex mutex;
  mutex.lock_shared();
  std::vector<char> order;
  std::thread writer([&] {
    const std::unique_lock<FairMutex> lock(mutex);
    order.push_back('w');
  });
  AwaitWaiter(&mutex);
  std::thread reader([&] {
    const std::shared_lock<FairMutex> lock(mutex);
    order.push_back('r');
  });
  mutex.unlock_shared();
  writer.join();
  reader.join();
  EXPECT_EQ(order, (std::vector<char>{'w', 'r'}));
}

// Readers that hold the mutex one over the other, without a gap, as searches of many callers do.
TEST(FairMutexTest, AWriterGetsInAmongReaders) {
  FairMutex mutex;
  std::atomic<bool> done{false};
  std::atomic<int> inside{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 4; ++t) {
    readers.emplace_back([&] {
      while (!done) {
        const std::shared_lock<FairMutex> lock(mutex);
        ++inside;
        const auto until = std::chrono::steady_clock::now() + milliseconds(5);
        while (inside < 2 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
        std::this_thread::sleep_for(milliseconds(1));
        --inside;
      }
    });
  }
  while (inside < 2) std::this_thread::yield();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) {
    mutex.lock();
    mutex.unlock();
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_LT(took, std::chrono::seconds(20));
}

TEST(FairMutexTest, AReaderGetsInAmongWriters) {
  FairMutex mutex;
  std::atomic<bool> done{false};
  std::vector<std::thread> writers;
  for (int t = 0; t < 3; ++t) {
    writers.emplace_back([&] {
      while (!done) {
        const std::unique_lock<FairMutex> lock(mutex);
        std::this_thread::sleep_for(milliseconds(1));
      }
    });
  }
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) {
    mutex.lock_shared();
    mutex.unlock_shared();
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  done = true;
  for (std::thread& writer : writers) writer.join();
  EXPECT_LT(took, std::chrono::seconds(20));
}

TEST(FairMutexTest, AStoppedCallGivesUpAndLetsOthersIn) {
  FairMutex mutex;
  mutex.lock_shared();
  const StopToken stop;
  std::atomic<int> got{-1};
  std::thread writer([&] {
    const StopScope scope(&stop);
    got = mutex.LockUnlessStopped();
  });
  AwaitWaiter(&mutex);
  std::thread reader([&] { std::shared_lock<FairMutex> lock(mutex); });  // waits behind the writer
  stop.Stop();
  writer.join();
  EXPECT_EQ(got, 0);
  reader.join();
  mutex.unlock_shared();
  mutex.lock();
  const StopToken late(StopToken::Clock::now() + milliseconds(5));
  const StopScope scope(&late);
  EXPECT_FALSE(mutex.LockSharedUnlessStopped());
  EXPECT_FALSE(mutex.LockUnlessStopped());
  mutex.unlock();
  EXPECT_TRUE(mutex.LockUnlessStopped());  // what is free costs no waiting
  mutex.unlock();
}

}  // namespace
}  // namespace seine
