// `seine calibrate` and `seine profile show`: from traces to a profile and its figures, with no server anywhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "profile/io/tensor_writer.h"
#include "profile/moments.h"
#include "profile/profile.h"
#include "tests/client/process.h"

namespace seine {
namespace {

using Json = nlohmann::json;
using Metadata = std::vector<std::pair<std::string, std::string>>;

constexpr int kQ = 4, kKv = 2, kDim = 16;
constexpr char kRope[] = R"({"rope_theta": 10000.0, "rope_type": "default"})";

struct TraceSpec {
  std::vector<int> layers = {0, 1};
  int64_t tokens = 300, queries = 40;
  uint32_t seed = 1;
  Metadata metadata = {{"model", "m"}, {"text", "one"}, {"licence", "free"}, {"rope", kRope}};
  float scale = 1;
  std::string without;  // a tensor to leave out
};

std::vector<float> Rows(int64_t count, uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(.3f, 1);
  std::vector<float> out(count);
  for (float& value : out) value = scale * normal(random);
  return out;
}

uint32_t SeedOf(const TraceSpec& spec, int layer, char kind) { return spec.seed * 1000 + layer * 10 + kind; }

class ProfileCliTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const TraceSpec& spec) {
    std::vector<OutputTensor> tensors;
    for (const int layer : spec.layers) {
      for (const char kind : {'q', 'k', 'v'}) {
        const int64_t count = kind == 'q' ? spec.queries : spec.tokens, heads = kind == 'q' ? kQ : kKv;
        const std::vector<float> rows = Rows(count * heads * kDim, SeedOf(spec, layer, kind), spec.scale);
        const std::string tensor = absl::StrCat("layers.", layer, ".", std::string(1, kind));
        if (tensor == spec.without) continue;
        tensors.push_back({tensor,
                           TensorFile::Type::kF32,
                           {count, heads, kDim},
                           std::string(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(float))});
      }
    }
    EXPECT_TRUE(WriteTensors(tensors, spec.metadata, folder_.Path(name)).ok());
    return folder_.Path(name);
  }

  // `line`: arguments with spaces between; % stands for the test's folder. There is no server.
  Outcome Seine(const std::string& line) {
    std::vector<std::string> arguments = {SEINE_PROGRAM};
    const std::vector<std::string> parts = absl::StrSplit(line, ' ', absl::SkipEmpty());
    for (std::string argument : parts) {
      const size_t at = argument.find('%');
      if (at != std::string::npos) argument.replace(at, 1, folder_.Path(""));
      arguments.push_back(argument);
    }
    return RunProgram(arguments, {"SEINE_SERVER=unix://" + folder_.Path("no.sock")});
  }

  Json SeineJson(const std::string& line) {
    const Outcome outcome = Seine(line + " -o json");
    EXPECT_EQ(outcome.exit_code, 0) << line << ": " << outcome.err;
    EXPECT_EQ(outcome.err, "") << line;
    return Json::parse(outcome.out, nullptr, false);
  }

  void ExpectError(const std::string& line, int exit_code, const std::string& part) {
    const Outcome outcome = Seine(line);
    EXPECT_EQ(outcome.exit_code, exit_code) << line << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "") << line;
    EXPECT_TRUE(absl::StartsWith(outcome.err, "seine: error: ")) << line << ": " << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << line << ": " << outcome.err;
    EXPECT_TRUE(absl::StrContains(outcome.err, part)) << line << ": " << outcome.err;
  }

  TempFolder folder_;
};

