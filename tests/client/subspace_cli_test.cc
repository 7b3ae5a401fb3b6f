// Subspaces as a client and `seine subspace` use them, against a server that has a model's profile.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "profile/io/tensor_file.h"
#include "tests/client/process.h"

namespace seine {
namespace {

using Json = nlohmann::json;

constexpr int kModelLayers = 30, kModelKvHeads = 3, kModelDim = 64;
constexpr int64_t kStreamed = 300;

class SubspaceCliTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new Server({"--profiles", SEINE_PROFILES});
    folder_ = new TempFolder;
    folder_->Write("foreign", "this is no tensor file at all");
    const auto client = server_->Connect();
    ASSERT_NE(client, nullptr);
    const Json created = SeineJson(
        "index create m --layers 30 --q-heads 9 --kv-heads 3 --head-dim 64 --dtype fp32 --kv-store keys_values --sink "
        "16 --local 64 --update-buffer 64 --dense-threshold 0 --subspace-rank 38 --subspace-key-rank 20 "
        "--subspace-frame pre_rope --subspace-profile smollm2-135m --subspace-full-rank .05");
    EXPECT_EQ(created["subspace_key_rank"], 20);
    EXPECT_EQ(created["subspace_value_rank"], 38);
    EXPECT_EQ(created["subspace_frame"], "pre_rope");
    SeineJson("index create plain --layers 30 --q-heads 9 --kv-heads 3 --head-dim 64");
    ASSERT_TRUE(client->CreateSequence("m", "s").ok());
    ASSERT_TRUE(client->CreateSequence("plain", "s").ok());
    std::vector<float> rows(kStreamed * kModelKvHeads * kModelDim);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i * i % 97) / 50 - .8f;
    const client::ConstTensor tensor = {rows.data(), client::DType::kFloat32, {kStreamed, kModelKvHeads, kModelDim}};
    const auto length = client->Append({{"m", "s"}, 0, 0, tensor, tensor});
    ASSERT_TRUE(length.ok()) << length.status();
  }
  static void TearDownTestSuite() {
    delete folder_;
    delete server_;
  }

  static Outcome Seine(const std::string& line) {
    std::vector<std::string> arguments = {SEINE_PROGRAM};
    const std::vector<std::string> parts = absl::StrSplit(line, ' ', absl::SkipEmpty());
    for (std::string argument : parts) {
      const size_t at = argument.find('%');
      if (at != std::string::npos) argument.replace(at, 1, folder_->Path(""));
      arguments.push_back(argument);
    }
    return server_->Run(arguments);
  }
  static Json SeineJson(const std::string& line) {
    const Outcome outcome = Seine(line + " -o json");
    EXPECT_EQ(outcome.exit_code, 0) << line << ": " << outcome.err;
    return Json::parse(outcome.out, nullptr, false);
  }

  static Server* server_;
  static TempFolder* folder_;
};
Server* SubspaceCliTest::server_ = nullptr;
TempFolder* SubspaceCliTest::folder_ = nullptr;

TEST_F(SubspaceCliTest, ShowsWhatBasesTakeAndLeaveOut) {
  const Json json = SeineJson("subspace show m s --layer 0");
  EXPECT_EQ(json["frame"], "pre_rope");
  EXPECT_EQ(json["key_rank"], 20);
  ASSERT_EQ(json["heads"].size(), kModelKvHeads);
  const Json& head = json["heads"][2];
  EXPECT_EQ(head["low_rank_tokens"], 192);
  EXPECT_EQ(head["full_rank_tokens"], 9);  // .05 of each 64
  EXPECT_EQ(head["code_bytes"], 192 * (20 + 38) * 4);
  EXPECT_EQ(head["keys"]["rows"], 192);
  EXPECT_EQ(head["keys"]["updates"], 6);
  EXPECT_GT(head["values"]["residual"], 0);
  const Outcome text = Seine("subspace show m s --layer 0");
  EXPECT_TRUE(absl::StrContains(text.out, "keys pre_rope, rank 20; values, rank 38; of 64")) << text.out;
  EXPECT_TRUE(absl::StrContains(text.out, "OVERLAP"));
}

