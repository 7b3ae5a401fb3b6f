// seine-bench idle: every answer is right though memory holds a tenth, and what is printed holds.
#include <gtest/gtest.h>

#include "bench/idle/idle_bench.h"
#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

const std::string kIdle = "idle --sequences 48 --tokens 300 --layers 2 --steps 200 --threads 2 --ratio 6 ";

TEST(IdleBenchTest, EveryAnswerIsRightThoughMemoryHoldsASixth) {
  const TestFolder folder;
  const ProgramRun run = RunBench(kIdle + "-o json --folder " + folder.File(""));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["steps"], 200);
  EXPECT_EQ(json["checked"], 400);
  EXPECT_EQ(json["wrong"], 0);
  EXPECT_EQ(json["refused"], 0);
  EXPECT_EQ(json["failed"], 0);
  EXPECT_GE(json["restores"], 20);
  EXPECT_GE(json["spills"], 20);
  EXPECT_GE(json["first_steps"], 20);
  EXPECT_LT(json["memory_limit_bytes"], json["bytes"].get<int64_t>() / 5);
  EXPECT_GT(json["disk_bytes"], json["memory_limit_bytes"].get<int64_t>());
  EXPECT_LE(json["first_step_ms_p50"], json["first_step_ms_p99"]);
  EXPECT_TRUE(std::filesystem::is_empty(folder.File(""))) << "what it writes is removed";
}

TEST(IdleBenchTest, MemoryHoldsAFamilyForEachThread) {
  IdleBenchOptions options;
  options.sequences = 79;
  options.ratio = 10;
  options.threads = 2;
  EXPECT_TRUE(absl::IsInvalidArgument(MeasureIdle(options).status()));
  const ProgramRun run = RunBench("idle --sequences 4 --folder /none");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("--folder"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace seine::bench
