// Facts are told of sequences while others hold their layers: at once, and as of the last change.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/index/synthetic_model.h"
#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::MakeIndex;
using testing::Names;
using testing::SmallConfig;
using testing::TestBackend;

// Encodes nothing while its gate is shut, and tells when somebody stands before it.
class GatedBackend : public TestBackend {
 public:
  GatedBackend() : TestBackend(1) {}
  Outcome Encode(const EncodeTask* tasks, int count) override {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      waiting_ = shut_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !shut_; });
    }
    return TestBackend::Encode(tasks, count);
  }
  void Shut(bool shut) {
    const std::lock_guard<std::mutex> lock(mutex_);
    shut_ = shut;
    changed_.notify_all();
  }
  void AwaitCaller() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return waiting_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool shut_ = false, waiting_ = false;  // guarded by mutex_
};

TEST(FactsTest, AreToldWhileAnAppendHoldsTheLayer) {
  GatedBackend backend;
  auto index = MakeIndex(SmallConfig(), &backend);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 400)).ok());
  const int64_t held = index->stats().store_bytes;
  backend.Shut(true);
  std::thread append([&] { EXPECT_TRUE(AppendNames(index.get(), seq, 0, 400, Names(401, 400)).ok()); });
  backend.AwaitCaller();
  auto asked = std::async(std::launch::async, [&] {
    const SequenceInfo info = *index->GetSequence(seq);
    EXPECT_EQ(info.layer_tokens, (std::vector<int64_t>{400, 0}));
    EXPECT_EQ(info.store_bytes, held);
    EXPECT_EQ(index->ListSequences()[0].code_bytes, info.code_bytes);
    EXPECT_EQ(index->stats().num_sequences, 1);
    const HeadInfo head = *index->DescribeHead(seq, 0, 1);
    EXPECT_EQ(head.num_tokens, 400);
    EXPECT_EQ(head.zone_end, 16 + 320);
    EXPECT_EQ(2 * head.store_bytes, info.store_bytes);
  });
  const bool at_once = asked.wait_for(std::chrono::seconds(2)) == std::future_status::ready;
  backend.Shut(false);
  append.join();
  asked.wait();
  EXPECT_TRUE(at_once);
  EXPECT_EQ(index->GetSequence(seq)->layer_tokens[0], 800);
  EXPECT_EQ(index->GetSequence(seq)->store_bytes, index->stats().store_bytes);
}

// After each kind of change what is told is what is held: of one sequence, what all of the index holds.
TEST(FactsTest, AreThoseOfTheLastChange) {
  TestBackend backend(1);
  IndexConfig config = SmallConfig(KvStore::kKeysValues);
  for (const bool low_rank : {false, true}) {
    if (low_rank) {
      config.subspace.emplace();
      config.subspace->key_rank = config.subspace->value_rank = 16;
    }
    auto index = MakeIndex(config, &backend);
    const SequenceHandle seq = *index->CreateSequence("s");
    const auto expect = [&](int64_t tokens, int64_t retained, const char* when) {
      const SequenceInfo info = *index->GetSequence(seq);
      const IndexStats stats = index->stats();
      EXPECT_EQ(info.layer_tokens[0], tokens) << when;
      EXPECT_EQ(info.code_bytes, stats.code_bytes) << when;
      EXPECT_EQ(info.store_bytes, stats.store_bytes) << when;
      const HeadInfo head = *index->DescribeHead(seq, 0, 1);
      EXPECT_EQ(head.num_tokens, tokens) << when;
      EXPECT_EQ(head.num_retained, retained) << when;
      EXPECT_EQ(head.subspace.has_value(), low_rank) << when;
    };
    expect(0, 0, "made");
    ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 700)).ok());
    expect(700, 700, "appended");
    ASSERT_TRUE(AppendNames(index.get(), seq, 0, 700, Names(701, 1)).ok());
    expect(701, 701, "a step");
    ASSERT_TRUE(index->Truncate(seq, 600).ok());
    expect(600, 600, "cut");
    const SequenceHandle fork = *index->Fork(seq, "f", 500);
    EXPECT_EQ(index->GetSequence(fork)->layer_tokens[0], 500);
    EXPECT_EQ(index->DescribeHead(fork, 0, 0)->num_tokens, 500);
    ASSERT_TRUE(index->DeleteSequence(fork).ok());
    expect(600, 600, "forked");
    EvictParams params;
    params.scorer.name = "knorm";
    params.budget.tokens = 300;
    params.budget.ratio = 0;
    ASSERT_TRUE(index->Evict(seq, 0, params, {}).ok());
    expect(600, 300, "evicted");
  }
}

}  // namespace
}  // namespace seine
