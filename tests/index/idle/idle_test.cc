// The idle tier: families go to disk by time and for want of memory, and come back as they were with the next call.
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <thread>

#include "index/idle/idle_tier.h"
#include "tests/index/snapshot/states.h"
#include "tests/temp_folder.h"

namespace seine {
namespace {

using testing::AnswersOf;
using testing::Extend;
using testing::SmallConfig;
using testing::StateOf;

// Fails every write while `error` is not 0.
class FullDisk : public FileOps {
 public:
  std::atomic<int> error{0};
  int64_t Write(int fd, const uint8_t* data, int64_t bytes) override {
    return error != 0 ? -error : FileOps::Write(fd, data, bytes);
  }
  int Sync(int fd) override { return error == EIO ? -EIO : FileOps::Sync(fd); }
};

class IdleTest : public ::testing::Test {
 protected:
  // spill_after 1 ns: SpillIdle takes whatever no call works on. The tier's thread looks every 10 ms.
  void Open(int64_t disk_limit = 0, std::chrono::nanoseconds spill_after = {}) {
    IdleOptions options;
    options.folder = folder_.Path("tier");
    options.limit_bytes = disk_limit;
    options.spill_after = spill_after;
    options.pause = {};
    auto tier = IdleTier::Open(options, {}, &disk_);
    ASSERT_TRUE(tier.ok()) << tier.status();
    tier_ = *tier;
    auto index = Index::Create(Config(), backend_.get(), budget_, nullptr, nullptr, tier_);
    ASSERT_TRUE(index.ok()) << index.status();
    index_ = *std::move(index);
  }
  static IndexConfig Config() { return SmallConfig(KvStore::kKeysValues); }
  void Make(const std::string& id, int64_t tokens = 300) {
    ASSERT_TRUE(index_->CreateSequence(id).ok());
    Extend(index_.get(), id, tokens);
  }
  bool OnDisk(const std::string& id) const { return index_->GetSequence({id, 0})->on_disk; }
  int64_t Files() const {
    int64_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.Path("tier/idle"))) {
      count += entry.path().extension() == ".idle" ? 1 : 0;
    }
    return count;
  }
  // Makes sequences until the first lies on disk.
  void Fill() {
    for (int i = 0; i < 100 && tier_->Read().families == 0; ++i) Make("fill-" + std::to_string(i));
  }

  const TempFolder folder_;
  FullDisk disk_;
  const std::unique_ptr<Backend> backend_ = MakeCpuBackend(1);
  std::shared_ptr<MemoryBudget> budget_ = std::make_shared<MemoryBudget>(0);
  std::shared_ptr<IdleTier> tier_;
  std::unique_ptr<Index> index_;
};

TEST_F(IdleTest, AFamilyComesBackAsItWas) {
  Open();
  Make("a");
  ASSERT_TRUE(index_->Fork({"a", 0}, "b", 200).ok());
  Extend(index_.get(), "b", 50);
  const SequenceHandle handle = index_->GetSequence({"a", 0})->handle;
  const std::string a = StateOf(*index_, "a"), b = StateOf(*index_, "b");
  const int64_t held = budget_->used_bytes();
  budget_->SetLimit(held, Account::kHost);
  ASSERT_TRUE(tier_->MakeRoom(*budget_));
  EXPECT_TRUE(OnDisk("a") && OnDisk("b"));
  EXPECT_EQ(index_->GetSequence(handle)->layer_tokens, (std::vector<int64_t>{300, 300}));
  EXPECT_EQ(index_->num_tokens(), 550);
  EXPECT_LT(budget_->used_bytes(), held / 2);
  EXPECT_EQ(Files(), 1);
  EXPECT_EQ(index_->Gather(handle, 0, 0, {}, nullptr, nullptr), absl::OkStatus()) << "the generation is the same";
  EXPECT_FALSE(OnDisk("a") || OnDisk("b"));
  EXPECT_EQ(Files(), 0);
  EXPECT_EQ(budget_->used_bytes(), held) << "what was shared is shared";
  budget_->SetLimit(0, Account::kHost);  // a snapshot copies the last pieces
  EXPECT_TRUE(StateOf(*index_, "a") == a);
  EXPECT_TRUE(StateOf(*index_, "b") == b);
}

TEST_F(IdleTest, MemoryShortSpillsTheLeastRecentlyUsed) {
  budget_->SetLimit(2 << 20, Account::kHost);
  Open();
  Make("first");
  Make("second");
  Extend(index_.get(), "first", 1);
  Fill();
  EXPECT_TRUE(OnDisk("second"));
  EXPECT_FALSE(OnDisk("first"));
}

TEST_F(IdleTest, ADeletedForkDoesNotComeBack) {
  Open();
  Make("a");
  ASSERT_TRUE(index_->Fork({"a", 0}, "b", -1).ok());
  ASSERT_TRUE(tier_->MakeRoom(*budget_));
  ASSERT_TRUE(index_->DeleteSequence({"a", 0}).ok());
  EXPECT_TRUE(OnDisk("b"));
  Extend(index_.get(), "b", 1);
  EXPECT_EQ(index_->ListSequences().size(), 1u);
  ASSERT_TRUE(tier_->MakeRoom(*budget_));
  ASSERT_TRUE(index_->DeleteSequence({"b", 0}).ok());
  EXPECT_EQ(Files(), 0) << "the file goes with its last sequence";
}

TEST_F(IdleTest, AFailingDiskLosesNothing) {
  Open();
  Make("a");
  const std::string before = StateOf(*index_, "a");
  for (const int error : {ENOSPC, EIO}) {
    disk_.error = error;
    EXPECT_FALSE(tier_->MakeRoom(*budget_));
    EXPECT_FALSE(OnDisk("a"));
    EXPECT_EQ(Files(), 0);
    EXPECT_TRUE(StateOf(*index_, "a") == before);
  }
  EXPECT_EQ(tier_->Read().spills_failed, 2);
  disk_.error = 0;
  EXPECT_TRUE(tier_->MakeRoom(*budget_));
}

TEST_F(IdleTest, AFullTierRefusesAsBefore) {
  budget_->SetLimit(1 << 20, Account::kHost);
  Open(/*disk_limit=*/1);
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) status = index_->CreateSequence("s" + std::to_string(i)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_GE(tier_->Read().spills_failed, 1);
  EXPECT_EQ(tier_->Read().families, 0);
}

TEST_F(IdleTest, TwoProcessesDoNotShareAFolder) {
  Open();
  IdleOptions options;
  options.folder = folder_.Path("tier");
  EXPECT_TRUE(absl::IsInvalidArgument(IdleTier::Open(options).status()));
}

TEST_F(IdleTest, StepsGoOnWhileTheTierTakesWhatItCan) {
  Open(0, std::chrono::nanoseconds(1));
  std::map<std::string, testing::Answers> expected;
  for (int s = 0; s < 3; ++s) {
    const std::string id = "s" + std::to_string(s);
    Make(id, 80);
    expected[id] = AnswersOf(*index_, id);
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([this, &expected] {
      for (int i = 0; i < 60; ++i) {
        const std::string id = "s" + std::to_string(i % 3);
        EXPECT_TRUE(AnswersOf(*index_, id) == expected.at(id)) << id;
      }
    });
  }
  for (int i = 0; i < 40; ++i) tier_->SpillIdle();
  for (std::thread& thread : threads) thread.join();
  const IdleReading read = tier_->Read();
  EXPECT_GE(read.restores, 1);
  EXPECT_EQ(read.restores_failed + read.spills_failed, 0);
  EXPECT_GE(read.spills_idle, read.restores);
}

}  // namespace
}  // namespace seine
