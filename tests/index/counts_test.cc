// Counts of indexes: threads that add at once, buckets, and what calls add.
#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "index/counts/counts.h"
#include "index/index.h"
#include "kernels/backend.h"
#include "profile/scorer_list.h"

namespace seine {
namespace {

TEST(ThreadLocalCounters, ThreadsThatAddAtOnceLoseNothing) {
  constexpr int kThreads = ThreadLocalCounters::kExclusive + 16, kRounds = 3, kAdds = 5000;
  ThreadLocalCounters cells(3);
  for (int round = 0; round < kRounds; ++round) {  // the places of threads that ended are taken again
    std::barrier all(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        cells.Add(0, 1);
        all.arrive_and_wait();  // more threads live than there are places
        for (int i = 1; i < kAdds; ++i) cells.Add(0, 1);
        cells.Add(2, 10);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(cells.Read(0), int64_t{kThreads} * kAdds * (round + 1));
    EXPECT_EQ(cells.Read(1), 0);
    EXPECT_EQ(cells.Read(2), int64_t{kThreads} * 10 * (round + 1));
  }
}

TEST(Histogram, EveryTimeIsInItsBucket) {
  std::mt19937_64 random(1);
  std::vector<int64_t> times = {-5,
                                0,
                                1,
                                999,
                                1000,
                                1001,
                                1250,
                                1251,
                                9'999'999'999,
                                10'000'000'000,
                                10'000'000'001,
                                std::numeric_limits<int64_t>::max()};
  for (const int64_t bound : kBucketBounds) times.insert(times.end(), {bound - 1, bound, bound + 1});
  for (int i = 0; i < 10000; ++i) times.push_back(static_cast<int64_t>(random() >> (1 + random() % 60)));
  for (const int64_t ns : times) {
    const int b = BucketOf(ns);
    ASSERT_GE(b, 0);
    ASSERT_LE(b, kBounds);
    EXPECT_TRUE(b == 0 || ns > kBucketBounds[b - 1]) << ns;
    EXPECT_TRUE(b == kBounds || ns <= kBucketBounds[b]) << ns;
  }
}

TEST(Histogram, QuantilesAreWithinABucket) {
  ThreadLocalCounters cells(Histogram::kCells);
  const Histogram histogram(&cells, 0);
  EXPECT_EQ(Quantile(histogram.Read(), .5), 0);
  for (int i = 1; i <= 1000; ++i) histogram.Add(i * int64_t{1'000'000});  // 1 ms to 1 s
  const HistogramReading reading = histogram.Read();
  EXPECT_EQ(reading.count(), 1000);
  EXPECT_EQ(reading.sum_ns, 500'500'000'000);
  for (const double share : {.01, .5, .9, .99}) EXPECT_NEAR(Quantile(reading, share) / share, 1, .13) << share;
  histogram.Add(100'000'000'000);  // 100 s
  EXPECT_EQ(Quantile(histogram.Read(), 1), 10) << "no more is known of the last bucket";
}

class CountsTest : public ::testing::Test {
 protected:
  static constexpr int kHeads = 2, kDim = 64, kTokens = 600;

  void SetUp() override {
    config_.name = "counted";
    config_.geometry.num_layers = 2;
    config_.geometry.num_q_heads = config_.geometry.num_kv_heads = kHeads;
    config_.geometry.head_dim = kDim;
    config_.geometry.dtype = DType::kFloat32;
    config_.kv_store = KvStore::kKeysValues;
    config_.search.candidate_fraction = .05;  // the codes are searched, however short the zone
    config_.zones = {.sink = 16, .local = 64, .update_buffer = 64, .dense_threshold = 128};
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    rows_.resize(int64_t{kTokens} * kHeads * kDim);
    for (float& x : rows_) x = normal(random);
  }
  void Make(std::shared_ptr<Counts> counts) {
    auto made = Index::Create(config_, backend_.get(), nullptr, std::move(counts));
    ASSERT_TRUE(made.ok()) << made.status();
    index_ = *std::move(made);
    sequence_ = index_->CreateSequence("s").value();
  }
  void Append(int layer, int64_t position, int64_t tokens) {
    const int64_t row = int64_t{kHeads} * kDim;
    const TensorView view{rows_.data() + position * row, tokens, static_cast<size_t>(tokens * row) * sizeof(float)};
    const auto length = index_->Append(sequence_, layer, position, view, view);
    ASSERT_TRUE(length.ok()) << length.status();
  }
  int64_t Calls(Stage stage) const { return counts_->stage(stage).count(); }

  const std::unique_ptr<Backend> backend_ = MakeCpuBackend(1);
  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  IndexConfig config_;
  std::vector<float> rows_;
  std::unique_ptr<Index> index_;
  SequenceHandle sequence_;
};

TEST_F(CountsTest, NothingWithoutCounts) {
  Make(nullptr);
  Append(0, 0, kTokens);
  EXPECT_EQ(index_->counts(), nullptr);
  EXPECT_EQ(index_->num_tokens(), kTokens);
  EXPECT_TRUE(index_->Retrieve({{sequence_, 0, rows_.data()}}, config_.search).ok());
  EXPECT_TRUE(index_->DeleteSequence(sequence_).ok());
}

TEST_F(CountsTest, AppendsCountWhatIsNew) {
  Make(counts_);
  Append(0, 0, 100);
  Append(0, 50, 100);  // the first half is there
  Append(0, 0, 150);
  Append(1, 0, 40);
  EXPECT_EQ(index_->counts()->totals().appended, 190);
  EXPECT_EQ(index_->num_tokens(), 150);
  const TensorView gap{rows_.data(), 1, size_t{kHeads} * kDim * sizeof(float)};
  EXPECT_FALSE(index_->Append(sequence_, 0, 400, gap, gap).ok());
  EXPECT_EQ(index_->counts()->totals().appended, 190);
}

TEST_F(CountsTest, SearchesCountTheirStagesOnceACall) {
  Make(counts_);
  Append(0, 0, kTokens);
  Append(1, 0, kTokens);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(index_->Retrieve({{sequence_, 0, rows_.data()}, {sequence_, 1, rows_.data()}}, config_.search).ok());
  }
  for (const Stage stage : {Stage::kPrepare, Stage::kScan, Stage::kSelect, Stage::kRerank}) {
    EXPECT_EQ(Calls(stage), 3) << NameOf(stage);
    EXPECT_GT(counts_->stage(stage).sum_ns, 0) << NameOf(stage);
  }
  EXPECT_EQ(Calls(Stage::kAttend), 0);
  EXPECT_GT(index_->counts()->totals().candidates, 0);
  const auto answers = index_->Attend({{sequence_, 0, rows_.data()}}, config_.search, AttentionParams());
  ASSERT_TRUE(answers.ok());
  EXPECT_EQ(Calls(Stage::kAttend), 1);
  EXPECT_EQ(Calls(Stage::kScan), 4);
  EXPECT_EQ(index_->counts()->totals().attended, (*answers)[0].attended_tokens);
}

TEST_F(CountsTest, EvictionsCountByScorer) {
  config_.eviction.emplace();
  config_.eviction->scorer.name = "knorm";
  config_.eviction->budget.tokens = 256;
  Make(counts_);
  Append(0, 0, kTokens);
  const int64_t by_itself = index_->stats().evicted_tokens;
  EXPECT_GT(by_itself, 0);
  EvictParams params;
  params.scorer.name = "keydiff";
  params.budget.tokens = 128;
  params.dry_run = true;
  ASSERT_TRUE(index_->Evict(sequence_, 0, params, {}).ok());
  const int64_t scored = Calls(Stage::kScore);
  params.dry_run = false;
  const auto evicted = index_->Evict(sequence_, 0, params, {});
  ASSERT_TRUE(evicted.ok()) << evicted.status();
  EXPECT_EQ(Calls(Stage::kScore), scored + 1);
  EXPECT_EQ(counts_->evictions(), index_->stats().evictions);
  const auto& scorers = AllScorers();
  for (size_t i = 0; i < scorers.size(); ++i) {
    const std::string name = scorers[i].name;
    const int64_t wanted = name == "knorm" ? by_itself : name == "keydiff" ? evicted->tokens_evicted : 0;
    EXPECT_EQ(counts_->evicted_tokens(static_cast<int>(i)), wanted) << name;
  }
}

TEST_F(CountsTest, SequencesTellOfTheirLife) {
  Make(counts_);
  Append(0, 0, kTokens);
  Append(1, 0, kTokens);
  const auto ask = [&](int layer) {
    ASSERT_TRUE(index_->Retrieve({{sequence_, layer, rows_.data()}}, config_.search).ok());
  };
  ask(1), ask(0), ask(1), ask(0), ask(1);
  EXPECT_EQ(counts_->gaps().count(), 2) << "of the layer that was asked first";
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_EQ(counts_->lifetimes().count(), 0);
  ASSERT_TRUE(index_->DeleteSequence(sequence_).ok());
  EXPECT_FALSE(index_->DeleteSequence(sequence_).ok());
  EXPECT_EQ(counts_->lifetimes().count(), 1);
  EXPECT_EQ(counts_->idle().count(), 1);
  EXPECT_GE(counts_->idle().sum_ns, 40'000'000);
  EXPECT_GE(counts_->lifetimes().sum_ns, counts_->idle().sum_ns);
}

TEST_F(CountsTest, LowRankMemoryHasATierOfItsOwn) {
  config_.subspace.emplace();
  config_.subspace->key_rank = config_.subspace->value_rank = 16;
  Make(counts_);
  Append(0, 0, kTokens);
  const IndexStats stats = index_->stats();
  EXPECT_GT(stats.subspace_bytes, 0);
  EXPECT_GT(stats.store_bytes, stats.subspace_bytes);
  EXPECT_GT(stats.other_bytes, 0);
}

}  // namespace
}  // namespace seine
