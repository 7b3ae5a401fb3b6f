// Callers that wait for a device: few of them spin, none for long, and each gets its own result.
#include "kernels/device/waits.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace seine::cuda {
namespace {

TEST(Waits, WhatIsOverSoonIsNotSleptFor) {
  Waits waits(1);
  int asked = 0, slept = 0;
  const auto done = [&](int* result) {
    *result = 7;
    return ++asked == 3;
  };
  EXPECT_EQ(waits.For<int>(done, [&] { return ++slept; }), 7);
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(slept, 0);
}

TEST(Waits, WhatTakesLongIsSleptFor) {
  Waits waits(1);
  EXPECT_EQ(waits.For<int>([](int*) { return false; }, [] { return 719; }), 719);  // an error comes out, too
}

TEST(Waits, NoMoreSpinThanMay) {
  for (const int spinners : {1, 2}) {
    Waits waits(spinners);
    std::atomic<int> asking{0}, most{0}, slept{0};
    const auto done = [&](int*) {
      const int now = ++asking;
      for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
      }
      std::this_thread::yield();
      --asking;
      return false;
    };
    std::vector<std::thread> callers;
    for (int i = 0; i < 8; ++i) {
      callers.emplace_back([&] {
        for (int round = 0; round < 50; ++round) waits.For<int>(done, [&] { return ++slept, 0; });
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(slept, 400);
    EXPECT_GE(most, 1);
    EXPECT_LE(most, spinners);
  }
}

TEST(Waits, AQuarterOfTheCoresMaySpin) {
  EXPECT_EQ(Waits::SpinnersOf(1), 1);
  EXPECT_EQ(Waits::SpinnersOf(8), 2);
  EXPECT_EQ(Waits::SpinnersOf(192), 48);
}

}  // namespace
}  // namespace seine::cuda