TEST_F(SubspaceCliTest, SavesLoadsAndCalibrates) {
  EXPECT_EQ(SeineJson("subspace save m s %own")["layers"], kModelLayers);
  EXPECT_EQ(SeineJson("subspace calibrate m %profile --profile smollm2-135m --key-rank 20 --value-rank 38")["frame"],
            "pre_rope");
  const auto own = TensorFile::Open(folder_->Path("own")), profile = TensorFile::Open(folder_->Path("profile"));
  ASSERT_TRUE(own.ok() && profile.ok());
  EXPECT_EQ(profile->metadata().at("format"), "seine-bases-1");
  const auto numbers = [](const TensorFile& file, const char* name) {
    return TensorFile::ToFloat32(file.Get(name).value()).value();
  };
  // Layer 0 has learnt, the others are as the profile has them.
  EXPECT_NE(numbers(*own, "layers.0.key_basis"), numbers(*profile, "layers.0.key_basis"));
  EXPECT_EQ(numbers(*own, "layers.7.value_basis"), numbers(*profile, "layers.7.value_basis"));
  ASSERT_TRUE(server_->Connect()->CreateSequence("m", "t").ok());
  SeineJson("subspace load m t %own");
  SeineJson("subspace save m t %again");
  const auto again = TensorFile::Open(folder_->Path("again"));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(numbers(*again, "layers.0.key_basis"), numbers(*own, "layers.0.key_basis"));
  // By energy, the ranks are the profile's own.
  SeineJson("subspace calibrate m %energy --profile smollm2-135m --energy .9");
  const auto energy = TensorFile::Open(folder_->Path("energy"));
  ASSERT_TRUE(energy.ok());
  EXPECT_LT(energy->Get("layers.0.key_basis")->shape[2], kModelDim);
}

TEST_F(SubspaceCliTest, RanksFollowFromAnEnergyShare) {
  const std::string create =
      "index create energy --layers 30 --q-heads 9 --kv-heads 3 --head-dim 64 --kv-store "
      "keys_values --subspace-profile smollm2-135m --subspace-frame pre_rope";
  const Json created = SeineJson(create + " --subspace-energy .9");
  const int keys = created["subspace_key_rank"], values = created["subspace_value_rank"];
  EXPECT_GT(keys, 1);
  EXPECT_LT(keys, values);  // keys before RoPE lie in fewer dimensions
  EXPECT_LT(values, kModelDim);
  EXPECT_EQ(created["subspace_energy"], .9);
  EXPECT_EQ(SeineJson("index get energy")["subspace_key_rank"], keys);
  const auto client = server_->Connect();
  EXPECT_EQ(client->GetIndex("energy")->spec().subspace().energy(), .9);
  EXPECT_FALSE(client->GetIndex("m")->spec().subspace().has_energy());
  // The largest that any layer of the profile needs.
  SeineJson("subspace calibrate energy %all --profile smollm2-135m --carried-to 32768 --energy .9");
  const auto all = TensorFile::Open(folder_->Path("all"));
  ASSERT_TRUE(all.ok());
  int64_t most_keys = 0, most_values = 0;
  for (int l = 0; l < kModelLayers; ++l) {
    most_keys = std::max(most_keys, all->Get(absl::StrCat("layers.", l, ".key_basis"))->shape[2]);
    most_values = std::max(most_values, all->Get(absl::StrCat("layers.", l, ".value_basis"))->shape[2]);
  }
  EXPECT_EQ(keys, most_keys);
  EXPECT_EQ(values, most_values);
  ASSERT_TRUE(client->CreateSequence("energy", "s").ok());
  const Json shown = SeineJson("subspace show energy s --layer 0");
  EXPECT_EQ(shown["key_rank"], keys);
  EXPECT_EQ(shown["value_rank"], values);
  EXPECT_EQ(Seine("index delete energy").exit_code, 0);
}