TEST_F(ProfileCliTest, CalibrateMeasuresWhatTheBuilderDoes) {
  TraceSpec one, two;
  two.seed = 2;
  two.tokens = 5000;  // read in more than one piece
  two.metadata = {{"model", "m"},
                  {"text", "two"},
                  {"rope", R"({"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0})"},
                  {"num_layers", "2"},
                  {"query_start", "100"}};
  Write("one", one);
  Write("two", two);
  const Json json = SeineJson("calibrate --trace %two --trace %one --out %p --fp32 --sink 20");
  EXPECT_EQ(json["model"], "m");
  EXPECT_EQ(json["texts"], Json({"two", "one"}));
  EXPECT_EQ(json["licence"], "unstated; free");
  EXPECT_EQ(json["rope"], kRope);  // the one that is not stretched
  EXPECT_EQ(json["num_layers"], 2);
  EXPECT_EQ(json["key_tokens"], 280 + 4980);
  EXPECT_EQ(json["query_tokens"], 80);
  EXPECT_EQ(json["dtype"], "fp32");

  ProfileBuilder builder(2, kQ, kKv, kDim);
  for (const TraceSpec* spec : {&two, &one}) {
    const std::string rope_json = spec == &one ? kRope : spec->metadata[2].second;
    const Rope rope = ParseRope(rope_json, kDim, Rope::Style::kHalfSplit, 1).value();
    for (const int layer : {0, 1}) {
      const auto rows = [&](char kind, int64_t count) { return Rows(count, SeedOf(*spec, layer, kind), 1); };
      const std::vector<float> keys = rows('k', spec->tokens * kKv * kDim), values = rows('v', keys.size());
      builder.AddKeys(layer, keys.data() + 20 * kKv * kDim, spec->tokens - 20, 20, rope);
      builder.AddValues(layer, values.data() + 20 * kKv * kDim, spec->tokens - 20);
      builder.AddQueries(layer, rows('q', 40 * kQ * kDim).data(), 40, spec == &one ? 260 : 100, rope);
    }
  }
  const Profile expected = builder.Finish().value();
  const absl::StatusOr<Profile> profile = ReadProfile(folder_.Path("p"));
  ASSERT_TRUE(profile.ok()) << profile.status();
  ASSERT_TRUE(CheckGeometry(*profile, 2, kQ, kKv, kDim).ok());
  const LayerProfile &got = profile->layers[1], &wanted = expected.layers[1];
  EXPECT_LT((got.q_moment[3] - wanted.q_moment[3]).norm(), 1e-5);
  EXPECT_LT((got.k_mean[1] - wanted.k_mean[1]).norm(), 1e-5);
  EXPECT_LT((got.k_moment[1] - wanted.k_moment[1]).norm(), 1e-5);
  EXPECT_LT((got.k_residual[1] - wanted.k_residual[1]).norm(), 1e-5);
  EXPECT_LT((got.v_moment[0] - wanted.v_moment[0]).norm(), 1e-5);
}

TEST_F(ProfileCliTest, ShowsAProfile) {
  TraceSpec even, odd;  // layers may come from different files
  even.layers = {0, 2};
  odd.layers = {1};
  Write("even", even);
  Write("odd", odd);
  const Outcome made = Seine("calibrate --trace %even --trace %odd --out %p --licence mine");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_TRUE(absl::StrContains(made.out, "/p (")) << made.out;
  EXPECT_TRUE(absl::StrContains(made.out, "284 keys and 40 queries a layer")) << made.out;

  const Json json = SeineJson("profile show %p --horizon 1000 --coarse-bits .5");
  EXPECT_EQ(json["licence"], "mine");
  EXPECT_TRUE(absl::StartsWith(json["checksum"].get<std::string>(), "crc32:")) << json["checksum"];
  EXPECT_EQ(json["horizon"], 1000);
  ASSERT_EQ(json["heads"].size(), 3u * kKv);
  for (const Json& head : json["heads"]) {
    const auto coarse = head["coarse_bits"].get<std::vector<int>>(), total = head["total_bits"].get<std::vector<int>>();
    ASSERT_EQ(coarse.size(), size_t{kDim});
    EXPECT_EQ(std::accumulate(coarse.begin(), coarse.end(), 0), kDim / 2);
    EXPECT_EQ(std::accumulate(total.begin(), total.end(), 0), 2 * kDim);
    EXPECT_LE(head["top_1"], head["top_4"]);
    EXPECT_NEAR(head["top_16"].get<double>(), 1, 1e-9);
    EXPECT_GT(head["effective_rank"], 1);
    EXPECT_LE(head["effective_rank"], kDim);
  }
  EXPECT_EQ(SeineJson("profile show %p --layer 2")["heads"][1]["layer"], 2);
  const Outcome text = Seine("profile show %p --layer 1");
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_TRUE(absl::StrContains(text.out, "LAYER  KV HEAD")) << text.out;
  EXPECT_TRUE(absl::StrContains(text.out, "3, of 4 query heads, 2 KV heads, head_dim 16")) << text.out;
}

