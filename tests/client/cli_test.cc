// `seine` as a person or a script uses it: output, exit codes, and one line for every error.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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
      {"", 2, "a command is required"},
      {"frobnicate", 2, "frobnicate"},
      {"index", 2, "a command is required"},
      {"index frobnicate", 2, "frobnicate"},
      {"index create", 2, "NAME is required"},
      {"index list --colour", 2, "--colour"},
      {"health -o xml", 2, "must be table or json, not xml"},
      {"health --timeout soon", 2, "--timeout"},
      {"health --timeout 0", 2, "--timeout"},
      {"--server nowhere health", 2, "endpoint nowhere"},
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
      {"index get nowhere", 5, "no such index"},
      {"index delete nowhere", 5, "no such index"},
      {"seq get m nobody", 5, "not found"},
      {"seq list nowhere", 5, "no such index"},
      {"query nowhere s --layer 0 --vector %query.npy", 5, "no such index"},
      {"health --service nothing", 5, "nothing"},
      {"seq create m s", 6, "s"},
      {"index create m --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64", 6, "m"},
      {"append m s --layer 0 --file %keys.npy --tensor array --position 1", 6, "position"},
      {"index create x --layers 1 --q-heads 3 --kv-heads 2 --head-dim 64", 7, "num_q_heads"},
      {create + " --beta 2", 7, "beta"},
      {create + " --codec zip", 7, "codec.name"},
      {create + " --codec balanced", 7, "codec.profile"},
      {create + " --profile none", 5, "codec.profile"},
      {create + " --rope-theta 10000 --rope {}", 2, "--rope"},
      {create + " --rope-theta much", 2, "--rope-theta"},
      {create + " --rope {", 7, "geometry.rope.config_json"},
      {create + " --rope-style sideways", 2, "must be one of half_split, interleaved, not sideways"},
      {"query m s --layer 2 --vector %query.npy", 7, "layer"},
      {query + " --top-k 0", 7, "top_k"},
      {"seq get m s --generation 77", 7, "generation"},
      {"seq fork m s t --position 601", 7, "position"},
      {"seq truncate m s --position -1", 7, "position"},
      {"head describe m s --layer 0 --kv-head 2", 7, "kv_head"},
      {"append m s --layer 0 --file %keys.npy --tensor array --position 601", 7, "position"},
      {"append m s --layer 2 --file %keys.npy --tensor array", 7, "layer"},
      {"health --timeout 0.001 --server unix://%no.sock", 4, "no server at"},
  };
  for (const auto& test : cases) ExpectError(Seine(test.line), test.line, test.exit_code, test.part);
  const Json sequences = SeineJson("seq list m");  // nothing of all that was applied
  ASSERT_EQ(sequences["sequences"].size(), 1u);
  EXPECT_EQ(sequences["sequences"][0]["layer_tokens"], Json({600, 600}));
  EXPECT_EQ(SeineJson("index list")["indexes"].size(), 1u);
}

TEST_F(CliTest, AMemoryLimitHasItsOwnExitCode) {
  ASSERT_EQ(
      Seine("index create tight --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64 --dtype fp32 --memory-limit 1KiB")
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

}  // namespace
}  // namespace seine
