// The gate of a layer: which answers are checked, and when it steps back and tries again.
#include "index/layer_gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace seine {
namespace {

std::vector<int64_t> DueOf(LayerGate* gate, int64_t answers, int64_t tokens) {
  std::vector<int64_t> due;
  for (int64_t a = 1; a <= answers; ++a) {
    if (gate->Due(tokens)) due.push_back(a);
  }
  return due;
}

TEST(LayerGateTest, ChecksEarlyAndThenNowAndThen) {
  LayerGate gate(.05);
  EXPECT_EQ(DueOf(&gate, 1000, 8000), (std::vector<int64_t>{2, 8, 32, 128, 256, 512, 768}));
  EXPECT_EQ(gate.checks_due(), 7);
}

TEST(LayerGateTest, LongTextsAreCheckedAsMuchMoreSeldom) {
  LayerGate gate(.05);
  EXPECT_EQ(DueOf(&gate, 6000, 131072), (std::vector<int64_t>{2, 8, 32, 128, 2048, 4096}));
}

TEST(LayerGateTest, LayersTakeTurns) {
  std::vector<int64_t> later;
  for (int layer = 0; layer < 5; ++layer) {
    LayerGate gate(.05, layer);
    later.push_back(DueOf(&gate, 1000, 8000).back());
  }
  EXPECT_EQ(later, (std::vector<int64_t>{768, 805, 842, 879, 916}));
  LayerGate third(.05, 3);
  EXPECT_EQ(DueOf(&third, 200, 8000), (std::vector<int64_t>{5, 20, 80}));
}

TEST(LayerGateTest, ABoundOfZeroChecksNothing) {
  LayerGate gate(0);
  EXPECT_TRUE(DueOf(&gate, 1000, 8000).empty());
  EXPECT_FALSE(gate.Exact());
}

TEST(LayerGateTest, StaysWhereLittleIsLost) {
  LayerGate gate(.05);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(gate.Checked(i % 2 == 0 ? .06 : .03));
  EXPECT_EQ(gate.Read().checks, 100);
  EXPECT_NEAR(gate.Read().lost, 4.5, 1e-9);
  EXPECT_FALSE(gate.Exact());
}

TEST(LayerGateTest, OneCheckIsNotEnough) {
  LayerGate gate(.05);
  EXPECT_FALSE(gate.Checked(1));
  EXPECT_TRUE(gate.Checked(0));  // .5 of two, ten times the bound
}

TEST(LayerGateTest, StepsBackAndTriesAgainWithMore) {
  LayerGate gate(.05);
  EXPECT_EQ(gate.Widened(100), 100);
  EXPECT_FALSE(gate.Checked(.07));
  EXPECT_FALSE(gate.Checked(.07));
  EXPECT_FALSE(gate.Checked(.07));
  EXPECT_TRUE(gate.Checked(.07));
  EXPECT_TRUE(gate.Read().exact);
  EXPECT_NEAR(gate.Read().lost_then, .07, 1e-9);
  EXPECT_FALSE(gate.Checked(1));  // of an answer before
  for (int64_t i = 0; i < LayerGate::kPause; ++i) ASSERT_TRUE(gate.Exact()) << i;
  EXPECT_FALSE(gate.Exact());
  EXPECT_FALSE(gate.Read().exact);
  EXPECT_EQ(gate.Read().exact_answers, LayerGate::kPause);
  EXPECT_EQ(gate.Widened(100), 200);
  EXPECT_EQ(DueOf(&gate, 200, 8000), (std::vector<int64_t>{2, 8, 32, 128}));
  int64_t pause = LayerGate::kPause;
  for (int tries = 0; tries < 9; ++tries) {
    while (!gate.Checked(1)) {
    }
    const int64_t before = gate.Read().exact_answers;
    while (gate.Exact()) {
    }
    pause = std::min(2 * pause, LayerGate::kPause << LayerGate::kMostTries);
    EXPECT_EQ(gate.Read().exact_answers - before, pause);
  }
  EXPECT_EQ(gate.Widened(100), 1600);
}

TEST(LayerGateTest, ThreadsShareIt) {
  LayerGate gate(.05);
  std::atomic<int64_t> due{0}, exact{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int a = 0; a < 4096; ++a) {
        if (gate.Exact()) {
          ++exact;
        } else if (gate.Due(8000)) {
          ++due;
          gate.Checked(.01);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(due, gate.checks_due());
  EXPECT_GE(due, 4 + 4 * 4096 / 256 - 1);
  EXPECT_EQ(exact, 0);
}

}  // namespace
}  // namespace seine
