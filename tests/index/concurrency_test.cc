// Many threads at once on one index. What they read must be right; under ThreadSanitizer no race may show.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::MakeIndex;
using testing::Names;
using testing::Probe;
using testing::SameAnswers;
using testing::SmallConfig;
using testing::TestBackend;

// Writers extend, fork, truncate and delete sequences that share their pieces; readers retrieve meanwhile.
TEST(ConcurrencyTest, WritersForksAndReaders) {
  constexpr int kThreads = 6, kSteps = 60;
  TestBackend backend(2);
  IndexConfig config = SmallConfig();
  config.search.coarse = Coarse::kCollision;  // counts are shared and copied too
  config.codec.centre = Centre::kNone;
  auto index = MakeIndex(config, &backend);
  const SequenceHandle root = *index->CreateSequence("root");
  for (int layer = 0; layer < 2; ++layer) ASSERT_TRUE(AppendNames(index.get(), root, layer, 0, Names(1, 400)).ok());
  const auto root_answers = Probe(*index, root, 0);
  std::atomic<int> wrong{0}, retrieved{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      const std::string id = "t" + std::to_string(t);
      const std::vector<float> queries = testing::Queries(config.geometry, t);
      for (int step = 0; step < kSteps; ++step) {
        const int64_t cut = 300 + random() % 101;
        const auto fork = index->Fork(root, id, cut);
        if (!fork.ok()) ++wrong;
        const int layer = random() % 2;
        // Every thread writes its own tokens behind the shared ones.
        if (!AppendNames(index.get(), *fork, layer, cut, Names(1000 * (t + 1), 150)).ok()) ++wrong;
        SearchParams params = config.search;
        const std::vector<RetrieveItem> items = {
            {root, 1, queries.data()},
            {*fork, 0, queries.data()},
            {root, 0, queries.data()},
            {*fork, 1, queries.data()},
            {{"t" + std::to_string((t + 1) % kThreads), 0}, layer, queries.data()}};  // another's, which comes and goes
        const auto answers = index->Retrieve(items, params);
        for (int i = 0; i < 4; ++i) wrong += !(*answers)[i].status.ok();
        retrieved += (*answers)[4].status.ok();
        if (!index->Truncate(*fork, cut - 100).ok()) ++wrong;
        index->ListSequences();
        index->stats();
        if (!index->DeleteSequence(*fork).ok()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(SameAnswers(Probe(*index, root, 0), root_answers));
  EXPECT_EQ(index->stats().num_sequences, 1);
  EXPECT_EQ(index->stats().store_bytes, index->GetSequence(root)->store_bytes);
  EXPECT_EQ(index->stats().code_bytes, index->GetSequence(root)->code_bytes);
}

// One writer streams a layer while readers retrieve from it: every answer is that of some length, bit for bit.
TEST(ConcurrencyTest, ReadersSeeWholeAppends) {
  TestBackend backend(1);
  auto index = MakeIndex(SmallConfig(), &backend);
  const SequenceHandle seq = *index->CreateSequence("s"), fresh = *index->CreateSequence("fresh");
  std::atomic<bool> done{false};
  std::atomic<int> looks{0};
  std::vector<std::vector<ItemAnswer>> seen;
  std::thread reader([&] {
    while (!done) {
      auto answers = Probe(*index, seq, 0);
      if (answers[0].num_tokens == answers[1].num_tokens) seen.push_back(std::move(answers));
      ++looks;
    }
  });
  for (int64_t p = 0; p < 600; p += 20) {
    ASSERT_TRUE(AppendNames(index.get(), seq, 0, p, Names(1 + p, 20)).ok());
    for (const int before = looks; looks == before;) std::this_thread::yield();  // the reader has come on
  }
  done = true;
  reader.join();
  ASSERT_FALSE(seen.empty());
  int64_t length = 0;
  for (const auto& answers : seen) {
    const int64_t n = answers[0].num_tokens;
    ASSERT_TRUE(n % 20 == 0 && n >= length);
    ASSERT_TRUE(AppendNames(index.get(), fresh, 0, length, Names(1 + length, n - length)).ok());
    length = n;
    ASSERT_TRUE(SameAnswers(Probe(*index, fresh, 0), answers)) << n;
  }
}

// Searches that come one over the other, so that there is never a moment without one: those that came later wait.
TEST(ConcurrencyTest, AnAppendWaitsForTheSearchesBeforeItAlone) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kAll(3);
  TestBackend backend(1);
  auto index = MakeIndex(SmallConfig(), &backend);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 6000)).ok());
  const std::vector<float> queries = testing::Queries(index->config().geometry, 5);
  SearchParams params = index->config().search;
  params.method = Method::kExact;
  std::atomic<bool> done{false};
  std::atomic<int> searches{0}, wrong{0};
  std::vector<std::thread> readers;
  const Clock::time_point begin = Clock::now();
  for (int t = 0; t < 8; ++t) {
    readers.emplace_back([&] {
      while (!done && Clock::now() < begin + kAll) {
        wrong += !index->Retrieve({{seq, 0, queries.data()}}, params).ok();
        ++searches;
      }
    });
  }
  while (searches < 8) std::this_thread::yield();
  EXPECT_TRUE(AppendNames(index.get(), seq, 0, 6000, Names(7000, 1)).ok());
  EXPECT_LT(Clock::now() - begin, kAll);
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace seine
