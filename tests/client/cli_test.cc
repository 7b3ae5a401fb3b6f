// `seine` as a person or a script uses it: output, exit codes, and one line for every error.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine {
namespace {

using Json = nlohmann::json;

template <typename T>
std::string Raw(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string Npy(const std::string& shape, const std::vector<float>& values) {
  std::string header = absl::StrCat("{'descr': '<f4', 'fortran_order': False, 'shape': ", shape, ", }\n");
  return absl::StrCat(absl::string_view("\x93NUMPY\x01\x00", 8), Raw<uint16_t>({static_cast<uint16_t>(header.size())}),
                      header, Raw(values));
}

class CliTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new Server;
    folder_ = new TempFolder;
    const auto client = server_->Connect();
    ASSERT_NE(client, nullptr);
    ASSERT_TRUE(client->CreateIndex(RandomModel::Spec("m", client::KvStore::kKeys)).ok());
    const RandomModel model(600);
    ASSERT_TRUE(client->CreateSequence("m", "s").ok());
    for (int layer = 0; layer < 2; ++layer) {
      ASSERT_TRUE(client->AppendStream({{{"m", "s", 0}, layer, 0, model.Keys(layer, 0, 600), {}}}).ok());
    }
    folder_->Write("query.npy", Npy("(4, 64)", model.query));
    folder_->Write("head.npy", Npy("(64,)", {model.query.begin() + 128, model.query.begin() + 192}));
    std::vector<float> rows(2 * 256, 0.0f);
    std::copy(model.query.begin(), model.query.end(), rows.begin() + 256);
    folder_->Write("rows.npy", Npy("(2, 4, 64)", rows));
    folder_->Write("keys.npy", Npy("(5, 2, 64)", {model.keys[0].begin(), model.keys[0].begin() + 5 * 128}));
    folder_->Write("torn.npy", Npy("(4, 64)", {1, 2, 3}));
    folder_->Write("foreign", "this is no tensor file at all");
    ASSERT_EQ(mkfifo(folder_->Path("fifo").c_str(), 0600), 0);
    model_ = new RandomModel(600);
  }
  static void TearDownTestSuite() {
    delete model_;
    delete folder_;
    delete server_;
  }

  // `line`: arguments with spaces between; % stands for the folder of the test's files.
  static Outcome Seine(const std::string& line, bool with_server = true) {
    std::vector<std::string> arguments = {SEINE_PROGRAM};
    const std::vector<std::string> parts = absl::StrSplit(line, ' ', absl::SkipEmpty());
    for (std::string argument : parts) {
      const size_t at = argument.find('%');
      if (at != std::string::npos) argument.replace(at, 1, folder_->Path(""));
      arguments.push_back(argument);
    }
    if (with_server) return RunProgram(arguments, {"SEINE_SERVER=" + server_->endpoint()});
    return RunProgram(arguments);
  }

  static Json SeineJson(const std::string& line) {
    const Outcome outcome = Seine(line + " -o json");
    EXPECT_EQ(outcome.exit_code, 0) << line << ": " << outcome.err;
    EXPECT_EQ(outcome.err, "") << line;
    const Json json = Json::parse(outcome.out, nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << line << ": " << outcome.out;
    return json;
  }

  static void ExpectError(const Outcome& outcome, const std::string& line, int exit_code, const std::string& part) {
    EXPECT_EQ(outcome.exit_code, exit_code) << line << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "") << line;
    EXPECT_TRUE(absl::StartsWith(outcome.err, "seine: error: ")) << line << ": " << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << line << ": " << outcome.err;
    EXPECT_TRUE(absl::StrContains(outcome.err, part)) << line << ": " << outcome.err;
  }

  static Server* server_;
  static TempFolder* folder_;
  static RandomModel* model_;
};
Server* CliTest::server_ = nullptr;
TempFolder* CliTest::folder_ = nullptr;
RandomModel* CliTest::model_ = nullptr;

// `seine` and the words of `line`.
std::vector<std::string> Words(const std::string& line) {
  std::vector<std::string> words = {SEINE_PROGRAM};
  for (const absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) words.emplace_back(word);
  return words;
}

void ExpectWait(const std::string& server, const std::string& seconds, int exit_code) {
  const Outcome outcome = RunProgram({SEINE_PROGRAM, "health", "--server", server, "--wait", seconds});
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
}

