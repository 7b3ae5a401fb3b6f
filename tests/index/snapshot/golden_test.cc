// A file that version 1 has written loads in every build that reads version 1, and holds what it did.
// SEINE_WRITE_GOLDEN=FILE writes it anew, for the next version; the old one stays and must load as long as promised.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "index/snapshot/snapshot_file.h"
#include "tests/index/snapshot/states.h"

namespace seine {
namespace {

using testing::MakeIndex;
using testing::SmallConfig;

// One head, so that the file is small, with a zone of one window.
IndexConfig GoldenConfig() {
  IndexConfig config = SmallConfig();
  config.geometry.num_layers = config.geometry.num_kv_heads = 1;
  config.geometry.num_q_heads = 2;
  return config;
}

std::unique_ptr<Index> MakeGolden(Backend* backend) {
  auto index = MakeIndex(GoldenConfig(), backend);
  EXPECT_TRUE(index->CreateSequence("golden").ok());
  testing::Extend(index.get(), "golden", 16 + 32 + 64);
  EXPECT_TRUE(index->Fork({"golden", 0}, "fork", 70).ok());
  return index;
}

TEST(SnapshotGoldenTest, VersionOneLoads) {
  const auto backend = MakeCpuBackend(1);
  const auto expected = MakeGolden(backend.get());
  if (const char* path = std::getenv("SEINE_WRITE_GOLDEN"); path != nullptr) {
    ASSERT_TRUE(SnapshotToFile(*expected, {"golden", 0}, SnapshotScope::kFamily, path).ok());
  }
  auto index = MakeIndex(GoldenConfig(), backend.get());
  const auto restored = RestoreFromFile(index.get(), {}, SEINE_SNAPSHOT_GOLDEN);
  ASSERT_TRUE(restored.ok()) << restored.status();
  ASSERT_EQ(restored->sequences.size(), 2u);
  for (const char* id : {"golden", "fork"}) {
    EXPECT_TRUE(testing::StateOf(*index, id) == testing::StateOf(*expected, id)) << id;
    EXPECT_TRUE(testing::AnswersOf(*index, id) == testing::AnswersOf(*expected, id)) << id;
  }
  EXPECT_LE(std::filesystem::file_size(SEINE_SNAPSHOT_GOLDEN), 20'000u);
}

}  // namespace
}  // namespace seine