TEST_F(ProfileCliTest, RopeMayBeUnstated) {
  TraceSpec spec;
  spec.metadata = {{"model", "m"}, {"rope", "null"}};
  Write("t", spec);
  EXPECT_EQ(SeineJson("calibrate --trace %t --out %p")["rope"], Json());
  EXPECT_TRUE(absl::StrContains(Seine("profile show %p").out, "not stated: moments as observed"));
}

TEST_F(ProfileCliTest, ErrorsAreOneLineWithAnExitCodeOfTheirClass) {
  const auto with = [](const Metadata& metadata) {
    TraceSpec spec;
    for (const auto& entry : metadata) {
      const auto at = std::find_if(spec.metadata.begin(), spec.metadata.end(),
                                   [&](const auto& known) { return known.first == entry.first; });
      if (at != spec.metadata.end()) spec.metadata.erase(at);
      spec.metadata.push_back(entry);
    }
    return spec;
  };
  TraceSpec gaps, short_text, huge, nan, no_values;
  gaps.layers = {1, 4, 5};
  short_text.tokens = 70;
  huge.scale = 1e3f;
  nan.scale = std::nanf("");
  no_values.without = "layers.1.v";
  TraceSpec gaps_of_8 = gaps;
  gaps_of_8.metadata.push_back({"num_layers", "8"});
  Write("t", {});
  Write("gaps", gaps);
  Write("gaps_of_8", gaps_of_8);
  Write("short", short_text);
  Write("huge", huge);
  Write("nan", nan);
  Write("no_values", no_values);
  Write("other", with({{"model", "n"}}));
  Write("bad_rope", with({{"rope", R"({"rope_theta": 1e4, "rope_type": "ntk"})"}}));
  Write("no_rope", with({{"rope", "null"}}));
  Write("bad_layer_ropes", with({{"layer_ropes", R"([{"layers": [2], "rope": {"rope_type": "none"}}])"}}));
  Write("other_ropes", with({{"layer_ropes", R"([{"layers": [1], "rope": {"rope_type": "none"}}])"}}));
  Write("bad_style", with({{"rope_style", "unknown"}}));
  Write("bad_start", with({{"query_start", "290"}}));
  Write("bad_layers", with({{"num_layers", "1"}}));
  TraceSpec none;
  none.layers = {};
  Write("none", none);
  folder_.Write("foreign", "this is no tensor file at all");
  ASSERT_EQ(Seine("calibrate --trace %t --out %p").exit_code, 0);
  const struct {
    std::string line;
    int exit_code;
    const char* part;
  } cases[] = {
      {"calibrate --out %x", 2, "--trace, or --index and --sequence, is required"},
      {"calibrate --trace %t", 2, "--out is required"},
      {"calibrate --trace %t --out %x --sink -1", 2, "--sink"},
      {"calibrate --trace %missing --out %x", 3, "missing: No such file or directory"},
      {"calibrate --trace %foreign --out %x", 3, "foreign: neither a safetensors nor a .npy file"},
      {"calibrate --trace %none --out %x", 3, "none: not a trace: it holds no tensor layers.<l>.k"},
      {"calibrate --trace %gaps --out %x", 3, "the traces hold none of 0 2-3"},
      {"calibrate --trace %gaps_of_8 --out %x", 3, "the traces hold none of 0 2-3 6-7 (of 8)"},
      {"calibrate --trace %no_values --out %x", 3, "no_values: tensor layers.1.v is missing"},
      {"calibrate --trace %t --trace %other --out %x", 3, "model is 'n', not 'm'"},
      {"calibrate --trace %t --trace %no_rope --out %x", 3, "rope is 'not stated', not 'stated'"},
      {"calibrate --trace %bad_rope --out %x", 3, "rope.rope_type: must be default"},
      {"calibrate --trace %bad_layer_ropes --out %x", 3, "layer_ropes: layer 2: the model has 2 layers"},
      {"calibrate --trace %t --trace %other_ropes --out %x", 3, R"(layer_ropes is '[{"layers":[1],)"},
      {"calibrate --trace %bad_style --out %x", 3, "rope_style: must be half_split or interleaved, not 'unknown'"},
      {"calibrate --trace %bad_start --out %x", 3, "query_start: '290' does not place 40 queries in 300 tokens"},
      {"calibrate --trace %bad_layers --out %x", 3, "num_layers: '1' is no number of layers of which 1 is one"},
      {"calibrate --trace %nan --out %x", 3, "tensor layers.0.k: holds a value that is not finite"},
      {"calibrate --trace %short --out %x", 3, "layer 0 has no whole windows of 64 keys beyond the first 16 tokens"},
      {"calibrate --trace %huge --out %x", 3, "fp16 cannot; write fp32 (--fp32)"},
      {"calibrate --trace %t --out %no/x", 3, "No such file or directory"},
      {"profile show", 2, "FILE is required"},
      {"profile show %missing", 3, "No such file or directory"},
      {"profile show %t", 3, "t: not a profile"},
      {"profile show %p --layer 2", 2, "--layer: 2 is not in [0, 2)"},
      {"profile show %p --layer -1", 2, "--layer: -1 is not in [0, 2)"},
      {"profile show %p --horizon 0", 2, "--horizon"},
      {"profile show %p --coarse-bits .75", 2, "--coarse-bits: must be .5, 1 or 2, not 0.75"},
      {"profile show %p --total-bits 5", 2, "--total-bits: must be above coarse_bits"},
  };
  for (const auto& test : cases) ExpectError(test.line, test.exit_code, test.part);
  EXPECT_FALSE(std::filesystem::exists(folder_.Path("x")));
  EXPECT_EQ(Seine("calibrate --trace %huge --out %x --fp32").exit_code, 0);
}

