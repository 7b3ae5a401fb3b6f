// What `seine` says of a server, which may still be starting or have profiles.
#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/client/cli/cli_fixture.h"

namespace seine {
namespace {

void ExpectWait(const std::string& server, const std::string& seconds, int exit_code) {
  const Outcome outcome = RunProgram({SEINE_PROGRAM, "health", "--server", server, "--wait", seconds});
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
}

TEST_F(CliTest, ServerState) {
  EXPECT_EQ(SeineJson("health")["serving"], true);
  EXPECT_EQ(Seine("health").out, "serving\n");
  const Json version = SeineJson("version");
  EXPECT_EQ(version["client"], version["server"]);
  EXPECT_EQ(SeineJson("head describe m s --layer 1 --kv-head 1")["num_tokens"], 600);
  const Outcome help = Seine("--help", false);
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_TRUE(absl::StrContains(help.out, "Exit codes: 0 done")) << help.out;
  EXPECT_TRUE(absl::StartsWith(Seine("--version", false).out, "seine ")) << help.out;
}

TEST_F(CliTest, ABareSocketPathIsAServer) {
  const std::string path = server_->endpoint().substr(strlen("unix://"));
  ASSERT_EQ(path[0], '/');
  EXPECT_EQ(RunProgram({SEINE_PROGRAM, "health"}, {"SEINE_SERVER=" + path}).out, "serving\n");
  EXPECT_EQ(RunProgram({SEINE_PROGRAM, "health", "--server", path}).out, "serving\n");
  const Outcome demo = RunProgram({SEINE_DEMO_PROGRAM, "--trace", SEINE_TRACE, "--steps", "2", "--long-tokens", "0"},
                                  {"SEINE_SERVER=" + path});
  EXPECT_EQ(demo.exit_code, 0) << demo.err;
}

TEST(CliWait, HealthWaitsForAServerThatIsStarting) {
  TempFolder folder;
  const std::string path = folder.Path("late.sock");
  const absl::Time begin = absl::Now();
  ExpectWait(path, ".3", 4);
  EXPECT_GT(absl::Now() - begin, absl::Milliseconds(250));
  Server server;  // not awaited: health does that
  ExpectWait(server.endpoint(), "20", 0);
}

// Against a server that has the committed profile of a real model.
TEST(CliProfileTest, CreatesABalancedIndex) {
  using Json = nlohmann::json;
  const Server server({"--profiles", SEINE_PROFILES});
  ASSERT_NE(server.Connect(), nullptr);  // it serves
  const std::vector<std::string> environment = {"SEINE_SERVER=" + server.endpoint()};
  const auto run = [&](const std::string& line) {
    std::vector<std::string> arguments = absl::StrSplit(absl::StrCat(SEINE_PROGRAM, " ", line, " -o json"), ' ');
    const Outcome outcome = RunProgram(arguments, environment);
    EXPECT_EQ(outcome.exit_code, 0) << line << ": " << outcome.err;
    return Json::parse(outcome.out, nullptr, false);
  };
  const std::vector<std::string> profiles = run("version")["profiles"];
  EXPECT_EQ(std::count(profiles.begin(), profiles.end(), "smollm2-135m"), 1);
  const std::string create = " --layers 30 --q-heads 9 --kv-heads 3 --head-dim 64";
  const Json named =
      run("index create a --profile smollm2-135m --horizon 8192 --total-bits 2.5 --coarse-bits 0.5 --rope-theta 500000 "
          "--rope-style interleaved" +
          create);
  EXPECT_EQ(named["codec"], "balanced");
  EXPECT_EQ(named["profile"], "smollm2-135m");
  EXPECT_EQ(named["horizon"], 8192);
  EXPECT_EQ(named["coarse_bits"], .5);
  EXPECT_EQ(named["total_bits"], 2.5);
  EXPECT_EQ(named["rope_style"], "interleaved");
  EXPECT_EQ(named["rope_inv_freq"].size(), 32u);
  EXPECT_TRUE(named["rope_rotary_dim"].is_null() && named["layer_ropes"].empty());
  const Json found = run("index create b --model HuggingFaceTB/SmolLM2-135M" + create);
  EXPECT_EQ(found["codec"], "balanced");
  EXPECT_EQ(found["rope_style"], "half_split");  // the profile's own
  EXPECT_EQ(run("index create c" + create)["codec"], "rsq");
  // A person reads what is set; a list of 32 frequencies and fields that nobody set are JSON's.
  const Outcome table = RunProgram({SEINE_PROGRAM, "index", "get", "a"}, environment);
  EXPECT_TRUE(absl::StrContains(table.out, "  32 values; -o json has them\n")) << table.out;
  EXPECT_TRUE(absl::StrContains(table.out, "\ntotal_bits ")) << table.out;
  EXPECT_FALSE(absl::StrContains(table.out, "null")) << table.out;
  EXPECT_TRUE(found.contains("evict_scorer") && found["evict_scorer"].is_null());
  run("seq create b s");
  const Json head = run("head describe b s --layer 0 --kv-head 0");
  EXPECT_EQ(head["profile"], "smollm2-135m");
  EXPECT_TRUE(head["position"].is_null());
  EXPECT_EQ(head["horizon"], 32768);
}

}  // namespace
}  // namespace seine
