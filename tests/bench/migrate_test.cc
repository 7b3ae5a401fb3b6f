// seine-bench migrate: a family moves under load, and nothing that was acknowledged is lost.
#include <gtest/gtest.h>

#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

const std::string kMigrate = std::string("migrate --spawn ") + SEINE_SERVER_PROGRAM + " ";

TEST(MigrateBenchTest, AFamilyMovesUnderLoad) {
  const ProgramRun run = RunBench(kMigrate + "--num-keys 256,700 --kv-heads 2 --head-dim 64 --moves 3 -o json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  ASSERT_EQ(json["rows"].size(), 2u);
  for (const auto& row : json["rows"]) {
    EXPECT_GT(row["pause_p50_ms"], 0);
    EXPECT_GE(row["pause_p99_ms"], row["pause_p50_ms"]);
    EXPECT_GT(row["stall_p50_ms"], 0);
    EXPECT_GT(row["append_p50_ms"], 0);
    EXPECT_GT(row["snapshot_bytes"], row["num_keys"].get<int>() * 2 * 64 * 2 * 2);
    EXPECT_GT(row["last_bytes"], 0);
    EXPECT_EQ(row["whole"], 0);
    EXPECT_GT(row["appends"], 0);
    EXPECT_EQ(row["failed"], 0);
  }
}

TEST(MigrateBenchTest, EveryWrongFlagIsOneClearLine) {
  ExpectWrongFlags({
      {"migrate", "--spawn is required"},
      {"migrate --spawn /none", "--spawn: /none is no program that can be run"},
      {kMigrate + "--folder /none", "--folder: cannot write to /none/"},
      {kMigrate + "--moves 0", "--moves: must be at least 1"},
      {kMigrate + "--num-keys 0", "--num-keys: must be at least 1"},
  });
}

}  // namespace
}  // namespace seine::bench