// A layer that does not turn is measured as it is, one whose heads turn in part by that part, and the file says so.
TEST_F(ProfileCliTest, LayersAreMeasuredAsTheyTurn) {
  TraceSpec spec;
  const std::string part = R"({"rope_theta": 10000.0, "partial_rotary_factor": 0.5})";
  spec.metadata = {{"model", "m"},
                   {"rope", part},
                   {"rope_style", "interleaved"},
                   {"layer_ropes", R"([{"layers": [1], "rope": {"rope_type": "none"}}])"}};
  Write("t", spec);
  const Json json = SeineJson("calibrate --trace %t --out %p --fp32");
  EXPECT_EQ(json["layer_ropes"], R"([{"layers":[1],"rope":{"rope_type":"none"}}])");
  const auto profile = ReadProfile(folder_.Path("p"));
  ASSERT_TRUE(profile.ok()) << profile.status();
  for (const int layer : {0, 1}) {
    const std::vector<float> keys = Rows(300 * kKv * kDim, SeedOf(spec, layer, 'k'), 1);
    Eigen::MatrixXd want = Eigen::MatrixXd::Zero(kDim, kDim);
    for (int n = 16; n < 300; ++n) {
      Eigen::VectorXd x = Eigen::Map<const Eigen::VectorXf>(keys.data() + n * kKv * kDim, kDim).cast<double>();
      for (int i = 0; i < kDim / 4 && layer == 0; ++i) {  // neighbours among the first half, back by hand
        const double angle = -n * std::pow(10000.0, -2.0 * i / (kDim / 2.0)), a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * std::cos(angle) - b * std::sin(angle);
        x[2 * i + 1] = a * std::sin(angle) + b * std::cos(angle);
      }
      want += x * x.transpose() / (300 - 16);
    }
    EXPECT_LT((profile->layers[layer].k_moment[0] - want).norm(), 1e-5 * want.norm()) << layer;
  }
  const Outcome shown = Seine("profile show %p");
  EXPECT_TRUE(absl::StrContains(shown.out, "; layers 1 do not turn")) << shown.out << shown.err;
}

// Without its descriptors a program would open its files as 0, 1 and 2, and print into them.
TEST_F(ProfileCliTest, NothingIsPrintedIntoAProfile) {
  const std::string trace = Write("t", {}), closed = folder_.Path("closed"), open = folder_.Path("open");
  const auto bytes = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  ASSERT_EQ(Seine("calibrate --trace %t --out %open").exit_code, 0);
  const std::string line = "exec \"$0\" calibrate --trace \"$1\" --out \"$2\" <&- >&- 2>&-";
  EXPECT_EQ(RunProgram({"/bin/sh", "-c", line, SEINE_PROGRAM, trace, closed}, {}).exit_code, 1);  // no stdout
  EXPECT_EQ(bytes(closed), bytes(open));
}

}  // namespace
}  // namespace seine
