// `seine-demo` over the committed trace of a real model, and its errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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

// The demo of few steps. `long_tokens` "0": attention is timed at the trace's length alone.
Outcome Demo(const Server& server, const std::vector<std::string>& more, const std::string& long_tokens = "0") {
  std::vector<std::string> arguments = {SEINE_DEMO_PROGRAM, "--server", server.endpoint(), "--trace",  SEINE_TRACE,
                                        "--steps",          "8",        "--long-tokens",   long_tokens};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunProgram(arguments);
}

TEST(Demo, SaysWhatRetrievalBuys) {
  Server server;
  const Outcome outcome = Demo(server, {"-o", "json"});
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
  for (const char* transport : {"shm", "blocking", "polling"}) {
    const Outcome outcome = RunProgram({SEINE_DEMO_PROGRAM, "--server", server.endpoint(), "--trace", SEINE_TRACE,
                                        "--steps", "24", "--long-tokens", "0", "--transport", transport, "-o", "json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Json json = Json::parse(outcome.out, nullptr, false);
    ASSERT_TRUE(json.is_object()) << outcome.out;
    EXPECT_GE(json["recall_at_k"], 0.95);
    EXPECT_GE(json["attention_mass"], 0.985);
    EXPECT_LE(json["attention_mass"], 1.0);
    EXPECT_GT(json["attention_covered"], 0.9);
    EXPECT_GT(json["recall_at_k"], json["recall_at_k_worst_head"]);
    EXPECT_EQ(json["num_queries"], 24 * 3 * 9);
    EXPECT_EQ(json["transport"], transport);
    EXPECT_GT(json["step_p50_us"], 0);
    EXPECT_GT(json["layer_p50_us"], json["server_p50_us"]);
    EXPECT_EQ(json["full_cache_bytes"], 2 * 2 * 3 * 8192 * 3 * 64);
    EXPECT_LT(json["code_bytes"], json["full_cache_bytes"].get<int64_t>() / 4);
    EXPECT_LT(json["bytes_per_key"], 48);
  }
  EXPECT_TRUE(server.Connect()->ListIndexes()->empty());  // it cleans up
  const Outcome text = Demo(server, {});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* part :
       {"recall@100", "attention mass", "decode step", "bytes a key", "of the full fp16 cache", "sink + local alone",
        "with Seine", "with the exact top 100", "dense p50", "What Seine finds (head_dim 64)", "Memory (head_dim 64)",
        "kept for refine", "codes + keys", "over the same-host channel", "What you gain on this machine"}) {
    EXPECT_TRUE(absl::StrContains(text.out, part)) << text.out;
  }
  EXPECT_FALSE(absl::StrContains(text.out, "nan")) << text.out;
}

// Both sides attend as many tokens as they should: the numbers follow from the zones, sink 16 and local 512.
TEST(Demo, TimesAttentionAtGreaterLengths) {
  Server server;
  const Outcome outcome = Demo(server, {"-o", "json"}, "50000");  // six copies and a rest
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out, nullptr, false);
  ASSERT_TRUE(json.contains("attention_times")) << outcome.out;
  const Json& times = json["attention_times"];
  ASSERT_EQ(times.size(), 3u) << times;
  const int copies[] = {1, 4, 6};
  for (int i = 0; i < 3; ++i) {
    const Json& t = times[i];
    EXPECT_EQ(t["copies"], copies[i]);
    EXPECT_EQ(t["num_tokens"], 8192 * copies[i]);
    // Of eight steps the last seven are timed, which hold 6, 5, ... 0 tokens less than all.
    EXPECT_DOUBLE_EQ(t["dense_tokens"], 8192 * copies[i] - 3);
    EXPECT_GE(t["seine_tokens"], 16 + 512 + 100);
    EXPECT_LT(t["seine_tokens"], 16 + 512 + 64 + 100);
    for (const char* side : {"dense", "seine"}) {
      const double p50 = t[absl::StrCat(side, "_p50_us")], index = t[absl::StrCat(side, "_index_p50_us")];
      EXPECT_GT(index, 0);
      EXPECT_GT(p50, index);
      EXPECT_GE(t[absl::StrCat(side, "_p99_us")], p50);
    }
    const auto ratio = [&t](const char* dense, const char* seine) {
      return t[dense].get<double>() / t[seine].get<double>();
    };
    EXPECT_DOUBLE_EQ(t["speedup"],
                     std::min(ratio("dense_p50_us", "seine_p50_us"), ratio("dense_mean_us", "seine_mean_us")));
    EXPECT_GT(t["processor_share"], 0);
    EXPECT_LE(t["processor_share"], 1);
  }
  EXPECT_GT(times[2]["dense_index_p50_us"], times[0]["dense_index_p50_us"]);
  EXPECT_EQ(json["dense_attention_p50_us"], times[0]["dense_index_p50_us"]);
  EXPECT_EQ(json["seine_attention_p50_us"], times[0]["seine_index_p50_us"]);
  EXPECT_TRUE(server.Connect()->ListIndexes()->empty());
}