// Against a server that has the committed profile of a real model.
TEST(CliProfileTest, CreatesABalancedIndex) {
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
  const Json found = run("index create b --model HuggingFaceTB/SmolLM2-135M" + create);
  EXPECT_EQ(found["codec"], "balanced");
  EXPECT_EQ(found["rope_style"], "half_split");  // the profile's own
  EXPECT_EQ(run("index create c" + create)["codec"], "rsq");
  run("seq create b s");
  const Json head = run("head describe b s --layer 0 --kv-head 0");
  EXPECT_EQ(head["profile"], "smollm2-135m");
  EXPECT_TRUE(head["position"].is_null());
  EXPECT_EQ(head["horizon"], 32768);
}

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
      {create + " --dtype int8", 2, "must be one of fp32, fp16, bf16, not int8"},
      {create + " --memory-limit much", 2, "--memory-limit"},
      {query + " --top-k many", 2, "--top-k"},
      {query + " --top-k 5 --mass-p .5", 2, "--top-k excludes --mass-p"},
      {query + " --mass-cap 5", 2, "--mass-floor and --mass-cap need --mass-p"},
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
      {create + " --beta 2", 7, "x: --beta: 2 is not in [0, 1] (spec.retrieval.beta)"},
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

TEST_F(CliTest, IndexesAndSequences) {
  const Json created = SeineJson(
      "index create two --layers 2 --q-heads 4 --kv-heads 2 --head-dim 64 --dtype bf16 --sink 32 --beta .2 --scope "
      "q_head "
      "--gqa-reduce mean --centre none --coarse collision --kv-store none --memory-limit 2GiB");
  EXPECT_EQ(created["dtype"], "bf16");
  EXPECT_EQ(created["sink"], 32);
  EXPECT_EQ(created["local"], 512);  // a default, filled in
  EXPECT_EQ(created["beta"], 0.2);
  EXPECT_EQ(created["scope"], "q_head");
  EXPECT_EQ(created["gqa_reduce"], "mean");
  EXPECT_EQ(created["centre"], "none");
  EXPECT_EQ(created["coarse"], "collision");
  EXPECT_EQ(created["kv_store"], "none");
  EXPECT_EQ(created["memory_limit_bytes"], int64_t{2} << 30);
  EXPECT_EQ(SeineJson("index get two"), created);
  const Outcome list = Seine("index list");
  EXPECT_EQ(std::count(list.out.begin(), list.out.end(), '\n'), 3) << list.out;  // a header and two indexes
  EXPECT_TRUE(absl::StrContains(list.out, "KV HEADS")) << list.out;

  EXPECT_EQ(SeineJson("seq create two a")["id"], "a");
  EXPECT_EQ(SeineJson("seq fork two a b")["id"], "b");
  EXPECT_FALSE(SeineJson("seq create two")["id"].get<std::string>().empty());
  EXPECT_EQ(SeineJson("seq list two")["sequences"].size(), 3u);
  EXPECT_EQ(SeineJson("seq delete two b")["deleted"]["id"], "b");
  EXPECT_EQ(SeineJson("seq get two a")["layer_tokens"], Json({0, 0}));
  EXPECT_EQ(SeineJson("index delete two")["deleted"], "two");
}

TEST_F(CliTest, AppendContinuesWhereTheLayerEnds) {
  EXPECT_EQ(SeineJson("seq create m grown")["id"], "grown");
  EXPECT_EQ(SeineJson("append m grown --layer 1 --file %keys.npy --tensor array --count 2")["position"], 0);
  EXPECT_EQ(SeineJson("append m grown --layer 1 --file %keys.npy --tensor array --first 2")["position"], 2);
  EXPECT_EQ(SeineJson("seq get m grown")["layer_tokens"], Json({0, 5}));
  EXPECT_EQ(SeineJson("seq truncate m grown --position 3")["layer_tokens"], Json({0, 3}));
  const Outcome text = Seine("append m grown --layer 1 --file %keys.npy --tensor array --first 3");
  EXPECT_EQ(text.out, "layer 1: 2 tokens at position 3\n");
  EXPECT_EQ(SeineJson("seq delete m grown")["deleted"]["id"], "grown");
}

