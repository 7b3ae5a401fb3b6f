// One line for every error, and exit codes of their classes.
#include <algorithm>

#include "absl/strings/match.h"
#include "client/cli/base/command_line.h"
#include "tests/client/cli/cli_fixture.h"

namespace seine {
namespace {

TEST_F(CliTest, ErrorsAreOneLineWithAnExitCodeOfTheirClass) {
  const std::string query = "query m s --layer 0 --vector %query.npy";
  const std::string create = "index create x --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64";
  const struct {
    std::string line;
    int exit_code;
    const char* part;
  } cases[] = {
      {"frobnicate", 2, "unknown command frobnicate"},
      {"idnex list", 2, "unknown command idnex; did you mean index?"},
      {"index frobnicate", 2, "index: unknown command frobnicate; there are create, list, get, delete"},
      {"seq lst m", 2, "seq: unknown command lst; did you mean list? (seine seq --help)"},
      {"index create", 2, "NAME is required"},
      {"index list --colour", 2, "index list: unknown flag --colour (seine index list --help)"},
      {"index create x --laeyrs 3", 2, "index create: unknown flag --laeyrs; did you mean --layers?"},
      {"index list --ouptut json", 2, "unknown flag --ouptut; did you mean --output?"},
      {query + " --top-k 5 --top-k 6", 2, "query: --top-k: given more than once (seine query --help)"},
      {query + " --beta .1 --candidate-fraction .1", 2,
       "--candidate-fraction: given more than once; --beta is the same setting (seine query --help)"},
      {"query m s --layer 0 --vector x --top_k=5", 2, "unknown flag --top_k; did you mean --top-k?"},
      {"health --wait -1", 2, "--wait"},
      {"health -o xml", 2, "must be table or json, not xml"},
      {"health --timeout soon", 2, "--timeout"},
      {"health --timeout 0", 2, "--timeout"},
      {"health --timeout nan", 2, "--timeout: must be a number from 0.001 to 1e+06, not nan"},
      {"health --timeout -nan", 2, "--timeout"},
      {"health --timeout inf", 2, "--timeout"},
      {"health --timeout -1", 2, "--timeout"},
      {"health --timeout 1e300", 2, "--timeout"},
      {"health --wait nan", 2, "--wait: must be a number from 0 to 1e+06, not nan"},
      {"seq create m \xff\xfe", 2, "ID: must be UTF-8"},
      {"seq get m \xed\xa0\x80", 2, "ID: must be UTF-8"},
      {"index get \xc0\xaf", 2, "NAME: must be UTF-8"},
      {"index create \xf0\x9f --layers 1 --q-heads 1 --kv-heads 1 --head-dim 64", 2, "NAME: must be UTF-8"},
      {"seq fork m s t\x80", 2, "NEW_ID: must be UTF-8"},
      {"health --service \xff", 2, "--service: must be UTF-8"},
      {"query m s --layer 0 --vector %fifo", 3, "fifo: not a regular file"},
      {"query m s --layer 0 --vector %\xff.npy", 3, "\xff.npy: No such file or directory"},
      {"append m s --layer 0 --file %fifo --tensor array", 3, "fifo: not a regular file"},
      {"--server nowhere health", 2, "--server: endpoint nowhere"},
      {create + " --seed -1", 2, "--seed: must be 0 or more, not -1"},
      {create + " --dtype int8", 2, "must be one of fp32, fp16, bf16, not int8"},
      {create + " --memory-limit much", 2, "--memory-limit"},
      {query + " --top-k many", 2, "--top-k"},
      {query + " --top-k 5 --mass-p .5", 2, "--top-k excludes --mass-p"},
      {query + " --mass-cap 5", 2, "--mass-cap requires --mass-p"},
      {query + " --head 1", 2, "--head: is for a file that holds a single vector"},
      {"query m s --layer 0 --vector %head.npy", 2, "--head: say to which of the 4 query heads"},
      {"query m s --layer 0 --vector %head.npy --head 4", 2, "--head: 4 is not in [0, 4)"},
      {"query m s --layer 0 --vector %head.npy --head 0 --scope kv_head", 2, "--scope"},
      {"query m s --layer 0 --vector %head.npy --row 0", 2, "--row"},
      {"query m s --layer 0 --vector %rows.npy", 2, "choose one of 2 rows"},
      {"query m s --layer 0 --vector %rows.npy --row 2", 2, "--row: 2 is not in [0, 2)"},
      {"query m s --layer 0 --vector %missing.npy", 3, "missing.npy: No such file or directory"},
      {"query m s --layer 0 --vector %torn.npy", 3, "torn.npy: cut short"},
      {"query m s --layer 0 --vector %foreign", 3, "foreign: neither a safetensors nor a .npy file"},
      {"query m s --layer 0 --vector %keys.npy --row 0", 3, "do not fit the index, which takes [4, 64]"},
      {"query m s --layer 0 --vector %query.npy --tensor k", 3, "no tensor named k"},
      {"append m s --layer 0 --file %query.npy --tensor array", 3, "has 2 dimensions"},
      {"append m s --layer 0 --file %keys.npy --tensor array --first 5", 2, "--first: 5 is not in [0, 5)"},
      {"append m s --layer 0 --file %keys.npy --tensor array --count 6", 2, "--count: 6 is not in [1, 5]"},
      {"index get nowhere", 5, "no such index: 'nowhere'"},
      {"index delete nowhere", 5, "no such index"},
      {"seq get m nobody", 5, "m/nobody: not found: 'nobody'"},
      {"seq list nowhere", 5, "no such index: 'nowhere'"},
      {"query nowhere s --layer 0 --vector %query.npy", 5, "no such index: 'nowhere'"},
      {"health --service nothing", 5, "--service: the server has no service 'nothing'"},
      {"seq create m s", 6, "m/s: 's' is already in use (id)"},
      {"index create m --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64", 6,
       "there is an index 'm' already (spec.name)"},
      {"append m s --layer 0 --file %keys.npy --tensor array --position 1", 6,
       "m/s: --tensor: position 1 already holds other bytes"},
      {"index create x --layers 1 --q-heads 3 --kv-heads 2 --head-dim 64", 7,
       "x: --q-heads: 3 is not a multiple of num_kv_heads 2 (spec.geometry.num_q_heads)"},
      {create + " --beta 2", 7, "x: --candidate-fraction: 2 is not in [0, 1] (spec.retrieval.candidate_fraction)"},
      {create + " --codec zip", 7, "x: --codec: "},
      {create + " --codec balanced", 7, "x: --profile: "},
      {create + " --profile none", 5, "x: --profile: "},
      {create + " --rope-theta 10000 --rope {}", 2, "--rope"},
      {create + " --rope-theta much", 2, "--rope-theta"},
      {create + " --rope {", 7, "x: --rope: "},
      {create + " --rope-style sideways", 2, "must be one of half_split, interleaved, not sideways"},
      {"query m s --layer 2 --vector %query.npy", 7, "m/s: --layer: 2 is not in [0, 2)"},
      {query + " --top-k 0", 7, "m/s: --top-k: 0 "},
      {"seq get m s --generation 77", 7, "m/s: stale generation; 's' was deleted and made again"},
      {"seq fork m s t --position 601", 7, "m/s: --position: 601"},
      {"seq truncate m s --position -1", 7, "m/s: --position: -1"},
      {"head describe m s --layer 0 --kv-head 2", 7, "m/s: --kv-head: 2 is not in [0, 2)"},
      {"append m s --layer 0 --file %keys.npy --tensor array --position 601", 7, "m/s: --position: "},
      {"append m s --layer 2 --file %keys.npy --tensor array", 7, "m/s: --layer: 2"},
      {"health --timeout 0.001 --server unix://%no.sock", 4, "no server at"},
  };
  for (const auto& test : cases) ExpectError(Seine(test.line), test.line, test.exit_code, test.part);
  const Json sequences = SeineJson("seq list m");  // nothing of all that was applied
  ASSERT_EQ(sequences["sequences"].size(), 1u);
  EXPECT_EQ(sequences["sequences"][0]["layer_tokens"], Json({600, 600}));
  EXPECT_EQ(SeineJson("index list")["indexes"].size(), 1u);
}

TEST(WithNextCommandTest, WhoeverIsNotKnownOrNotAnsweredIsToldWhatHelps) {
  const auto said = [](const absl::Status& status) { return cli::WithNextCommand({status, "", "", "", ""}).message; };
  EXPECT_TRUE(absl::StrContains(said(absl::UnauthenticatedError("who?")), "who? (next: --token-file FILE"));
  EXPECT_TRUE(absl::StrContains(said(absl::DeadlineExceededError("late")), "late (next: --timeout SECONDS"));
  EXPECT_EQ(said(absl::InternalError("odd")), "");
}

TEST_F(CliTest, ErrorsNameTheCommandThatHelps) {
  const struct {
    std::string line;
    int exit_code;
    const char* next;
  } cases[] = {
      {"index get nowhere", 5, "(next: seine index list)\n"},
      {"seq list nowhere", 5, "(next: seine index list)\n"},
      {"seq get nowhere s", 5, "(next: seine index list)\n"},
      {"seq get m nobody", 5, "(next: seine seq list m)\n"},
      {"query m nobody --layer 0 --vector %query.npy", 5, "(next: seine seq list m)\n"},
      {"index create m --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64", 6, "(next: seine index get m)\n"},
      {"seq create m s", 6, "(next: seine seq list m)\n"},
      {"index create x --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64 --profile none", 5, "(next: seine version, "},
      {"index list --server unix://%no.sock", 4, "(next: seined starts one, --server names another)\n"},
  };
  for (const auto& test : cases) ExpectError(Seine(test.line), test.line, test.exit_code, test.next);
  for (const std::string line :
       {"query m s --layer 2 --vector %query.npy", "index lst", "seq get m s --generation 77"}) {
    EXPECT_FALSE(absl::StrContains(Seine(line).err, "(next: ")) << line;
  }
  EXPECT_FALSE(absl::StrContains(Seine("index get nowhere -o json").err, "next: "));
  // Commands that the hints name are there.
  for (const std::string line : {"index list", "seq list m", "index get m", "version"})
    EXPECT_EQ(Seine(line).exit_code, 0);
}

// A full disk, or no descriptor at all.
TEST_F(CliTest, WhatDoesNotArriveOnStdoutIsAnError) {
  for (const std::string line : {"index list", "index get m -o json", "--help", "query --help", "--version"}) {
    for (const std::string sink : {">/dev/full", ">&-"}) {
      const Outcome outcome = RunProgram({"/bin/sh", "-c", "exec \"$0\" " + line + " " + sink, SEINE_PROGRAM},
                                         {"SEINE_SERVER=" + server_->endpoint()});
      EXPECT_EQ(outcome.exit_code, 1) << line << sink;
      EXPECT_TRUE(absl::StrContains(outcome.err, "cannot write to standard output")) << outcome.err;
      EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    }
  }
}

TEST_F(CliTest, AMemoryLimitHasItsOwnExitCode) {
  ASSERT_EQ(
      Seine("index create tight --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64 --dtype fp32 --memory-limit 4KiB")
          .exit_code,
      0);
  ASSERT_EQ(Seine("seq create tight s").exit_code, 0);
  ExpectError(Seine("append tight s --layer 0 --file %keys.npy --tensor array"), "append", 8, "memory");
  EXPECT_EQ(Seine("index delete tight").exit_code, 0);
}

TEST_F(CliTest, WithJsonErrorsAreJson) {
  const struct {
    std::string line;
    Json expected;  // all but the message
    const char* part;
  } cases[] = {
      {"seq get m nobody",
       {{"code", "NOT_FOUND"}, {"exit_code", 5}, {"object", "m/nobody"}, {"field", "handle"}, {"flag", nullptr}},
       "not found: 'nobody'"},
      {"query m s --layer 0 --vector %query.npy --top-k 0",
       {{"code", "INVALID_ARGUMENT"}, {"exit_code", 7}, {"object", "m/s"}, {"flag", "--top-k"}},
       "--top-k: 0 "},
      {"query m s --layer 0 --vector %rows.npy --row 2",
       {{"exit_code", 2}, {"object", "m/s"}, {"flag", "--row"}},
       "[0, 2)"},
      {"query m s --layer 0 --vector %torn.npy", {{"exit_code", 3}}, "torn.npy: cut short"},
      {"index lst", {{"exit_code", 2}, {"object", nullptr}}, "did you mean list?"},
      {"index", {{"exit_code", 2}}, "a command is required"},
      {"health --server unix://%no.sock", {{"code", "UNAVAILABLE"}, {"exit_code", 4}}, "no server at"},
  };
  for (const auto& test : cases) {
    for (const std::string flag : {" -o json", " --output=json"}) {
      const Outcome outcome = Seine(test.line + flag);
      EXPECT_EQ(outcome.out, "") << test.line;
      EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
      const Json json = Json::parse(outcome.err, nullptr, false);
      ASSERT_TRUE(json.is_object() && json.contains("error")) << test.line << ": " << outcome.err;
      for (const auto& [key, value] : test.expected.items()) EXPECT_EQ(json["error"][key], value) << outcome.err;
      EXPECT_EQ(outcome.exit_code, json["error"]["exit_code"]) << outcome.err;
      EXPECT_TRUE(absl::StrContains(json["error"]["message"].get<std::string>(), test.part)) << outcome.err;
    }
  }
}

}  // namespace
}  // namespace seine
