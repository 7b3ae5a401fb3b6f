// `seine-bench prompt`: a prompt in steps is answered as well as one append of it, whatever steps and horizon.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

const std::string kPrompt = std::string("prompt --trace ") + SEINE_TRACE + " --profile " + SEINE_TEST_PROFILE + " ";

TEST(PromptCommandTest, APromptInStepsIsAnsweredAsWellAsOneAppend) {
  for (const char* horizon : {"1024", "32768"}) {
    const ProgramRun run = RunBench(
        kPrompt + "--layers 15 --num-queries 16 --step 512,4096 --length 7900,8192 -o json --horizon " + horizon);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const auto json = nlohmann::json::parse(run.out);
    ASSERT_EQ(json["rows"].size(), 2u);
    for (const auto& row : json["rows"]) {
      EXPECT_GE(row["recall_at_k"], .95) << row;
      for (const auto& steps : row["in_steps"]) EXPECT_GE(steps["recall_at_k"], row["recall_at_k"].get<double>() - .01);
    }
    EXPECT_EQ(json["one_append"]["times_encoded"], 1);
    for (const auto& cost : json["steps"]) {
      EXPECT_GT(cost["times_encoded"], 1);
      EXPECT_LE(cost["times_encoded"], 4);
      EXPECT_GT(cost["cpu_ns_per_key"], 0);
    }
  }
}

TEST(PromptCommandTest, EveryPowerOfTwoThatTheTraceHasQueriesAtIsAsked) {
  const ProgramRun run = RunBench(kPrompt + "--layers 15 --num-queries 2 --step 8192");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("8192 tokens"), std::string::npos) << run.out;
  EXPECT_EQ(run.out.find("4096 tokens"), std::string::npos) << run.out;
}

TEST(PromptCommandTest, WrongFlagsAreOneLine) {
  for (const char* flags : {"--step 0", "--length 8192,7900", "--length 4096", "--layers 3", "--threads -1"}) {
    const ProgramRun run = RunBench(kPrompt + flags);
    EXPECT_EQ(run.exit_code, 2) << flags;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    EXPECT_NE(run.err.find(std::string(flags).substr(0, std::string(flags).find(' '))), std::string::npos) << run.err;
  }
}

}  // namespace
}  // namespace seine::bench
