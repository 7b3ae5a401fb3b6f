// seine-bench service against a seined of its own.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

const std::string kSpawn = std::string("service --spawn ") + SEINE_SERVER_PROGRAM + " ";

TEST(ServiceBenchTest, EveryTransportAnswersAsInProcess) {
  for (const char* transport : {"--transport stream", "--transport stream --polling", "--transport unary"}) {
    SCOPED_TRACE(transport);
    const TestFolder folder;
    const ProgramRun run =
        RunBench(kSpawn + transport + " --num-keys 3000 --steps 60 --num-kv-heads 2 --head-dim 64 -o json" +
                 " --plot " + folder.File("cdf.svg"));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const auto json = nlohmann::json::parse(run.out);
    for (const char* key : {"p50_us", "p99_us", "steps_per_s", "tokens_per_s_append", "in_process_p50_us",
                            "bare_socket_p50_us", "append_keys_per_s_core"}) {
      ASSERT_TRUE(json.contains(key)) << key;
      EXPECT_GT(json[key], 0) << key;
    }
    EXPECT_TRUE(json.contains("rpc_overhead_p50_us"));
    EXPECT_EQ(json["errors"], 0);
    EXPECT_EQ(json["steps"], 60);
    EXPECT_NE(ReadFile(folder.File("cdf.svg")).find("in process"), std::string::npos);
  }
}

TEST(ServiceBenchTest, ATokenIsTheStepsOfItsLayers) {
  const ProgramRun run =
      RunBench(kSpawn +
               "--transport stream --layers 3 --num-keys 2500 --steps 20 --num-kv-heads 1 --head-dim "
               "64 -o json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["errors"], 0);
  EXPECT_EQ(json["layers"], 3);
  EXPECT_EQ(json["steps"], 3 * 20);
  EXPECT_GT(json["token_p50_us"], json["p50_us"]);
  EXPECT_GT(json["token_in_process_p50_us"], json["in_process_p50_us"]);
  EXPECT_TRUE(json.contains("token_overhead_p50_us"));
}

TEST(ServiceBenchTest, EveryWrongFlagIsOneClearLine) {
  const std::pair<std::string, std::string> cases[] = {
      {kSpawn + "--server /a/b", "give one of --server ADDRESS and --spawn PROGRAM"},
      {"service --spawn /nowhere/seined", "--spawn: /nowhere/seined is no program that can be run"},
      {kSpawn + "--transport pigeon", "--transport"},
      {kSpawn + "--transport unary --polling", "--polling: only --transport stream and shm can spin"},
      {kSpawn + "--steps 0", "--steps: not in"},
      {kSpawn + "--layers 0", "--layers: not in"},
      {kSpawn + "--num-kv-heads 0", "--num-kv-heads: not in"},
      {kSpawn + "--group 99", "--group: not in"},
      {kSpawn + "--head-dim 7", "--head-dim"},
  };
  for (const auto& [arguments, says] : cases) {
    SCOPED_TRACE(arguments);
    const ProgramRun run = RunBench(arguments);
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_NE(run.err.find(says), std::string::npos) << run.err;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
}

TEST(ServiceBenchTest, NoServerIsOneClearLine) {
  const TestFolder folder;
  const std::string path = folder.File("none.sock");
  setenv("SEINE_SERVER", path.c_str(), 1);
  const std::string lines[] = {"service --endpoint unix://" + path, "service --server " + path, "service"};
  for (const std::string& line : lines) {
    const ProgramRun run = RunBench(line);
    EXPECT_EQ(run.exit_code, 1) << line;
    EXPECT_NE(run.err.find("no server at"), std::string::npos) << run.err;
    EXPECT_NE(run.err.find("none.sock"), std::string::npos) << run.err;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
  unsetenv("SEINE_SERVER");
}

}  // namespace
}  // namespace seine::bench