TEST(Demo, KeepsWhatItMeasuredWhereMemoryEnds) {
  Server server({"--memory-limit", "200MiB"});
  const Outcome outcome = Demo(server, {"-o", "json"}, "524288");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out, nullptr, false);
  ASSERT_GE(json["attention_times"].size(), 1u);
  EXPECT_LT(json["attention_times"].back()["num_tokens"], 524288);
  EXPECT_NE(json["attention_stopped"], "");
  EXPECT_TRUE(server.Connect()->ListIndexes()->empty());
}

TEST(Demo, GoesOverTheChannelWhereItCan) {
  Server server;
  const Json with = Json::parse(Demo(server, {"-o", "json"}).out, nullptr, false);
  ASSERT_TRUE(with.is_object());
  EXPECT_EQ(with["transport"], "shm");
  EXPECT_EQ(with["transport_fallback"], "");

  Server without({"--channels", "0"});
  const Json json = Json::parse(Demo(without, {"-o", "json"}).out, nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["transport"], "blocking");
  EXPECT_NE(json["transport_fallback"], "");
  const Outcome text = Demo(without, {});
  EXPECT_TRUE(absl::StrContains(text.out, "over gRPC (")) << text.out;
  EXPECT_FALSE(absl::StrContains(text.out, "over the same-host channel")) << text.out;
  const Outcome forced = Demo(without, {"--transport", "shm"});
  EXPECT_NE(forced.exit_code, 0);
  EXPECT_EQ(std::count(forced.err.begin(), forced.err.end(), '\n'), 1) << forced.err;
}

// Words of the help that look like keys, and keys of the output, are the same.
TEST(Demo, HelpExplainsEveryKey) {
  Server server;
  const Json json = Json::parse(Demo(server, {"-o", "json"}).out, nullptr, false);
  ASSERT_TRUE(json.is_object());
  std::set<std::string> keys, explained;
  for (const auto& item : json.items()) keys.insert(item.key());
  for (const auto& item : json["attention_times"][0].items()) keys.insert(item.key());
  const std::string help = RunProgram({SEINE_DEMO_PROGRAM, "--help"}).out;
  const size_t begin = help.find("-o json prints"), end = help.find("Exit codes");
  ASSERT_LT(begin, end) << help;
  std::istringstream in(help.substr(begin, end - begin));
  for (std::string line; std::getline(in, line);) {
    if (!absl::StartsWith(line, "    ") || line[8] == ' ') continue;  // a line of explanation alone
    const size_t gap = line.find("  ", line.find_first_not_of(' '));
    for (const absl::string_view key : absl::StrSplit(line.substr(0, gap), absl::ByAnyChar(" ,"), absl::SkipEmpty()))
      explained.insert(std::string(key));
  }
  EXPECT_EQ(keys, explained);
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
      {{"--trace", SEINE_TRACE, "--long-tokens", "-1"}, 2, "--long-tokens"},
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
  for (const auto& [flag, value] :
       {std::pair{"--profile", "nope"}, {"--candidate-fraction", "3"}, {"--rescore-k", "-1"}}) {
    const Outcome refused = Demo(server, {flag, value});
    EXPECT_TRUE(absl::StartsWith(refused.err, absl::StrCat("seine-demo: error: ", flag, ": "))) << refused.err;
    const Json error = Json::parse(Demo(server, {flag, value, "-o", "json"}).err, nullptr, false);
    ASSERT_TRUE(error.contains("error")) << flag;
    EXPECT_EQ(error["error"]["flag"], flag);
    EXPECT_EQ(error["error"]["exit_code"], refused.exit_code);
  }
  const Outcome steps =
      RunProgram({SEINE_DEMO_PROGRAM, "--server", server.endpoint(), "--trace", SEINE_TRACE, "--steps", "513"});
  EXPECT_NE(steps.exit_code, 0);
  EXPECT_TRUE(absl::StrContains(steps.err, "--steps: 513 is not in [1, 512]")) << steps.err;
}

}  // namespace
}  // namespace seine