TEST_F(SubspaceCliTest, EveryOptionReachesTheServer) {
  const std::string create =
      "index create own --layers 2 --q-heads 3 --kv-heads 1 --head-dim 64 --kv-store keys_values --subspace-rank 20 ";
  const Json made = SeineJson(
      create +
      "--subspace-key-ranks 10,12 --subspace-interval 256 --subspace-learning-rate .2 --subspace-max-gain .7 "
      "--subspace-prompt-pool 4 --subspace-prompt-learning-rate .3 --subspace-threshold .4 --subspace-min-spacing 99 "
      "--subspace-version-tokens 777 --subspace-full-rank .25 --subspace-full-rank-queries 16 "
      "--subspace-full-rank-pool 5 --subspace-carried-to 999");
  const Json want = {
      {"key_rank", 0},         {"key_ranks", {10, 12}},      {"value_rank", 20},        {"value_ranks", Json::array()},
      {"interval", 256},       {"learning_rate", .2},        {"max_gain", .7},          {"absolute_rate", false},
      {"prompt_pool", 4},      {"prompt_learning_rate", .3}, {"threshold", .4},         {"min_spacing", 99},
      {"version_tokens", 777}, {"full_rank", .25},           {"full_rank_queries", 16}, {"full_rank_pool", 5},
      {"carried_to", 999},     {"stack_queries", false},     {"energy_by_layer", false}};
  for (const auto& [name, value] : want.items()) EXPECT_EQ(made["subspace_" + name], value) << name;
  EXPECT_EQ(Seine("index delete own").exit_code, 0);
  const Json raw = SeineJson(create + "--subspace-absolute-rate");
  EXPECT_EQ(raw["subspace_absolute_rate"], true);
  EXPECT_EQ(raw["subspace_learning_rate"], .1);
  EXPECT_TRUE(raw["subspace_max_gain"].is_null());
  EXPECT_EQ(Seine("index delete own").exit_code, 0);

  const std::string profiled =
      "index create own --layers 30 --q-heads 9 --kv-heads 3 --head-dim 64 --kv-store keys_values --subspace-profile "
      "smollm2-135m --subspace-frame pre_rope --subspace-stack-queries ";
  const Json found = SeineJson(profiled + "--subspace-energy .9 --subspace-energy-by-layer");
  EXPECT_EQ(found["subspace_stack_queries"], true);
  EXPECT_EQ(found["subspace_energy_by_layer"], true);
  EXPECT_EQ(found["subspace_key_rank"], 0);
  ASSERT_EQ(found["subspace_key_ranks"].size(), kModelLayers);
  const std::vector<int> ranks = found["subspace_value_ranks"];
  EXPECT_LT(*std::min_element(ranks.begin(), ranks.end()), *std::max_element(ranks.begin(), ranks.end()));
  EXPECT_EQ(Seine("index delete own").exit_code, 0);

  const struct {
    const char* flags;
    const char* named;
  } kRefused[] = {
      {"--subspace-interval 257", "--subspace-interval: 257 is not in [1, 256]"},
      {"--subspace-key-ranks 10", "--subspace-key-ranks: 1 ranks for 2 layers"},
      {"--subspace-key-ranks 10,65", "--subspace-key-ranks: 65 is not in [1, 64]"},
      {"--subspace-learning-rate nan", "--subspace-learning-rate: nan is not in (0, 1000]"},
      {"--subspace-full-rank 0 --subspace-full-rank-queries 8", "--subspace-full-rank-queries: given, but full_rank"},
      {"--subspace-absolute-rate --subspace-max-gain 1", "--subspace-max-gain: given, but"},
      {"--subspace-prompt-learning-rate 1", "--subspace-prompt-learning-rate: given, but"},
      {"--subspace-stack-queries", "--subspace-stack-queries: needs a profile"},
      {"--subspace-energy-by-layer", "--subspace-energy"}};
  for (const auto& c : kRefused) {
    const Outcome outcome = Seine(create + c.flags);
    EXPECT_EQ(outcome.exit_code, std::string(c.flags) == "--subspace-energy-by-layer" ? 2 : 7) << c.flags;
    EXPECT_NE(outcome.err.find(c.named), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

TEST_F(SubspaceCliTest, ErrorsAreOneLineAndAnExitCode) {
  ASSERT_EQ(Seine("subspace calibrate m %low --profile smollm2-135m --key-rank 10 --value-rank 10").exit_code, 0);
  const struct {
    std::string line;
    int exit_code;
    std::string part;
  } cases[] = {
      {"subspace show m s", 2, "--layer"},
      {"subspace show m s --layer 30", 7, "layer: 30 is not in [0, 30)"},
      {"subspace show plain s --layer 0", 7, "keeps nothing low-rank"},
      {"subspace load m s %foreign", 3, "foreign"},
      {"subspace load m s %missing", 3, "missing"},
      {"subspace load m s %low", 7, "layer 0: bases.keys: KV head 0 is [64, 10]"},
      {"subspace calibrate m %x --profile none", 5, "profile: no such profile"},
      {"subspace calibrate m %x --profile smollm2-135m", 7, "energy"},
      {"index create bad --layers 1 --q-heads 1 --kv-heads 1 --head-dim 64 --subspace-interval 3", 2,
       "--subspace-rank"},
      {"index create bad --layers 1 --q-heads 1 --kv-heads 1 --head-dim 64 --subspace-rank 65 --kv-store keys_values",
       7, "bad: --subspace-key-rank: 65"},
      {"index create bad --layers 1 --q-heads 1 --kv-heads 1 --head-dim 64 --subspace-rank 8 --subspace-energy .9", 2,
       "--subspace-energy"},
      {"index create bad --layers 1 --q-heads 1 --kv-heads 1 --head-dim 64 --subspace-energy .9 --kv-store keys_values",
       7, "bad: --subspace-energy: needs a profile"},
      {"index create bad --layers 30 --q-heads 9 --kv-heads 3 --head-dim 64 --subspace-energy 1.5 --kv-store "
       "keys_values --subspace-profile smollm2-135m",
       7, "bad: --subspace-energy: 1.5 is not in (0, 1]"},
  };
  for (const auto& c : cases) {
    const Outcome outcome = Seine(c.line);
    EXPECT_EQ(outcome.exit_code, c.exit_code) << c.line << ": " << outcome.err;
    EXPECT_TRUE(absl::StrContains(outcome.err, c.part)) << c.line << ": " << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << c.line << ": " << outcome.err;
  }
}

TEST_F(SubspaceCliTest, TheClientReadsRanges) {
  const auto client = server_->Connect();
  const auto range = client->Reconstruct({"m", "s"}, 0, 1, 100, 140);
  ASSERT_TRUE(range.ok()) << range.status();
  EXPECT_EQ(range->positions.size(), 40u);
  EXPECT_EQ(range->positions[3], 103);
  const auto rows = client->Gather({"m", "s"}, 0, 1, range->positions, true, true);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(range->rows.keys, rows->keys);
  EXPECT_EQ(range->rows.values, rows->values);
  EXPECT_EQ(client->Reconstruct({"m", "s"}, 0, 1, 0, kStreamed + 1).status().code(), absl::StatusCode::kOutOfRange);
  auto layer = client->GetBasis({"m", "s"}, 0);
  ASSERT_TRUE(layer.ok());
  layer->bases.keys.pop_back();
  EXPECT_EQ(client->LoadBasis({"m", "s"}, 0, layer->bases).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client->GetIndex("m")->spec().subspace().frame(), v1::KEY_FRAME_PRE_ROPE);
  EXPECT_EQ(client->DescribeHead({"m", "s"}, 0, 0)->subspace->low_rank_tokens, 192);
  EXPECT_FALSE(client->DescribeHead({"plain", "s"}, 0, 0)->subspace);
}

}  // namespace
}  // namespace seine
