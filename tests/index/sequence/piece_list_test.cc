// Growth, copy-on-write and failure of piece lists, and the counting of their memory.
#include "index/storage/piece_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "index/storage/row_store.h"
#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::TestBackend;

class PieceListTest : public ::testing::Test {
 protected:
  bool Reserve(RowStore* store, int64_t begin, int64_t end) {
    Staging staging;
    store->Plan(begin, end, &staging);
    if (!staging.Allocate(&ledger_).ok()) return false;
    staging.Install();
    store->Refresh();
    return true;
  }
  // Rows [begin, end) of two heads: byte = position + mark, head 1 negated.
  void Write(RowStore* store, int64_t begin, int64_t end, int mark) {
    ASSERT_TRUE(Reserve(store, begin, end));
    const std::string rows = Row(begin, end, mark);
    store->Write(begin, reinterpret_cast<const uint8_t*>(rows.data()), end - begin, rows.size() / (end - begin));
  }
  static std::string Row(int64_t begin, int64_t end, int mark) {
    std::string rows;
    for (int64_t p = begin; p < end; ++p) {
      const char c = static_cast<char>(p + mark);
      rows += std::string(4, c) + std::string(4, static_cast<char>(~c));
    }
    return rows;
  }
  static bool Holds(const RowStore& store, int64_t begin, int64_t end, int mark) {
    const std::string rows = Row(begin, end, mark);
    return store.FirstDifference(begin, reinterpret_cast<const uint8_t*>(rows.data()), end - begin,
                                 rows.size() / (end - begin)) < 0;
  }

  TestBackend backend_;
  MemoryLedger ledger_{&backend_, 0, 0, nullptr};
  const RowFormat format_{2, 4};
  const PieceList::Shape shape_{&format_, MemoryKind::kStore, 16, 4, 1, nullptr};
};

TEST_F(PieceListTest, GrowsInStepsAndKeepsRows) {
  RowStore store(&format_, &shape_);
  for (int n = 1; n <= 40; ++n) {
    Write(&store, n - 1, n, 0);
    ASSERT_TRUE(Holds(store, 0, n, 0)) << n;
    const int last = n % 16 == 0 ? 16 : n % 16;
    const int capacity = (last + 3) / 4 * 4;  // an eighth of a piece is less than the smallest, which is the step then
    EXPECT_EQ(store.bytes(), ((n - 1) / 16 * 16 + capacity) * 8) << n;
    EXPECT_EQ(ledger_.held(MemoryKind::kStore), store.bytes());
  }
}

TEST_F(PieceListTest, SharedPiecesAreCopiedByTheWriterOnly) {
  RowStore a(&format_, &shape_);
  Write(&a, 0, 20, 0);
  RowStore b = a;
  EXPECT_EQ(ledger_.held(MemoryKind::kStore), a.bytes());  // counted once
  Write(&b, 18, 22, 100);
  EXPECT_TRUE(Holds(a, 0, 20, 0));
  EXPECT_TRUE(Holds(b, 0, 18, 0));
  EXPECT_TRUE(Holds(b, 18, 22, 100));
  EXPECT_EQ(a.Row(0, 3), b.Row(0, 3));    // the first piece is still one
  EXPECT_NE(a.Row(0, 17), b.Row(0, 17));  // the second is not
  const uint8_t* row = a.Row(1, 17);
  const int before = backend_.allocations;
  Write(&a, 19, 20, 7);  // alone now: written in place
  EXPECT_EQ(a.Row(1, 17), row);
  EXPECT_EQ(backend_.allocations, before);
  EXPECT_TRUE(Holds(b, 0, 18, 0));
}

