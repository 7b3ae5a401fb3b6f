// What sequences and indexes take before their first token is counted, so that many of them, or huge ones, cannot pass
// a limit unseen.
#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>
#include <vector>

#include "index/index.h"
#include "kernels/backend.h"

namespace seine {
namespace {

struct Shape {
  int layers, heads, head_dim;
  bool evicts, low_rank;
};

IndexConfig OverheadConfig(const Shape& shape) {
  IndexConfig config;
  config.name = "overhead";
  config.geometry.num_layers = shape.layers;
  config.geometry.num_q_heads = config.geometry.num_kv_heads = shape.heads;
  config.geometry.head_dim = shape.head_dim;
  config.kv_store = KvStore::kKeysValues;
  if (shape.evicts) {
    config.eviction.emplace();
    config.eviction->scorer.name = "keydiff";
    config.eviction->budget.tokens = 2048;
  }
  if (shape.low_rank) {
    config.subspace.emplace();
    config.subspace->key_rank = config.subspace->value_rank = 16;
  }
  return config;
}

int64_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();  // a sanitizer's allocator tells nothing: 0
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

TEST(Overhead, OfEmptySequencesAndOfIndexesIsCounted) {
  constexpr int kSequences = 8;
  constexpr int64_t kUncounted = 128 << 10;  // of an index, for its map and what grows in steps
  const auto backend = MakeCpuBackend(1);
  for (const Shape& shape : {Shape{2, 2, 64, false, false},
                             {32, 8, 128, false, false},
                             {32, 8, 128, true, false},
                             {32, 8, 128, false, true},
                             {64, 64, 64, true, false},
                             {256, 64, 64, false, true},
                             {1024, 8, 64, false, false}}) {
    const auto budget = std::make_shared<MemoryBudget>(0);
    const int64_t before = AllocatedBytes();
    auto index = Index::Create(OverheadConfig(shape), backend.get(), budget);
    ASSERT_TRUE(index.ok()) << index.status();
    for (int i = 0; i < kSequences; ++i) ASSERT_TRUE((*index)->CreateSequence("").ok());
    const int64_t taken = AllocatedBytes() - before, counted = budget->used_bytes();
    EXPECT_LE(taken, counted + kUncounted) << shape.layers << " layers of " << shape.heads << " heads";
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_GE(taken * 2, counted) << shape.layers << " layers of " << shape.heads << " heads";
#endif
    index->reset();
    EXPECT_EQ(budget->used_bytes(), 0);
  }
}

TEST(Overhead, OfAHugeGeometryIsRefusedBeforeItIsTaken) {
  const auto backend = MakeCpuBackend(1);
  const auto budget = std::make_shared<MemoryBudget>(64 << 20);
  const auto index = Index::Create(OverheadConfig({4096, 1024, 64, false, true}), backend.get(), budget);
  EXPECT_EQ(index.status().code(), absl::StatusCode::kResourceExhausted) << index.status();
  const auto fits = Index::Create(OverheadConfig({4096, 1024, 64, true, false}), backend.get(), budget);
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ((*fits)->CreateSequence("").status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace seine