TEST_F(CliTest, QueriesFromFiles) {
  const auto expected = [&](int head) { return Json(model_->ExactTopK(0, head, 9, 16, 528)); };
  const Json whole = SeineJson("query m s --layer 0 --vector %query.npy --top-k 9 --exact --scores");
  EXPECT_EQ(whole["path"], "exact");
  EXPECT_EQ(whole["scope"], "q_head");
  EXPECT_EQ(whole["zone_end"], 528);
  ASSERT_EQ(whole["sets"].size(), 4u);
  for (int head = 0; head < 4; ++head) EXPECT_EQ(whole["sets"][head]["positions"], expected(head));
  EXPECT_EQ(whole["sets"][0]["scores"].size(), 9u);

  EXPECT_EQ(SeineJson("query m s --layer 0 --vector %rows.npy --row 1 --top-k 9 --exact --scores")["sets"],
            whole["sets"]);
  EXPECT_EQ(
      SeineJson("query m s --layer 0 --vector %query.npy --row 2 --head 2 --top-k 9 --exact")["sets"][0]["positions"],
      expected(2));
  const Json single = SeineJson("query m s --layer 0 --vector %head.npy --head 2 --top-k 9 --exact");
  ASSERT_EQ(single["sets"].size(), 1u);
  EXPECT_EQ(single["sets"][0]["head"], 2);
  EXPECT_EQ(single["sets"][0]["positions"], expected(2));

  const Outcome text = Seine("query m s --layer 0 --vector %head.npy --head 2 --top-k 9 --exact --scores");
  EXPECT_TRUE(absl::StrContains(text.out, "head 2, 9 tokens: ")) << text.out;
  EXPECT_EQ(std::count(text.out.begin(), text.out.end(), '\n'), 12) << text.out;
  EXPECT_EQ(SeineJson("query m s --layer 0 --vector %query.npy --scope kv_head --top-k 3")["sets"].size(), 2u);
  EXPECT_EQ(SeineJson("query m s --layer 0 --vector %query.npy --mass-p .5 --mass-cap 20")["sets"].size(), 4u);
  const Json capped = SeineJson("query m s --layer 0 --vector %query.npy --mass-p .99 --mass-cap 2");
  EXPECT_EQ(capped["capped"], true);
  EXPECT_LT(capped["sets"][0]["mass"], .99);
  EXPECT_TRUE(absl::StrContains(Seine("query m s --layer 0 --vector %query.npy --mass-p .99 --mass-cap 2").out,
                                "--mass-cap ended a set"));
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

TEST_F(CliTest, AGroupWithoutACommandShowsItsHelp) {
  for (const std::string group : {"", "index", "seq", "head", "subspace", "profile"}) {
    const Outcome outcome = Seine(group);
    EXPECT_EQ(outcome.exit_code, 2) << group;
    EXPECT_EQ(outcome.out, "") << group;
    const Outcome help = Seine(group + " --help");
    const std::string last =
        absl::StrCat("seine: error: ", group, group.empty() ? "" : ": ", "a command is required\n");
    EXPECT_EQ(outcome.err, help.out + last) << group;
    EXPECT_TRUE(absl::StrContains(help.out, "Subcommands:")) << help.out;
  }
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

TEST_F(CliTest, EverySpellingOfAValueIsTaken) {
  const std::string create = "index create spelt --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64 ";
  const struct {
    const char* flag;
    std::vector<const char*> spellings;
    const char* key;
    const char* value;
  } cases[] = {{"--dtype", {"bf16", "bfloat16", "BF16"}, "dtype", "bf16"},
               {"--dtype", {"fp32", "float32"}, "dtype", "fp32"},
               {"--scope", {"q_head", "per_q_head", "PER_Q_HEAD", "q-head"}, "scope", "q_head"},
               {"--scope", {"kv_head", "per_kv_head"}, "scope", "kv_head"},
               {"--kv-store", {"keys_values", "keys-values"}, "kv_store", "keys_values"}};
  for (const auto& test : cases) {
    for (const std::string spelling : test.spellings) {
      EXPECT_EQ(SeineJson(absl::StrCat(create, test.flag, " ", spelling))[test.key], test.value) << spelling;
      EXPECT_EQ(Seine("index delete spelt").exit_code, 0);
    }
  }
}

TEST_F(CliTest, ABareSocketPathIsAServer) {
  const std::string path = server_->endpoint().substr(strlen("unix://"));
  ASSERT_EQ(path[0], '/');
  EXPECT_EQ(RunProgram({SEINE_PROGRAM, "health"}, {"SEINE_SERVER=" + path}).out, "serving\n");
  EXPECT_EQ(RunProgram({SEINE_PROGRAM, "health", "--server", path}).out, "serving\n");
  const Outcome demo =
      RunProgram({SEINE_DEMO_PROGRAM, "--trace", SEINE_TRACE, "--steps", "2"}, {"SEINE_SERVER=" + path});
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

// --- Help

// Every command, as the help of the groups lists them.
std::vector<std::string> Commands() {
  std::vector<std::string> commands = {""};
  for (size_t i = 0; i < commands.size(); ++i) {
    const std::string help = RunProgram(Words(commands[i] + " --help")).out;
    const size_t list = help.find("\nSubcommands:\n");
    if (list == std::string::npos) continue;
    for (const absl::string_view line : absl::StrSplit(help.substr(list + 14), '\n')) {
      if (line.size() < 3 || line[2] == ' ' || !absl::StartsWith(line, "  ")) {
        if (line.empty()) break;
        continue;
      }
      const std::string name(line.substr(2, line.find(' ', 2) - 2));
      commands.push_back(commands[i].empty() ? name : commands[i] + " " + name);
    }
  }
  return commands;
}

TEST(CliHelp, IsAHundredColumnsWideAndHasItsOwnExamplesOnly) {
  const std::vector<std::string> commands = Commands();
  EXPECT_GE(commands.size(), 25u);
  for (const std::string& command : commands) {
    const Outcome help = RunProgram(Words(command + " --help"));
    EXPECT_EQ(help.exit_code, 0) << command;
    int examples = 0;
    for (const absl::string_view line : absl::StrSplit(help.out, '\n')) {
      EXPECT_LE(line.size(), 100u) << command << ": " << line;
      EXPECT_EQ(line.find_last_not_of(' '), line.empty() ? absl::string_view::npos : line.size() - 1) << line;
      if (!absl::StartsWith(line, "  seine ")) continue;
      ++examples;
      if (command.empty()) continue;  // the program's own: the first steps
      EXPECT_TRUE(absl::StartsWith(line, absl::StrCat("  seine ", command))) << command << ": " << line;
    }
    const bool group = absl::StrContains(help.out, "\nSubcommands:\n");
    EXPECT_GE(examples, group ? 0 : 1) << command;
    EXPECT_EQ(absl::StrContains(help.out, "Exit codes:"), command.empty()) << command;
  }
}

// An example that does not parse would end with 2; without a server and files they end with 4 or 3, and where they need
// neither with 0.
TEST(CliHelp, ExamplesAreTaken) {
  TempFolder folder;
  for (const std::string& command : Commands()) {
    const Outcome help = RunProgram(Words(command + " --help"));
    for (const absl::string_view line : absl::StrSplit(help.out, '\n')) {
      if (!absl::StartsWith(line, "  seine ")) continue;
      std::string example(line.substr(8));
      example = absl::StrReplaceAll(example.substr(0, example.find(" &&")), {{"--wait 10", "--wait .01"}});
      const Outcome outcome = RunProgram({"/bin/sh", "-c", "exec \"$0\" " + example, SEINE_PROGRAM},
                                         {"SEINE_SERVER=" + folder.Path("no.sock")});
      const bool alone = absl::StrContains(line, " --list") || absl::StrContains(line, " --describe");
      EXPECT_TRUE(alone ? outcome.exit_code == 0 : outcome.exit_code == 4 || outcome.exit_code == 3)
          << line << ": " << outcome.err;
    }
  }
}

// The server's own word is what a default is held against.
TEST_F(CliTest, HelpShowsTheServersDefaults) {
  const Json made = SeineJson("index create plain --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64");
  const std::string help =
      absl::StrReplaceAll(Seine("index create --help").out, {{"\n                              ", " "}});
  const std::pair<const char*, const char*> flags[] = {{"sink", "sink"},
                                                       {"local", "local"},
                                                       {"update-buffer", "update_buffer"},
                                                       {"dense-threshold", "dense_threshold"},
                                                       {"seed", "seed"},
                                                       {"window", "window"},
                                                       {"centre", "centre"},
                                                       {"dtype", "dtype"},
                                                       {"top-k", "top_k"},
                                                       {"beta", "beta"},
                                                       {"refine", "refine"},
                                                       {"coarse", "coarse"},
                                                       {"rho", "rho"},
                                                       {"scope", "scope"},
                                                       {"gqa-reduce", "gqa_reduce"},
                                                       {"kv-store", "kv_store"}};
  for (const auto& [flag, key] : flags) {
    const std::regex row(absl::StrCat("\n  --", flag, " [^\n]*\\(default: ([^)]*)\\)"));
    std::smatch found;
    ASSERT_TRUE(std::regex_search(help, found, row)) << flag << "\n" << help;
    const Json value = made[key];
    if (value.is_string()) {
      EXPECT_EQ(found[1], value.get<std::string>()) << flag;
    } else {
      EXPECT_NEAR(std::stod(found[1]), value.get<double>(), 1e-9) << flag;
    }
  }
  EXPECT_EQ(Seine("index delete plain").exit_code, 0);
}

}  // namespace
}  // namespace seine
