// Work beside steps pauses, and work alone does not.
#include "index/bytes/pace.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <new>
#include <thread>

#include "index/stop_status.h"
#include "kernels/stop.h"
#include "tests/index/snapshot/states.h"

namespace seine {
namespace {

using Clock = std::chrono::steady_clock;

// Ends a piece of a millisecond of this thread's time; returns whether it slept. A thread that sleeps leaves the
// processor of its own will.
bool Pauses(Pace* pace) {
  const auto sleeps = [] {
    rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  };
  const auto seconds = [] {
    rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  for (const double begin = seconds(); seconds() < begin + 1e-3;) continue;
  const auto before = sleeps();
  pace->Pause();
  return sleeps() > before;
}

void AwaitNoSteps() { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

TEST(PaceTest, WorkPausesWhereStepsHaveComeLately) {
  AwaitNoSteps();
  Pace pace(kSnapshotPauses);
  EXPECT_FALSE(Pauses(&pace));
  NoteStep();
  EXPECT_TRUE(Pauses(&pace));
  AwaitNoSteps();
  EXPECT_FALSE(Pauses(&pace));
}

TEST(PaceTest, APauseIsSomeTimesThePiece) {
  Pace pace(kSnapshotPauses);
  NoteStep();
  const Clock::time_point begin = Clock::now();
  ASSERT_TRUE(Pauses(&pace));
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(kSnapshotPauses));
}

int Niceness() { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); }

TEST(PaceTest, ThreadsOfItsOwnAreLoweredByStepsAlone) {
  const int usual = Niceness();
  const auto work = [usual] {
    AwaitNoSteps();
    Pace pace(kSnapshotPauses);
    EXPECT_FALSE(Pauses(&pace));
    EXPECT_EQ(Niceness(), usual);
    NoteStep();
    EXPECT_TRUE(Pauses(&pace));
    EXPECT_EQ(Niceness(), 19);
    return absl::OkStatus();
  };
  ASSERT_TRUE(RunOnOwnThread("test", work).ok());
  Pace callers(kSnapshotPauses);
  NoteStep();
  EXPECT_TRUE(Pauses(&callers));
  EXPECT_EQ(Niceness(), usual);
}

TEST(PaceTest, AThreadOfItsOwnStopsAndFailsAsItsCallerWould) {
  const StopToken token;
  token.Stop();
  const StopScope scope(&token);
  EXPECT_EQ(RunOnOwnThread("test", [] { return StopStatus(); }).code(), absl::StatusCode::kCancelled);
  const auto throws = []() -> absl::Status { throw std::bad_alloc(); };
  EXPECT_THROW(RunOnOwnThread("test", throws).IgnoreError(), std::bad_alloc);
}

TEST(PaceTest, AppendsAndQuestionsAreSteps) {
  const auto backend = MakeCpuBackend(1);
  const auto index = testing::MakeIndex(testing::SmallConfig(KvStore::kKeysValues), backend.get());
  ASSERT_TRUE(index->CreateSequence("a").ok());
  Pace pace(kSnapshotPauses);
  testing::Extend(index.get(), "a", 10);
  EXPECT_TRUE(Pauses(&pace));
  AwaitNoSteps();
  const std::vector<float> queries = testing::Queries(index->config().geometry, 5);
  ASSERT_TRUE(index->Attend({{{"a", 0}, 0, queries.data()}}, index->config().search, {}).ok());
  EXPECT_TRUE(Pauses(&pace));
  AwaitNoSteps();
  ASSERT_TRUE(index->Retrieve({{{"a", 0}, 0, queries.data()}}, index->config().search, {}).ok());
  EXPECT_TRUE(Pauses(&pace));
}

}  // namespace
}  // namespace seine
