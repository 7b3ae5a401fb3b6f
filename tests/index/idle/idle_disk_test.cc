// The idle tier's disk: full, failing, limited, or left behind by a process that was killed.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/index/idle/idle_fixture.h"

namespace seine {
namespace {

using testing::AnswersOf;
using testing::IdleTest;
using testing::StateOf;

TEST_F(IdleTest, AFailingDiskLosesNothing) {
  Open();
  Make("a");
  const std::string before = StateOf(*index_, "a");
  for (const int error : {ENOSPC, EIO}) {
    disk_.error = error;
    EXPECT_FALSE(tier_->SpillOldest(*budget_));
    EXPECT_FALSE(OnDisk("a"));
    EXPECT_EQ(Files(), 0);
    EXPECT_TRUE(StateOf(*index_, "a") == before);
  }
  EXPECT_EQ(tier_->Read().spills_failed, 2);
  disk_.error = 0;
  EXPECT_TRUE(tier_->SpillOldest(*budget_));
}

TEST_F(IdleTest, AFullTierRefusesAsBefore) {
  budget_->SetLimit(1 << 20, Account::kHost);
  Open(/*disk_limit=*/1);
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) status = index_->CreateSequence("s" + std::to_string(i)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_GE(tier_->Read().spills_failed, 1);
  EXPECT_EQ(tier_->Read().families, 0);
  EXPECT_GT(index_->ListSequences().size(), 10u) << "none is lost";
  EXPECT_TRUE(index_->Gather({"s0", 0}, 0, 0, {}, nullptr, nullptr).ok());
}

TEST_F(IdleTest, TheLimitIsThatOfAllFiles) {
  Open();
  Make("a");
  ASSERT_TRUE(tier_->SpillOldest(*budget_));
  const int64_t one = tier_->Read().bytes;
  index_ = nullptr;
  tier_ = nullptr;
  Open(/*disk_limit=*/2 * one + one / 2);
  for (const char* id : {"a", "b", "c"}) Make(id);
  EXPECT_TRUE(tier_->SpillOldest(*budget_) && tier_->SpillOldest(*budget_));
  EXPECT_FALSE(tier_->SpillOldest(*budget_));
  EXPECT_FALSE(OnDisk("c"));
  ASSERT_TRUE(index_->DeleteSequence({"a", 0}).ok());
  EXPECT_TRUE(tier_->SpillOldest(*budget_)) << "there is room again";
  EXPECT_EQ(tier_->Read().bytes, 2 * one);
}

TEST_F(IdleTest, AFileThatIsDamagedIsDataLossUntilItsSequencesAreDeleted) {
  Open();
  Make("a");
  Make("b");
  const std::string b = StateOf(*index_, "b");
  ASSERT_TRUE(tier_->SpillOldest(*budget_) && tier_->SpillOldest(*budget_));
  std::string first;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.Path("tier/idle"))) {
    if (entry.path().extension() == ".idle" && (first.empty() || entry.path() < first)) first = entry.path();
  }
  std::filesystem::resize_file(first, std::filesystem::file_size(first) / 2);
  for (int i = 0; i < 2; ++i) {
    const absl::Status lost = index_->Gather({"a", 0}, 0, 0, {}, nullptr, nullptr);
    EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  }
  EXPECT_TRUE(StateOf(*index_, "b") == b) << "others are unharmed";
  EXPECT_TRUE(index_->DeleteSequence({"a", 0}).ok());
  EXPECT_EQ(Files(), 0);
  Make("a");
}

TEST_F(IdleTest, MemoryThatIsShortForARestoreLeavesTheFamilyOnDisk) {
  Open();
  Make("a", 900);
  const testing::Answers answers = AnswersOf(*index_, "a");
  ASSERT_TRUE(tier_->SpillOldest(*budget_));
  budget_->SetLimit(budget_->used_bytes() + 1000, Account::kHost);
  EXPECT_TRUE(absl::IsResourceExhausted(index_->Gather({"a", 0}, 0, 0, {}, nullptr, nullptr)));
  EXPECT_TRUE(OnDisk("a"));
  budget_->SetLimit(0, Account::kHost);
  EXPECT_TRUE(AnswersOf(*index_, "a") == answers);
}

TEST_F(IdleTest, TwoProcessesDoNotShareAFolder) {
  Open();
  IdleOptions options;
  options.folder = folder_.Path("tier");
  EXPECT_TRUE(absl::IsInvalidArgument(IdleTier::Open(options).status()));
}

// Ends the process at the step that it is told to, as kill -9 does.
class KillingDisk : public FileOps {
 public:
  explicit KillingDisk(int kill_at) : kill_at_(kill_at) {}
  int Create(const std::string& path) override { return Step(), FileOps::Create(path); }
  int64_t Write(int fd, const uint8_t* data, int64_t bytes) override {
    return Step(), FileOps::Write(fd, data, std::min<int64_t>(bytes, 40'000));
  }
  int Sync(int fd) override { return Step(), FileOps::Sync(fd); }
  int Rename(const std::string& from, const std::string& to) override { return Step(), FileOps::Rename(from, to); }
  int SyncFolder(const std::string& folder) override { return Step(), FileOps::SyncFolder(folder); }

 private:
  void Step() {
    if (steps_++ == kill_at_) kill(getpid(), SIGKILL);
  }
  const int kill_at_;
  int steps_ = 0;
};

// Spills a sequence, as a process of its own that dies at that step; false where it has spilled before.
bool DiesAt(int step, const std::string& folder) {
  const pid_t child = fork();
  if (child == 0) {
    KillingDisk disk(step);
    const auto backend = MakeCpuBackend(1);
    const auto budget = std::make_shared<MemoryBudget>(0);
    auto tier = IdleTier::Open({.folder = folder}, {}, &disk);
    if (!tier.ok()) _exit(1);
    auto index =
        Index::Create(testing::SmallConfig(KvStore::kKeysValues), backend.get(), budget, nullptr, nullptr, *tier);
    if (!index.ok() || !(*index)->CreateSequence("a").ok()) _exit(1);
    testing::Extend(index->get(), "a", 1500);
    _exit((*tier)->SpillOldest(*budget) ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << "step " << step;
  return WIFSIGNALED(status);
}

TEST(IdleKillTest, WhatAKilledProcessLeavesIsRemovedByTheNext) {
  const TempFolder folder;
  int killed = 0, left = 0;
  const auto files = [&] {
    const std::filesystem::directory_iterator found(folder.Path("idle"));
    return std::distance(begin(found), end(found));
  };
  while (DiesAt(killed, folder.Path(""))) {
    ++killed;
    left += files() > 1 ? 1 : 0;
    ASSERT_TRUE(IdleTier::Open({.folder = folder.Path("")}).ok()) << "the lock went with the process";
    EXPECT_EQ(files(), 1) << "the lock's alone, after step " << killed;
  }
  EXPECT_GE(killed, 20);
  EXPECT_GE(left, killed - 1);
}

}  // namespace
}  // namespace seine
