// Files that a version has written load in every build that reads that version, and hold what they did. Version 2 has
// two: one that another adds to, and that other. SEINE_WRITE_GOLDEN=FOLDER writes them anew, for the next version; the
// old ones stay and must load as long as promised.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "index/snapshot/snapshot_base.h"
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

std::string Golden(const std::string& name) { return SEINE_SNAPSHOT_GOLDENS + name + ".snapshot"; }

void ExpectGolden(const Index& index, const Index& expected) {
  for (const char* id : {"golden", "fork"}) {
    EXPECT_TRUE(testing::StateOf(index, id) == testing::StateOf(expected, id)) << id;
    EXPECT_TRUE(testing::AnswersOf(index, id) == testing::AnswersOf(expected, id)) << id;
  }
}

TEST(SnapshotGoldenTest, VersionOneLoads) {
  const auto backend = MakeCpuBackend(1);
  const auto expected = MakeGolden(backend.get());
  if (const char* folder = std::getenv("SEINE_WRITE_GOLDEN"); folder != nullptr) {
    const std::string path = std::string(folder) + "/version-1.snapshot";
    ASSERT_TRUE(SnapshotToFile(*expected, {"golden", 0}, SnapshotScope::kFamily, path).ok());
  }
  auto index = MakeIndex(GoldenConfig(), backend.get());
  const auto restored = RestoreFromFile(index.get(), {}, Golden("version-1"));
  ASSERT_TRUE(restored.ok()) << restored.status();
  ASSERT_EQ(restored->sequences.size(), 2u);
  ExpectGolden(*index, *expected);
  EXPECT_LE(std::filesystem::file_size(Golden("version-1")), 20'000u);
}

TEST(SnapshotGoldenTest, OnesThatAddToOthersLoad) {
  const auto backend = MakeCpuBackend(1);
  const auto expected = MakeGolden(backend.get());
  WrittenBase written;
  const char* folder = std::getenv("SEINE_WRITE_GOLDEN");
  for (const std::string name : {"version-2-base", "version-2-added"}) {
    if (folder != nullptr) {
      const std::string path = std::string(folder) + "/" + name + ".snapshot";
      const SequenceHandle handle{"golden", 0};
      ASSERT_TRUE(SnapshotToFile(*expected, handle, SnapshotScope::kFamily, path, nullptr, &written).ok());
    }
    testing::Extend(expected.get(), "golden", name == "version-2-base" ? 20 : 0);
    EXPECT_LE(std::filesystem::file_size(Golden(name)), 25'000u);
  }
  auto index = MakeIndex(GoldenConfig(), backend.get());
  ReadBase base;
  ASSERT_TRUE(RestoreFromFile(index.get(), {.base = &base, .hold = true}, Golden("version-2-base")).ok());
  const auto restored = RestoreFromFile(index.get(), {.base = &base}, Golden("version-2-added"));
  ASSERT_TRUE(restored.ok()) << restored.status();
  ExpectGolden(*index, *expected);
}

// A window with a key of 2,000 times the others' length and one of none: its factors span 16 octaves, as version 3
// says.
TEST(SnapshotGoldenTest, AWindowOfWideFactorsLoads) {
  const auto backend = MakeCpuBackend(1);
  auto expected = MakeIndex(GoldenConfig(), backend.get());
  ASSERT_TRUE(expected->CreateSequence("golden").ok());
  const Geometry g = GoldenConfig().geometry;
  std::string keys;
  for (int position = 0; position < 16 + 32 + 64; ++position) {
    const float length = position == 50 ? 0 : position == 60 ? 2000 : 1;
    for (int i = 0; i < g.head_dim; ++i) {
      const int mixed = (position * 37 + i * 11 + position * i) % 29;
      testing::PutFloat(g.dtype, length * static_cast<float>(mixed - 14) / 8, &keys);
    }
  }
  ASSERT_TRUE(expected->Append({"golden", 0}, 0, 0, testing::View(g, keys), {}, {}).ok());
  if (const char* folder = std::getenv("SEINE_WRITE_GOLDEN"); folder != nullptr) {
    const std::string path = std::string(folder) + "/version-3.snapshot";
    ASSERT_TRUE(SnapshotToFile(*expected, {"golden", 0}, SnapshotScope::kFamily, path).ok());
  }
  auto index = MakeIndex(GoldenConfig(), backend.get());
  const auto restored = RestoreFromFile(index.get(), {}, Golden("version-3"));
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_TRUE(testing::StateOf(*index, "golden") == testing::StateOf(*expected, "golden"));
  EXPECT_TRUE(testing::AnswersOf(*index, "golden") == testing::AnswersOf(*expected, "golden"));
  EXPECT_LE(std::filesystem::file_size(Golden("version-3")), 20'000u);
}

}  // namespace
}  // namespace seine
