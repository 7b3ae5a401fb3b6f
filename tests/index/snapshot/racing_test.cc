// Snapshots of sequences that steps, cuts, forks and evictions go on with: each is of one moment of every sequence, and
// nobody waits or fails. Run under ThreadSanitizer too.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/index/snapshot/states.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::MakeIndex;
using testing::Names;
using testing::Queries;
using testing::RestoreFrom;
using testing::SmallConfig;
using testing::SnapshotOf;

// Tokens of sequence "a" are named by their positions, so that a replay tells whether a snapshot holds the right ones.
void ExpectRight(const std::string& snapshot, Backend* backend) {
  auto index = MakeIndex(SmallConfig(KvStore::kKeysValues), backend);
  ASSERT_TRUE(RestoreFrom(snapshot, index.get()).ok()) << RestoreFrom(snapshot, index.get());
  for (const SequenceInfo& info : index->ListSequences()) {
    ASSERT_LE(info.layer_tokens[1], info.layer_tokens[0]);
    ASSERT_LE(info.layer_tokens[0], info.layer_tokens[1] + 1) << "a step's layers were taken apart";
    for (int layer = 0; layer < 2; ++layer) {
      const auto length = AppendNames(index.get(), info.handle, layer, 0, Names(1, info.layer_tokens[layer]));
      ASSERT_TRUE(length.ok()) << length.status();
    }
    testing::AnswersOf(*index, info.handle.id);
  }
}

TEST(SnapshotRaceTest, StepsGoOnWhileSnapshotsAreWritten) {
  constexpr int kSnapshots = 6;
  const auto backend = MakeCpuBackend(2);
  auto index = MakeIndex(SmallConfig(KvStore::kKeysValues), backend.get());
  ASSERT_TRUE(index->CreateSequence("a").ok());
  for (int layer = 0; layer < 2; ++layer)
    ASSERT_TRUE(AppendNames(index.get(), {"a", 0}, layer, 0, Names(1, 2300)).ok());
  std::atomic<bool> done{false};
  std::atomic<int64_t> steps{0};
  std::thread decoder([&] {
    const std::vector<float> queries = Queries(index->config().geometry, 5);
    for (int64_t at = 2300; !done; ++at, ++steps) {
      for (int layer = 0; layer < 2; ++layer) {
        EXPECT_TRUE(AppendNames(index.get(), {"a", 0}, layer, at, Names(at + 1, 1)).ok());
        const auto answers = index->Attend({{{"a", 0}, layer, queries.data()}}, index->config().search, {});
        EXPECT_TRUE(answers.ok() && (*answers)[0].status.ok());
      }
    }
  });
  std::thread forker([&] {
    for (int i = 0; !done; ++i) {
      const auto fork = index->Fork({"a", 0}, "", 1000 + i % 1000);
      EXPECT_TRUE(fork.ok()) << fork.status();
      EXPECT_TRUE(index->DeleteSequence(*fork).ok());
    }
  });
  for (int i = 0; i < kSnapshots || steps < 3; ++i) ExpectRight(SnapshotOf(*index), backend.get());
  done = true;
  decoder.join();
  forker.join();
  EXPECT_EQ(index->ListSequences().size(), 1u);
}

TEST(SnapshotRaceTest, EvictionsAndSumsGoOn) {
  const auto backend = MakeCpuBackend(2);
  testing::StateCase state;
  for (const testing::StateCase& c : testing::AllStates()) {
    if (std::string(c.name) == "evicts_by_sums") state = c;
  }
  state.live = nullptr;
  auto index = testing::MakeState(state, backend.get());
  std::atomic<bool> done{false};
  std::thread decoder([&] {
    while (!done) testing::Extend(index.get(), "a", 1);
  });
  std::thread asker([&] {
    const std::vector<float> queries = Queries(index->config().geometry, 5);
    while (!done) EXPECT_TRUE(index->Attend({{{"a", 0}, 0, queries.data()}}, index->config().search, {}).ok());
  });
  for (int i = 0; i < 5; ++i) {
    auto after = MakeIndex(state.config(), backend.get());
    ASSERT_TRUE(RestoreFrom(SnapshotOf(*index), after.get()).ok());
    testing::Extend(after.get(), "a", 50);
  }
  done = true;
  decoder.join();
  asker.join();
}

}  // namespace
}  // namespace seine
