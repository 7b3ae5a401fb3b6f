// The store of a layer's last queries: order, bounds, sharing, memory.
#include "index/eviction/kept_queries.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace seine {
namespace {

class KeptQueriesTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRow = 6, kRowBytes = kRow * sizeof(float);

  // Rows of `value`, value + 1, ... at positions first, first + 1, ...
  static absl::Status Add(KeptQueries* kept, int64_t first, int64_t count, float value) {
    std::vector<float> rows(count * kRow);
    for (int64_t i = 0; i < count * kRow; ++i) rows[i] = value + static_cast<float>(i / kRow);
    auto staged = kept->Stage(first, count, rows.data());
    if (!staged.ok()) return staged.status();
    kept->Commit(*std::move(staged));
    return absl::OkStatus();
  }
  static void Expect(const KeptQueries& kept, const std::vector<int64_t>& positions, const std::vector<float>& values) {
    const SeenQueries seen = kept.Seen(1 << 20);
    EXPECT_EQ(seen.positions, positions);
    std::vector<float> rows;
    for (const float value : values) rows.insert(rows.end(), kRow, value);
    EXPECT_EQ(seen.rows, rows);
    EXPECT_EQ(kept.newest(), positions.empty() ? -1 : positions.back());
  }

  std::unique_ptr<Backend> backend_ = MakeCpuBackend(1);
  MemoryLedger ledger_{backend_.get(), /*limit_bytes=*/10 * kRowBytes, 0, nullptr};
};

TEST_F(KeptQueriesTest, HoldsTheLastPositionsAscending) {
  KeptQueries kept(&ledger_, kRow, 4);
  Expect(kept, {}, {});
  ASSERT_TRUE(Add(&kept, 3, 1, 30).ok());
  ASSERT_TRUE(Add(&kept, 7, 2, 70).ok());
  Expect(kept, {3, 7, 8}, {30, 70, 71});
  ASSERT_TRUE(Add(&kept, 5, 1, 50).ok());  // late
  Expect(kept, {3, 5, 7, 8}, {30, 50, 70, 71});
  ASSERT_TRUE(Add(&kept, 7, 1, 99).ok());  // asked again
  Expect(kept, {3, 5, 7, 8}, {30, 50, 99, 71});
  ASSERT_TRUE(Add(&kept, 1, 1, 10).ok());  // older than all that are held
  Expect(kept, {3, 5, 7, 8}, {30, 50, 99, 71});
  ASSERT_TRUE(Add(&kept, 8, 3, 80).ok());
  Expect(kept, {7, 8, 9, 10}, {99, 80, 81, 82});
  ASSERT_TRUE(Add(&kept, 20, 9, 200).ok());  // more than it holds
  Expect(kept, {25, 26, 27, 28}, {205, 206, 207, 208});
  EXPECT_EQ(ledger_.held(MemoryKind::kQuery), 4 * kRowBytes);
}

TEST_F(KeptQueriesTest, ForksShareUntilTheyDiffer) {
  auto first = std::make_unique<KeptQueries>(&ledger_, kRow, 3);
  ASSERT_TRUE(Add(first.get(), 0, 3, 0).ok());
  KeptQueries fork(&ledger_, kRow, 3);
  fork.ShareFrom(*first);
  EXPECT_EQ(ledger_.held(MemoryKind::kQuery), 3 * kRowBytes);
  fork.DropFrom(2);
  Expect(fork, {0, 1}, {0, 1});
  ASSERT_TRUE(Add(&fork, 2, 1, 50).ok());
  ASSERT_TRUE(Add(first.get(), 3, 1, 3).ok());
  Expect(*first, {1, 2, 3}, {1, 2, 3});
  Expect(fork, {0, 1, 2}, {0, 1, 50});
  EXPECT_EQ(ledger_.held(MemoryKind::kQuery), 5 * kRowBytes);
  first.reset();
  EXPECT_EQ(ledger_.held(MemoryKind::kQuery), 3 * kRowBytes);
  fork.DropFrom(0);
  EXPECT_EQ(ledger_.held(MemoryKind::kQuery), 0);
}

TEST_F(KeptQueriesTest, WithoutMemoryNothingChanges) {
  KeptQueries kept(&ledger_, kRow, 20);
  ASSERT_TRUE(Add(&kept, 0, 8, 0).ok());
  EXPECT_EQ(Add(&kept, 8, 3, 8).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(kept.newest(), 7);
  EXPECT_EQ(ledger_.held(MemoryKind::kQuery), 8 * kRowBytes);
  EXPECT_TRUE(Add(&kept, 8, 2, 8).ok());
  const KeptQueries none(&ledger_, kRow, 0);
  EXPECT_FALSE(none.on());
}

}  // namespace
}  // namespace seine
