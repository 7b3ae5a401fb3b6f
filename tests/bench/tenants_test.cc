// seine-bench tenants against a seined of its own.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

const std::string kTenants = std::string("tenants --spawn ") + SEINE_SERVER_PROGRAM + " ";

// The numbers of so short a run say nothing; that they are there, and that work was done and refused, does.
TEST(TenantsBenchTest, EveryPhaseIsMeasured) {
  const ProgramRun run =
      RunBench(kTenants +
               "--num-kv-heads 1 --group 2 --head-dim 64 --num-keys 600 --prefill-tokens 2000 --memory-limit-mib 8 "
               "--allowed 40 --overload 8 --loud-streams 2 --prefill-streams 1 --seconds .25 --rounds 1 -o json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  for (const char* phase : {"alone", "beside_loud", "beside_prefill"}) {
    EXPECT_GT(json[phase]["steps"], 0) << phase;
    EXPECT_GT(json[phase]["p50_us"], 0) << phase;
    EXPECT_EQ(json[phase]["refused"], 0) << phase;
  }
  EXPECT_FALSE(json["alone"].contains("p99_ratio"));
  EXPECT_GT(json["beside_loud"]["p99_ratio"], 0);
  EXPECT_GT(json["beside_prefill"]["p99_ratio"], 0);
  EXPECT_GT(json["loud"]["goodput_steps_per_s"], 0);
  EXPECT_GT(json["loud"]["peak_steps_per_s"], 0);
  EXPECT_GT(json["prefill"]["alone_tokens_per_s"], 0);
  EXPECT_GT(json["prefill"]["tokens_per_s"], 0);
  EXPECT_GT(json["prefill"]["tokens_vs_alone"], 0);
  EXPECT_GT(json["memory"]["resident_peak_bytes"], json["memory"]["resident_at_start_bytes"]);
}

TEST(TenantsBenchTest, EveryWrongFlagIsOneClearLine) {
  const std::pair<std::string, std::string> cases[] = {
      {"tenants", "--spawn"},
      {"tenants --spawn /nowhere/seined --num-keys 10 --num-kv-heads 1 --prefill-tokens 10",
       "--spawn: /nowhere/seined is no program that can be run"},
      {kTenants + "--allowed 0", "--allowed: not in"},
      {kTenants + "--seconds -1", "--seconds: not in"},
      {kTenants + "--loud-streams 0", "--loud-streams: not in"},
      {kTenants + "--head-dim 7", "--head-dim"},
  };
  for (const auto& [arguments, says] : cases) {
    SCOPED_TRACE(arguments);
    const ProgramRun run = RunBench(arguments);
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_NE(run.err.find(says), std::string::npos) << run.err;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
}

}  // namespace
}  // namespace seine::bench