TEST_F(PieceListTest, TruncateAndDropLetWholePiecesGo) {
  RowStore store(&format_, &shape_);
  Write(&store, 0, 64, 0);
  store.Drop(5, 50);  // pieces [16, 32) and [32, 48)
  EXPECT_EQ(store.bytes(), 32 * 8);
  EXPECT_TRUE(Holds(store, 0, 16, 0));
  EXPECT_TRUE(Holds(store, 48, 64, 0));
  store.Truncate(49);
  EXPECT_EQ(store.bytes(), 32 * 8);
  store.Truncate(48);
  EXPECT_EQ(store.bytes(), 16 * 8);
  Write(&store, 20, 24, 9);  // into a piece that was dropped
  EXPECT_TRUE(Holds(store, 20, 24, 9));
  store.Truncate(0);
  EXPECT_EQ(ledger_.held(MemoryKind::kStore), 0);
}

TEST_F(PieceListTest, TellsWhichPiecesHaveChanged) {
  using Range = std::pair<size_t, size_t>;
  PieceList list(&shape_);
  const auto grow = [&](int64_t begin, int64_t end) {
    Staging staging;
    list.Plan(begin, end, begin, &staging);
    ASSERT_TRUE(staging.Allocate(&ledger_).ok());
    staging.Install();
  };
  const auto none = [](const Range& range) { return range.first == range.second; };
  EXPECT_TRUE(none(list.TakeChanged()));
  grow(0, 33);
  EXPECT_EQ(list.TakeChanged(), Range(0, 3));
  EXPECT_TRUE(none(list.TakeChanged()));
  grow(33, 36);  // the last piece has room for four
  EXPECT_TRUE(none(list.TakeChanged()));
  grow(36, 37);
  EXPECT_EQ(list.TakeChanged(), Range(2, 3));
  grow(37, 41);
  grow(41, 60);
  EXPECT_EQ(list.TakeChanged(), Range(2, 4));
  list.Drop(16, 32);
  EXPECT_EQ(list.TakeChanged(), Range(1, 2));
  list.Truncate(40);  // takes the last of four
  EXPECT_TRUE(none(list.TakeChanged()));
  list.Truncate(0);
  EXPECT_TRUE(none(list.TakeChanged()));
  const PieceList shared = list;
  grow(0, 20);
  const PieceList fork = list;
  EXPECT_EQ(list.TakeChanged(), Range(0, 2));
  grow(3, 4);  // of a shared piece the writer gets a copy
  EXPECT_EQ(list.TakeChanged(), Range(0, 1));
  EXPECT_EQ(shared.size(), 0u);
  EXPECT_EQ(fork.size(), 2u);
}

TEST_F(PieceListTest, ARefreshedTableLeadsToEveryRow) {
  std::mt19937 rng(5);
  RowStore store(&format_, &shape_);
  int64_t size = 0;
  for (int step = 0; step < 400; ++step) {
    const auto count = static_cast<int64_t>(rng() % 9) + 1;
    const RowStore fork = store;
    if (rng() % 8 == 0) {
      size = static_cast<int64_t>(rng() % (size + 1));
      store.Truncate(size);
    } else {
      Write(&store, size, size + count, 0);
      size += count;
    }
    ASSERT_TRUE(size == 0 || Holds(store, 0, size, 0)) << "step " << step;
  }
}

TEST_F(PieceListTest, FailureAtEveryAllocationChangesNothing) {
  RowStore store(&format_, &shape_);
  Write(&store, 0, 3, 0);
  RowStore shared = store;
  const int64_t held = ledger_.held(MemoryKind::kStore);
  for (int fail = 0; fail < 3; ++fail) {  // a copy and two new pieces
    backend_.fail_after = fail;
    EXPECT_FALSE(Reserve(&store, 3, 40)) << fail;
    EXPECT_EQ(ledger_.held(MemoryKind::kStore), held);
    EXPECT_EQ(store.Row(0, 0), shared.Row(0, 0));
  }
  backend_.fail_after = -1;
  EXPECT_TRUE(Reserve(&store, 3, 40));
  EXPECT_TRUE(Holds(store, 0, 3, 0));
}

