// An index with an idle tier in a folder of its own, whose disk can fail or stand still.
#ifndef SEINE_TESTS_INDEX_IDLE_IDLE_FIXTURE_H_
#define SEINE_TESTS_INDEX_IDLE_IDLE_FIXTURE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "index/idle/idle_tier.h"
#include "tests/index/snapshot/states.h"
#include "tests/temp_folder.h"

namespace seine::testing {

// Fails every write while `error` is not 0, and lets none end while `stands` is set.
class FailingDisk : public FileOps {
 public:
  std::atomic<int> error{0};
  std::atomic<bool> stands{false}, waits{false};
  int64_t Write(int fd, const uint8_t* data, int64_t bytes) override {
    for (; stands; waits = true) std::this_thread::sleep_for(std::chrono::milliseconds(1));
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
    auto tier = IdleTier::Open(options, hooks_, &disk_);
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
  static void WaitUntil(const std::function<bool()>& is_so) {
    while (!is_so()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  static void WaitFor(const std::atomic<bool>& flag) {
    WaitUntil([&] { return flag.load(); });
  }
  // Makes sequences until the first lies on disk.
  void Fill() {
    for (int i = 0; i < 100 && tier_->Read().families == 0; ++i) Make("fill-" + std::to_string(i));
  }

  const TempFolder folder_;
  FailingDisk disk_;
  IdleHooks hooks_;
  const std::unique_ptr<Backend> backend_ = MakeCpuBackend(1);
  std::shared_ptr<MemoryBudget> budget_ = std::make_shared<MemoryBudget>(0);
  std::shared_ptr<IdleTier> tier_;
  std::unique_ptr<Index> index_;
};

}  // namespace seine::testing

#endif  // SEINE_TESTS_INDEX_IDLE_IDLE_FIXTURE_H_
