// seine-bench nodes: its constants are those of the steps that it makes.
#include <gtest/gtest.h>

#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

const std::string kNodes = std::string("nodes --spawn ") + SEINE_SERVER_PROGRAM + " ";

TEST(NodesBenchTest, ConstantsOfASmallStep) {
  const ProgramRun run =
      RunBench(kNodes + "--nodes 2 --num-keys 256,4096 --kv-heads 2 --group 2 --head-dim 64 --steps 8 -o json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["nodes"], 2);
  const double queries = 2 * 4 * 64, outputs = 4 * 4 * 65, row = 2 * 2 * 2 * 64;  // bytes
  for (const auto& point : json["rows"]) {
    EXPECT_GT(point["node_us"], 0);
    EXPECT_GT(point["step_us"], point["node_us"]);
    EXPECT_GT(point["engine_us"], 0);
    EXPECT_GT(point["merge_us"], 0);
    EXPECT_GT(point["all_us"], point["merge_us"]);
    EXPECT_GT(point["bytes_there"], queries);
    EXPECT_LT(point["bytes_there"], queries + 300);
    EXPECT_GT(point["bytes_back"], outputs);
    EXPECT_LT(point["bytes_back"], outputs + 300);
    EXPECT_GE(point["token_bytes"], row);
    EXPECT_LT(point["token_bytes"], 2 * row);
  }
  EXPECT_GT(json["rows"][1]["token_bytes"], row);  // codes too
}

TEST(NodesBenchTest, EveryWrongFlagIsOneClearLine) {
  ExpectWrongFlags({
      {"nodes", "--spawn is required"},
      {"nodes --spawn /none", "--spawn: /none is no program that can be run"},
      {kNodes + "--nodes 0", "--nodes: not in [1, 64]"},
      {kNodes + "--num-keys 0", "--num-keys: must be at least 1"},
      {kNodes + "--steps 0", "--steps: must be at least 1"},
  });
}

}  // namespace
}  // namespace seine::bench