TEST_F(PieceListTest, LimitsRefuseBeforeAllocationAndAreGivenBack) {
  auto shared = std::make_shared<MemoryBudget>(1000);
  MemoryLedger own(&backend_, 300, 0, nullptr), first(&backend_, 900, 0, shared), second(&backend_, 0, 0, shared);
  EXPECT_EQ(own.Reserve(301, Account::kHost).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(own.Reserve(300, Account::kHost).ok());
  EXPECT_FALSE(own.Reserve(1, Account::kHost).ok());
  {
    Reservation reservation(&first);
    ASSERT_TRUE(reservation.Reserve(MemoryKind::kCode, 600).ok());
    Memory memory;
    ASSERT_TRUE(reservation.Allocate(MemoryKind::kCode, 200, nullptr, &memory).ok());
    EXPECT_EQ(first.held(MemoryKind::kCode), 200);
    EXPECT_FALSE(second.Reserve(401, Account::kHost).ok());
    EXPECT_TRUE(second.Reserve(400, Account::kHost).ok());
    EXPECT_FALSE(first.Reserve(1, Account::kHost).ok());  // within its own limit, but not the shared one
    second.Release(400, Account::kHost);
    Memory moved = std::move(memory);
    EXPECT_EQ(moved.bytes(), 200);
    EXPECT_EQ(first.held(MemoryKind::kCode), 200);
  }
  EXPECT_EQ(first.held(MemoryKind::kCode), 0);
  EXPECT_EQ(shared->used_bytes(), 0);
  EXPECT_EQ(shared->peak_bytes(), 1000);
  EXPECT_EQ(shared->peak_bytes(Account::kDevice), 0);
}

TEST_F(PieceListTest, CodesInADevicesMemoryHaveALimitOfTheirOwn) {
  backend_.apart = true;
  auto shared = std::make_shared<MemoryBudget>(1000, 500);
  MemoryLedger ledger(&backend_, 0, 400, shared);
  const absl::Status own = ledger.Reserve(401, Account::kDevice);
  EXPECT_EQ(own.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(own.message().find("device memory limit of the index"), absl::string_view::npos) << own;
  {
    Reservation reservation(&ledger);
    ASSERT_TRUE(reservation.Reserve(MemoryKind::kCode, 400).ok());
    ASSERT_TRUE(reservation.Reserve(MemoryKind::kStore, 1000).ok());
    EXPECT_EQ(shared->used_bytes(Account::kDevice), 400);
    EXPECT_EQ(shared->used_bytes(Account::kHost), 1000);
    Memory codes = reservation.Charge(MemoryKind::kCode, 300);
    EXPECT_EQ(ledger.held(MemoryKind::kCode), 300);
  }
  EXPECT_EQ(shared->used_bytes(Account::kDevice), 0);
  EXPECT_EQ(shared->used_bytes(Account::kHost), 0);
  backend_.apart = false;  // codes in the host's memory count there
  EXPECT_EQ(ledger.AccountOf(MemoryKind::kCode), Account::kHost);
}

TEST(SlabPoolTest, SlabsDoubleAreReusedAndGoBack) {
  TestBackend backend;
  SlabPool pool(&backend, MemorySpace::kCodes);
  std::vector<uint8_t*> blocks;
  for (int i = 0; i < 100; ++i) {
    blocks.push_back(pool.Allocate(1000));
    ASSERT_NE(blocks.back(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back()) % 64, 0u);
    std::fill_n(blocks.back(), 1000, static_cast<uint8_t>(i));
  }
  EXPECT_EQ(backend.allocations, 8);  // 1 + 1 + 2 + 4 + ... + 64
  EXPECT_EQ(pool.free_bytes(), 28 * 1024);
  for (int i = 0; i < 100; ++i) {  // none overlaps another
    for (int j = 0; j < 1000; ++j) ASSERT_EQ(blocks[i][j], i);
  }
  pool.Free(blocks[70], 1000);
  EXPECT_EQ(pool.Allocate(1000), blocks[70]);
  EXPECT_EQ(backend.allocations, 8);
  EXPECT_EQ(backend.freed, 0);
  for (int i = 99; i >= 0; --i) pool.Free(blocks[i], 1000);
  EXPECT_EQ(backend.freed, 8);
  EXPECT_EQ(pool.free_bytes(), 0);
  backend.fail_after = 0;
  EXPECT_EQ(pool.Allocate(1000), nullptr);
  uint8_t* block = pool.Allocate(1000);
  ASSERT_NE(block, nullptr);
  pool.Free(block, 1000);
}

// Stretches of every length come and go; none overlaps another, and neighbours that are free are one again.
TEST(SlabPoolTest, UnequalBlocksShareSlabs) {
  TestBackend backend;
  SlabPool pool(&backend, MemorySpace::kStore);
  struct Block {
    uint8_t* data;
    int64_t bytes;
    uint8_t mark;
  };
  std::vector<Block> blocks;
  std::mt19937_64 rng(3);
  for (int i = 0; i < 4000; ++i) {
    if (!blocks.empty() && rng() % 5 < 2) {
      std::swap(blocks[rng() % blocks.size()], blocks.back());
      const Block b = blocks.back();
      blocks.pop_back();
      ASSERT_EQ(std::count(b.data, b.data + b.bytes, b.mark), b.bytes);
      pool.Free(b.data, b.bytes);
      continue;
    }
    const int64_t bytes = 1 + static_cast<int64_t>(rng() % 20000);
    uint8_t* const data = pool.Allocate(bytes);
    ASSERT_NE(data, nullptr);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
    blocks.push_back({data, bytes, static_cast<uint8_t>(i)});
    std::fill_n(data, bytes, blocks.back().mark);
  }
  EXPECT_GT(blocks.size(), 600u);
  EXPECT_LT(backend.allocations, 30);
  for (const Block& b : blocks) pool.Free(b.data, b.bytes);
  EXPECT_EQ(backend.freed, backend.allocations);
}

TEST(SlabPoolTest, AFreedStretchServesALongerBlockOnceItsNeighbourIsFree) {
  TestBackend backend;
  SlabPool pool(&backend, MemorySpace::kStore);
  std::vector<uint8_t*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.Allocate(128));  // slabs of 1, 1, 2 and 4
  EXPECT_EQ(backend.allocations, 4);
  pool.Free(blocks[5], 128);
  pool.Free(blocks[7], 128);
  pool.Free(blocks[6], 128);
  EXPECT_EQ(pool.Allocate(384), blocks[5]);
  EXPECT_EQ(backend.allocations, 4);
  pool.Free(blocks[5], 384);
  pool.Free(blocks[4], 128);
  EXPECT_EQ(backend.freed, 1);
  for (int i = 0; i < 4; ++i) pool.Free(blocks[i], 128);
  EXPECT_EQ(backend.freed, 4);
}

TEST(SlabPoolTest, SlabsAreWholeOnesOnceALittleIsHeld) {
  TestBackend backend;
  SlabPool pool(&backend, MemorySpace::kCodes);  // 41 blocks in 4 MiB
  std::vector<uint8_t*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(pool.Allocate(100000));
  EXPECT_EQ(backend.allocations, 7);  // 1 1 2 4, then half a MiB is held: 41 41 41
  for (uint8_t* block : blocks) pool.Free(block, 100000);
  EXPECT_EQ(backend.freed, 7);

  SlabPool large(&backend, MemorySpace::kCodes);  // a slab for each
  backend.allocations = 0;
  for (int i = 0; i < 3; ++i) blocks[i] = large.Allocate(SlabPool::kSlabBytes + 1);
  EXPECT_EQ(backend.allocations, 3);
  for (int i = 0; i < 3; ++i) large.Free(blocks[i], SlabPool::kSlabBytes + 1);
}

}  // namespace
}  // namespace seine
