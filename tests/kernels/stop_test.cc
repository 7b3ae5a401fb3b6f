// Tokens that end a call: what they say, how the thread pool hands them on, and who looks at them within a task.
#include "kernels/stop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/codecs/code.h"
#include "kernels/codecs/kinds/rsq.h"
#include "kernels/ops/attend/attention.h"
#include "kernels/ops/low_rank/low_rank_cpu.h"
#include "kernels/ops/score_keys/score_keys_cpu.h"
#include "kernels/ops/search/search_cpu.h"
#include "kernels/thread_pool.h"

namespace seine {
namespace {

TEST(Stop, TheFirstReasonStays) {
  const StopToken token;
  EXPECT_FALSE(token.stop_requested());
  token.Stop(StopReason::kShutdown);
  token.Stop();
  EXPECT_TRUE(token.stop_requested());
  EXPECT_EQ(token.reason(), StopReason::kShutdown);
}

TEST(Stop, ADeadlineStopsByItself) {
  EXPECT_FALSE(StopToken(StopToken::Clock::now() + std::chrono::hours(1)).stop_requested());
  const StopToken past(StopToken::Clock::now());
  EXPECT_EQ(past.reason(), StopReason::kDeadline);
  past.Stop();
  EXPECT_EQ(past.reason(), StopReason::kDeadline);
}

TEST(Stop, ScopesNest) {
  const StopToken stopped, other;
  stopped.Stop();
  EXPECT_FALSE(StopRequested());
  {
    const StopScope outer(&stopped);
    EXPECT_TRUE(StopRequested());
    {
      const StopScope inner(&other);
      EXPECT_FALSE(StopRequested());
      const StopScope none(nullptr);
      EXPECT_FALSE(StopRequested());
    }
    EXPECT_TRUE(StopRequested());
  }
  EXPECT_FALSE(StopRequested());
}

TEST(Stop, IsCurrentWhereverALoopRuns) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const StopToken token;
    std::atomic<int> seen{0}, foreign{0};
    {
      const StopScope scope(&token);
      pool.Run(100, [&](int) { (current_stop_token == &token ? seen : foreign)++; });
    }
    pool.Run(100, [&](int) { foreign += current_stop_token != nullptr; });  // none is left behind
    EXPECT_EQ(seen, 100);
    EXPECT_EQ(foreign, 0);
  }
}

TEST(Stop, LeavesOutWhatIsNotBegun) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const StopToken token;
    const StopScope scope(&token);
    std::atomic<int> ran{0};
    pool.Run(1000, [&](int) {
      if (++ran == 5) token.Stop();
    });
    EXPECT_GE(ran, 5);
    EXPECT_LE(ran, 5 + threads);
    pool.Run(1000, [&](int) { ++ran; });
    EXPECT_LE(ran, 5 + threads);
    const StopScope none(nullptr);
    ran = 0;
    pool.Run(100, [&](int) { ++ran; });
    EXPECT_EQ(ran, 100);
  }
}

double MsOf(const std::function<void()>& work) {
  const auto begin = StopToken::Clock::now();
  work();
  return std::chrono::duration<double, std::milli>(StopToken::Clock::now() - begin).count();
}

// One task of long work ends soon after its call's deadline.
void ExpectEndsEarly(const char* what, const std::function<void()>& work) {
  work();  // what the thread keeps for later calls is made
  const double whole = MsOf(work);
  double cut = 1e9;
  for (int i = 0; i < 3; ++i) {  // a busy machine may take its time once
    const StopToken token(StopToken::Clock::now() + std::chrono::microseconds(static_cast<int64_t>(whole * 1000 / 5)));
    const StopScope scope(&token);
    cut = std::min(cut, MsOf(work));
    EXPECT_TRUE(token.stop_requested()) << what;
  }
  EXPECT_GT(whole, 2) << what;
  EXPECT_LT(cut, whole / 2) << what;
}

// Keys without end: the same chunk again and again.
class StopLongTask : public ::testing::Test {
 protected:
  static constexpr int kDim = 64, kChunk = 2048, kGroup = 8;
  static constexpr int64_t kKeys = int64_t{1} << 20, kMoreKeys = 4 * kKeys;

  StopLongTask() : rows_(static_cast<size_t>(kChunk) * kDim), queries_(kGroup * kDim), chunks_(kMoreKeys / kChunk) {
    for (size_t i = 0; i < rows_.size(); ++i) rows_[i] = static_cast<float>(i * 7919 % 101) / 50 - 1;
    for (size_t i = 0; i < queries_.size(); ++i) queries_[i] = static_cast<float>(i * 31 % 17) / 8 - 1;
    std::fill(chunks_.begin(), chunks_.end(), reinterpret_cast<const uint8_t*>(rows_.data()));
  }
  ChunkedRows Keys() const { return {chunks_.data(), kChunk, kDim, DType::kFloat32}; }

  std::vector<float> rows_, queries_;
  std::vector<const uint8_t*> chunks_;
};

TEST_F(StopLongTask, ExactSearch) {
  const auto codec = MakeRsqCodec({.head_dim = kDim});
  SearchTask task;
  task.codec = codec.get();
  task.keys = Keys();
  task.num_keys = kKeys;
  task.queries = queries_.data();
  task.group = kGroup;
  SearchParams params;
  params.method = Method::kExact;
  ExpectEndsEarly("exact search", [&] {
    SearchOutput out;
    cpu::SearchOne(task, params, &out);
  });
}

TEST_F(StopLongTask, DenseAttention) {
  cpu::AttentionTask task;
  task.keys = task.values = Keys();
  task.queries = queries_.data();
  task.group = kGroup;
  task.scale = 0.1f;
  task.dense = {{0, kKeys}};
  std::vector<float> output(kGroup * kDim), log_sum_exp(kGroup);
  ExpectEndsEarly("attention", [&] { cpu::Attend(task, output.data(), log_sum_exp.data()); });
}

TEST_F(StopLongTask, SumsAndScoresOfKeys) {
  std::vector<double> sums(kDim);
  SumTask sum{Keys(), kMoreKeys, true};
  sum.sums = sums.data();
  ExpectEndsEarly("sums", [&] { cpu::SumKeys(sum); });
  std::vector<float> out(kMoreKeys);
  const ScoreTask score{Keys(), kMoreKeys, KeyScore::kNegCosine, queries_.data(), {}, out.data()};
  ExpectEndsEarly("scores", [&] { cpu::ScoreKeys(score); });
}

TEST_F(StopLongTask, Rebuilding) {
  constexpr int64_t kRows = 1 << 17;
  constexpr int kRank = 64;
  const std::vector<uint16_t> basis(kRank * kDim, 0x3000);
  LowRankRun run;
  run.codes = reinterpret_cast<const uint8_t*>(rows_.data());
  run.basis = basis.data();
  RebuildTask task;
  task.rows = {&run, 1, kDim, kRank, DType::kFloat32, {}};
  const std::vector<int32_t> places(kRows, 5);
  std::vector<float> out(kRows * kDim);
  task.places = task.positions = places.data();
  task.count = kRows;
  task.out = out.data();
  ExpectEndsEarly("rebuilding", [&] { cpu::Rebuild(task); });
}

}  // namespace
}  // namespace seine
