// `seine-demo` over the committed trace of a real model, and its errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "profile/io/tensor_file.h"
#include "tests/client/process.h"

namespace seine {
namespace {

using Json = nlohmann::json;

// What parts of the attention over the trace's last `steps` tokens are covered, by the definition in double precision.
struct Covered {
  double dense = 0, exact = 0;
};

Covered CoveredByDefinition(int steps, int top_k) {
  const auto file = TensorFile::Open(SEINE_TRACE);
  EXPECT_TRUE(file.ok()) << file.status();
  Covered covered;
  int64_t queries = 0;
  for (const int layer : {4, 15, 26}) {
    const auto keys = file->Get(absl::StrCat("layers.", layer, ".k")),
               asked = file->Get(absl::StrCat("layers.", layer, ".q"));
    const std::vector<float> k = *TensorFile::ToFloat32(*keys), q = *TensorFile::ToFloat32(*asked);
    const int64_t n = keys->shape[0], kv_heads = keys->shape[1], dim = keys->shape[2], heads = asked->shape[1];
    for (int64_t held = n - steps + 1; held <= n; ++held) {
      const int64_t row = asked->shape[0] - (n - held) - 1;
      const int64_t zone_end = 16 + (held - 16 - 512) / 64 * 64;  // sink 16, local 512, encoded 64 at a time
      for (int64_t h = 0; h < heads; ++h) {
        double dense = 0;
        std::vector<double> zone;
        for (int64_t token = 0; token < held; ++token) {
          double logit = 0;
          const float* key = k.data() + (token * kv_heads + h / (heads / kv_heads)) * dim;
          for (int64_t d = 0; d < dim; ++d) logit += double{q[(row * heads + h) * dim + d]} * key[d];
          const double weight = std::exp(logit / std::sqrt(static_cast<double>(dim)));
          token >= 16 && token < zone_end ? zone.push_back(weight) : void(dense += weight);
        }
        const double all = std::accumulate(zone.begin(), zone.end(), dense);
        std::partial_sort(zone.begin(), zone.begin() + top_k, zone.end(), std::greater<>());
        covered.dense += dense / all;
        covered.exact += std::accumulate(zone.begin(), zone.begin() + top_k, dense) / all;
        ++queries;
      }
    }
  }
  covered.dense /= static_cast<double>(queries);
  covered.exact /= static_cast<double>(queries);
  return covered;
}

TEST(Demo, SaysWhatRetrievalBuys) {
  Server server;
  const Outcome outcome = RunProgram(
      {SEINE_DEMO_PROGRAM, "--server", server.endpoint(), "--trace", SEINE_TRACE, "--steps", "8", "-o", "json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out, nullptr, false);
  ASSERT_TRUE(json.contains("attention_covered_sink_local")) << outcome.out;
  const Covered covered = CoveredByDefinition(8, 100);
  EXPECT_NEAR(json["attention_covered_sink_local"], covered.dense, 1e-4);
  EXPECT_NEAR(json["attention_covered_exact"], covered.exact, 1e-4);
  EXPECT_GT(json["attention_covered"], json["attention_covered_sink_local"]);
  EXPECT_LE(json["attention_covered"], json["attention_covered_exact"]);
  EXPECT_GT(json["dense_attention_p50_us"], 0);
  EXPECT_GT(json["seine_attention_p50_us"], 0);
  EXPECT_EQ(json["head_dim"], 64);
  EXPECT_NEAR(json["bytes_per_key_with_store"], json["bytes_per_key"].get<double>() + 128, 1e-9);  // 64 halves
  EXPECT_TRUE(server.Connect()->ListIndexes()->empty());
}

TEST(Demo, AnswersARealModelsDecode) {
  Server server;
  for (const char* transport : {"blocking", "polling"}) {
    const Outcome outcome = RunProgram({SEINE_DEMO_PROGRAM, "--server", server.endpoint(), "--trace", SEINE_TRACE,
                                        "--steps", "24", "--transport", transport, "-o", "json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Json json = Json::parse(outcome.out, nullptr, false);
    ASSERT_TRUE(json.is_object()) << outcome.out;
    EXPECT_GE(json["recall_at_k"], 0.95);
    EXPECT_GE(json["attention_mass"], 0.985);
    EXPECT_LE(json["attention_mass"], 1.0);
    EXPECT_GT(json["attention_covered"], 0.9);
    EXPECT_GT(json["recall_at_k"], json["recall_at_k_worst_head"]);
    EXPECT_EQ(json["num_queries"], 24 * 3 * 9);
    EXPECT_GT(json["step_p50_us"], 0);
    EXPECT_GT(json["layer_p50_us"], json["server_p50_us"]);
    EXPECT_EQ(json["full_cache_bytes"], 2 * 2 * 3 * 8192 * 3 * 64);
    EXPECT_LT(json["code_bytes"], json["full_cache_bytes"].get<int64_t>() / 4);
    EXPECT_LT(json["bytes_per_key"], 48);
  }
  EXPECT_TRUE(server.Connect()->ListIndexes()->empty());  // it cleans up
  const Outcome text =
      RunProgram({SEINE_DEMO_PROGRAM, "--server", server.endpoint(), "--trace", SEINE_TRACE, "--steps", "2"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* part :
       {"recall@100", "attention mass", "decode step", "bytes a key", "of the full fp16 cache", "sink + local alone",
        "with Seine", "with the exact top 100", "dense attention", "What Seine finds (head_dim 64)",
        "Memory (head_dim 64)", "kept for refine", "codes + keys"}) {
    EXPECT_TRUE(absl::StrContains(text.out, part)) << text.out;
  }
  EXPECT_FALSE(absl::StrContains(text.out, "nan")) << text.out;
}

TEST(Demo, ErrorsAreOneLine) {
  TempFolder folder;
  std::ifstream whole(SEINE_TRACE, std::ios::binary);
  std::string half(10 << 20, '\0');
  whole.read(half.data(), half.size());
  folder.Write("torn", half);
  folder.Write("foreign", "no trace at all, but text");
  const std::string header = R"({"x":{"dtype":"F16","shape":[0],"data_offsets":[0,0]}})";
  folder.Write("other", std::string("\x36\0\0\0\0\0\0\0", 8) + header);
  ASSERT_EQ(header.size(), 0x36u);
  const std::string nowhere = "unix://" + folder.Path("no.sock");
  const struct {
    std::vector<std::string> arguments;
    int exit_code;
    const char* part;
  } cases[] = {
      {{}, 2, "--trace is required"},
      {{"--trace", SEINE_TRACE, "--transport", "telepathy"}, 2, "--transport"},
      {{"--trace", folder.Path("missing")}, 3, "missing: No such file or directory"},
      {{"--trace", folder.Path("torn")}, 3, "torn: cut short"},
      {{"--trace", folder.Path("foreign")}, 3, "foreign: neither a safetensors nor a .npy file"},
      {{"--trace", folder.Path("other")}, 3, "other: not a trace"},
      {{"--trace", SEINE_TRACE, "--wait", "0.2", "--server", nowhere}, 4, "no server at"},
  };
  for (const auto& test : cases) {
    std::vector<std::string> arguments = {SEINE_DEMO_PROGRAM};
    arguments.insert(arguments.end(), test.arguments.begin(), test.arguments.end());
    const Outcome outcome = RunProgram(arguments);
    EXPECT_EQ(outcome.exit_code, test.exit_code) << outcome.err;
    EXPECT_TRUE(absl::StartsWith(outcome.err, "seine-demo: error: ")) << outcome.err;
    EXPECT_TRUE(absl::StrContains(outcome.err, test.part)) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
  Server server;
  const Outcome steps =
      RunProgram({SEINE_DEMO_PROGRAM, "--server", server.endpoint(), "--trace", SEINE_TRACE, "--steps", "513"});
  EXPECT_NE(steps.exit_code, 0);
  EXPECT_TRUE(absl::StrContains(steps.err, "--steps: 513 is not in [1, 512]")) << steps.err;
}

}  // namespace
}  // namespace seine
