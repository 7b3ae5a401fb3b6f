// A restore's pieces run where nobody else wants the processor, once steps come.
#include "index/bytes/piece_runner.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "index/bytes/pace.h"
#include "tests/index/snapshot/states.h"

namespace seine {
namespace {

// How the system schedules a thread that asks.
struct Standing {
  pid_t thread = gettid();
  int policy = sched_getscheduler(0);
  int nice = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
};

void WaitOutSteps() { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

Standing StandingOf(PieceRunner* runner, std::chrono::milliseconds takes = {}) {
  Standing standing;
  const auto piece = [&] {
    standing = Standing();
    std::this_thread::sleep_for(takes);
    return false;
  };
  EXPECT_TRUE(runner->Run(piece).ok());
  return standing;
}

TEST(PieceRunnerTest, PiecesRunOnTheCallersThreadUntilStepsCome) {
  const Standing caller;
  WaitOutSteps();
  PieceRunner runner(Priority::kGaps);
  EXPECT_EQ(StandingOf(&runner).thread, caller.thread);
  NoteStep();
  const Standing beside = StandingOf(&runner);
  EXPECT_NE(beside.thread, caller.thread);
  EXPECT_EQ(beside.policy, SCHED_IDLE);
  EXPECT_EQ(StandingOf(&runner).thread, beside.thread);
  WaitOutSteps();
  EXPECT_EQ(StandingOf(&runner).thread, caller.thread);
  EXPECT_EQ(Standing().policy, caller.policy);
  EXPECT_EQ(Standing().nice, caller.nice);
}

TEST(PieceRunnerTest, WhatStarvesInTheGapsGoesOnAtTheLowestPriority) {
  PieceRunner runner(Priority::kGaps);
  NoteStep();
  EXPECT_EQ(StandingOf(&runner, std::chrono::milliseconds(1100)).policy, SCHED_IDLE);
  NoteStep();
  const Standing later = StandingOf(&runner);
  EXPECT_EQ(later.policy, SCHED_OTHER);
  EXPECT_EQ(later.nice, 19);
}

int64_t OwnTime() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

// Computes beside steps for so long of a processor's time.
void Compute(std::chrono::nanoseconds takes) {
  const int64_t end = OwnTime() + takes.count();
  while (OwnTime() < end) NoteStep();
}

TEST(PieceRunnerTest, PiecesThatTakeLongAreMadeShortOnce) {
  const pid_t caller = gettid();
  int made_short = 0, ran = 0, long_ones = 0;  // those that ran beside steps
  PieceRunner runner(Priority::kGaps, [&] { ++made_short; });
  const auto piece = [&](std::chrono::milliseconds takes) {
    EXPECT_EQ(made_short, long_ones < 4 ? 0 : 1);
    Compute(takes);
    long_ones += takes.count() > 0 && gettid() != caller ? 1 : 0;
    NoteStep();
    return ++ran < 40;
  };
  NoteStep();
  EXPECT_TRUE(runner.Run([&] { return piece(std::chrono::milliseconds(0)); }).ok());
  ran = 0;
  EXPECT_TRUE(runner.Run([&] { return piece(std::chrono::milliseconds(ran % 2 == 0 ? 3 : 0)); }).ok());
  EXPECT_GE(long_ones, 4);
  EXPECT_EQ(made_short, 1);
}

TEST(PieceRunnerTest, PiecesFailAndThrowAsIfTheyRanHere) {
  PieceRunner runner(Priority::kGaps);
  for (const bool steps : {false, true}) {
    if (steps) NoteStep();
    int ran = 0;
    const auto torn = [&]() -> absl::StatusOr<bool> {
      if (++ran == 3) return absl::DataLossError("torn");
      return true;
    };
    EXPECT_EQ(runner.Run(torn).message(), "torn");
    EXPECT_EQ(ran, 3);
    EXPECT_THROW(runner.Run([]() -> absl::StatusOr<bool> { throw std::bad_alloc(); }).IgnoreError(), std::bad_alloc);
    EXPECT_TRUE(runner.Run([&] { return ++ran < 6; }).ok());
    EXPECT_EQ(ran, 6);
  }
}

// Steps come while a snapshot is read from it.
class BesideStepsSource : public StringSource {
 public:
  using StringSource::StringSource;
  absl::Status Read(uint8_t* data, int64_t bytes) override {
    NoteStep();
    standings_.emplace_back();
    return StringSource::Read(data, bytes);
  }
  int InGaps() const {
    int count = 0;
    for (const Standing& standing : standings_) count += standing.policy == SCHED_IDLE ? 1 : 0;
    return count;
  }

 private:
  std::vector<Standing> standings_;
};

TEST(PieceRunnerTest, ARestoreBesideStepsIsReadInTheirGaps) {
  const auto backend = MakeCpuBackend(1);
  const auto index = testing::MakeIndex(testing::SmallConfig(KvStore::kKeysValues), backend.get());
  ASSERT_TRUE(index->CreateSequence("a").ok());
  testing::Extend(index.get(), "a", 600);
  const std::string snapshot = testing::SnapshotOf(*index);
  BesideStepsSource source(snapshot);
  ASSERT_TRUE(index->Restore(&source, {.id = "b"}).ok());
  EXPECT_GT(source.InGaps(), 8);
  EXPECT_EQ(testing::StateOf(*index, "b").size(), testing::StateOf(*index, "a").size());
  BesideStepsSource awaited(snapshot);
  ASSERT_TRUE(index->Restore(&awaited, {.id = "c", .step_waits = true}).ok());
  EXPECT_EQ(awaited.InGaps(), 0);
}

}  // namespace
}  // namespace seine
