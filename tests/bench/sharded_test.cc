// seine-bench sharded against servers of its own, on the committed trace: exact answers are one node's, and the index's
// are as near to dense attention.
#include <gtest/gtest.h>

#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

const std::string kSharded = std::string("sharded --trace ") + SEINE_TRACE + " --spawn " + SEINE_SERVER_PROGRAM + " ";

TEST(ShardedBenchTest, ShardsAreAsNearAsOneNode) {
  for (const bool choose_first : {true, false}) {
    SCOPED_TRACE(choose_first);
    const ProgramRun run = RunBench(kSharded + "--layer 15 --shards 1,4 --run 512 --steps 12 -o json" +
                                    (choose_first ? " --choose-first" : ""));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const auto json = nlohmann::json::parse(run.out);
    ASSERT_EQ(json["points"].size(), 2u);
    EXPECT_EQ(json["steps"], 12);
    for (const auto& point : json["points"]) {
      EXPECT_LT(point["exact_merge_error"], 1e-5);
      EXPECT_GT(point["p50_us"], 0);
      EXPECT_GT(point["error"], 0);
      EXPECT_LT(point["error"], 1.05 * point["one_node_error"].get<double>());
      if (choose_first) {
        EXPECT_LT(point["error"], 1.05 * point["one_node_error_as_many"].get<double>());
      }
    }
  }
}

TEST(ShardedBenchTest, EveryWrongFlagIsOneClearLine) {
  ExpectWrongFlags({
      {std::string("sharded --trace ") + SEINE_TRACE, "give one of --servers ADDRESSES and --spawn PROGRAM"},
      {kSharded + "--shards 0", "--shards: not in [1, 64]"},
      {kSharded + "--run 100", "--run: no multiple of 64"},
      {kSharded + "--top-k 0", "--top-k: not in [1, 4096]"},
      {kSharded + "--steps 0", "--steps: must be at least 1"},
  });
}

}  // namespace
}  // namespace seine::bench
