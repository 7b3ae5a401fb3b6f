// seine-bench subspace: the JSON contract, the figures' floors on the committed trace and on a drift, and wrong flags.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "bench/measures/attention_probe.h"
#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

using Json = nlohmann::json;

// The JSON keys are a contract.
constexpr const char* kSubspaceContract[] = {"rer_static",  "rer_oja", "rer_oracle",   "overlap_static",
                                             "overlap_oja", "updates", "us_per_update"};

const std::string kSubspaceTrace = std::string("subspace --trace ") + SEINE_TRACE + " --num-queries 1 ";
const std::string kProfile = std::string("--profile ") + SEINE_TEST_PROFILE + " ";

const Json& Find(const Json& json, const std::string& stream, const std::string& method) {
  for (const Json& row : json["rows"]) {
    if (row["stream"] == stream && row["method"] == method) return row;
  }
  ADD_FAILURE() << stream << " " << method;
  return json["rows"][0];
}

TEST(SubspaceBench, TraceShowsWhatAdaptingGains) {
  const TestFolder folder;
  const ProgramRun run =
      RunBench(kSubspaceTrace + kProfile + "--layers 15 --rank 38 -o json --plot " + folder.File("plot.svg"));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json json = Json::parse(run.out);
  for (const char* key : kSubspaceContract) ASSERT_TRUE(json.contains(key) && json[key].is_number()) << key;
  const auto rer = [&](const char* stream, const char* method) {
    return Find(json, stream, method)["rer"].get<double>();
  };
  EXPECT_EQ(json["rer_oja"], rer("keys_post_rope", "oja_32"));
  for (const auto& [stream, share] : {std::pair{"keys_post_rope", .5}, std::pair{"values", .75}}) {
    const double gap = rer(stream, "static") - rer(stream, "oracle");
    EXPECT_GT(rer(stream, "static") - rer(stream, "oja_32"), share * gap) << stream;
  }
  EXPECT_LT(rer("keys_pre_rope", "oja_32"), rer("keys_post_rope", "oja_32"));  // rank 20 against 38
  EXPECT_EQ(Find(json, "keys_pre_rope", "static")["rank"], 20);
  EXPECT_LT(Find(json, "keys_post_rope", "triggered")["updates"], 128);
  EXPECT_LT(rer("keys_post_rope", "triggered"), 1.02 * rer("keys_post_rope", "oja_32"));
  EXPECT_GT(json["overlap_oja"], json["overlap_static"]);
  const Json& pre = Find(json, "keys_pre_rope", "oja_32");
  EXPECT_LT(pre["hybrid_error"], pre["attention_error"]);
  EXPECT_LT(pre["attention_error"], Find(json, "keys_pre_rope", "static")["attention_error"]);
  EXPECT_TRUE(Find(json, "values", "static")["attention_error"].is_null());
  EXPECT_NE(ReadFile(folder.File("plot.svg")).find("triggered"), std::string::npos);
}

TEST(SubspaceBench, StorageIsSmallerByBothAndErrsLittleMore) {
  const ProgramRun run =
      RunBench(kSubspaceTrace + kProfile +
               "--layers 15 --rank 38 --evict keydiff --keep .5 --local 256 --full-rank .02 -o json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json json = Json::parse(run.out);
  ASSERT_EQ(json["rows"].size(), 6u);
  const auto row = [&](const char* frame, bool evicted) {
    for (const Json& each : json["rows"]) {
      const bool same = frame == nullptr ? each["frame"].is_null() : each["frame"] == frame;
      if (same && each["evicted"] == evicted) return each;
    }
    ADD_FAILURE() << "no such row";
    return json["rows"][0];
  };
  EXPECT_LT(row(nullptr, false)["attention_error"].get<double>(), 1e-5);
  EXPECT_GE(row(nullptr, false)["bytes"].get<double>(), 1);
  for (const char* frame : {"post_rope", "pre_rope"}) {
    const Json alone = row(frame, false), both = row(frame, true);
    EXPECT_NEAR(both["tokens"].get<double>(), .5, .001);
    EXPECT_EQ(alone["tokens"], 1);
    // The codes, and 8 % of all tokens' rows for sink, local and kept tokens, bases and checksums.
    const double codes = (alone["key_rank"].get<double>() + 38) / 128;
    EXPECT_LT(alone["bytes"].get<double>(), codes + .09) << frame;
    EXPECT_LT(both["bytes"].get<double>(), codes / 2 + .09) << frame;
    EXPECT_LT(both["attention_error"].get<double>(),
              alone["attention_error"].get<double>() + row(nullptr, true)["attention_error"].get<double>());
  }
  EXPECT_LT(row("pre_rope", true)["bytes"].get<double>(), .32);
}

TEST(SubspaceBench, OjakvsPipelineIsMeasuredAtEqualBytes) {
  const ProgramRun run =
      RunBench(kSubspaceTrace + kProfile +
               "--layers 4 --rank 38 --full-rank .02 --ojakv --methods asked,plain,moment,queries,paper "
               "--full-rank-queries 32 -o json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json json = Json::parse(run.out);
  ASSERT_EQ(json["rows"].size(), 10u);
  for (const char* frame : {"post_rope", "pre_rope"}) {
    const auto row = [&](const std::string& method) {
      for (const Json& each : json["rows"]) {
        if (each["frame"] == frame && each["method"] == method) return each;
      }
      ADD_FAILURE() << method;
      return json["rows"][0];
    };
    const auto error = [&](const char* method) { return row(method)["attention_error"].get<double>(); };
    const auto mass = [&](const char* method) { return row(method)["mass"].get<double>(); };
    EXPECT_NEAR(row("plain")["bytes"].get<double>(), row("moment")["bytes"].get<double>(), .01);
    EXPECT_LT(error("moment"), error("plain"));
    EXPECT_GT(mass("moment"), mass("plain"));
    EXPECT_EQ(row("asked"), [&] {
      Json same = row("queries");
      same["method"] = "asked";
      return same;
    }());  // what the flags ask is what that row has
    EXPECT_EQ(row("queries")["blocks_without_queries"], 0);
    EXPECT_LT(row("paper")["updates"], row("queries")["updates"]);
    EXPECT_GT(error("paper"), error("queries"));
    EXPECT_LE(mass("queries"), 1);
  }
}

TEST(SubspaceBench, DriftIsFollowed) {
  const ProgramRun run = RunBench("subspace --synthetic drift --num-keys 8192 --head-dim 128 --rank 76 -o json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json json = Json::parse(run.out);
  EXPECT_EQ(json["synthetic"], true);
  EXPECT_LT(json["rer_oja"].get<double>(), .5 * json["rer_static"].get<double>());
  EXPECT_LT(json["rer_oja"].get<double>(), 1.5 * json["rer_oracle"].get<double>());
  const Json& triggered = Find(json, "keys_post_rope", "triggered");
  EXPECT_LT(triggered["rer"].get<double>(), 1.05 * json["rer_oja"].get<double>());
  EXPECT_LT(triggered["updates"], json["updates"]);
  EXPECT_EQ(Find(json, "keys_post_rope", "oja_128")["updates"], 32);
  EXPECT_GE(Find(json, "keys_post_rope", "static")["rer_over_time"].size(), 64u);
}

TEST(SubspaceBench, TableNamesEveryMethod) {
  const ProgramRun run = RunBench("subspace --synthetic rope --num-keys 1024 --head-dim 64 --rank 16");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const char* word : {"static", "pca_prefill", "oja_batch", "oja_32", "triggered", "oracle", "keys_pre_rope"}) {
    EXPECT_NE(run.out.find(word), std::string::npos) << word;
  }
}

TEST(SubspaceBench, WrongFlagsAreOneLineEach) {
  const std::string drift = "subspace --synthetic drift --num-keys 1024 --head-dim 64 ";
  const struct {
    std::string arguments;
    const char* named;
  } kCases[] = {{kSubspaceTrace, "--profile"},
                {drift + kProfile, "--profile"},
                {drift + "--rank 0", "--rank"},
                {drift + "--rank 65", "--rank"},
                {drift + "--pre-rope-rank 65", "--pre-rope-rank"},
                {drift + "--prefill 1024", "--prefill"},
                {drift + "--prefill 0", "--prefill"},
                {drift + "--carried-to -1", "--carried-to"},
                {drift + "--trigger 0", "--trigger"},
                {drift + "--full-rank 2", "--full-rank"},
                {drift + "--num-queries 0", "--num-queries"},
                {drift + "--learning-rate 0", "--learning_rate"},
                {drift + "--frame pre_rope", "--frame"},
                {drift + "--evict keydiff", "--evict"},
                {kSubspaceTrace + kProfile + "--evict keydiff --keep .05", "--keep"},
                {kSubspaceTrace + kProfile + "--evict none", "--evict"},
                {drift + "--ojakv", "--ojakv"},
                {kSubspaceTrace + kProfile + "--ojakv --evict keydiff", "--ojakv"},
                {kSubspaceTrace + kProfile + "--ojakv --local 32", "--trace"},
                {kSubspaceTrace + kProfile + "--interval 257", "--interval"},
                {kSubspaceTrace + kProfile + "--ojakv --key-ranks 20,30", "--key-ranks"},
                {kSubspaceTrace + kProfile + "--ojakv --key-ranks 20,30,65", "--key-ranks"},
                {kSubspaceTrace + kProfile + "--ojakv --full-rank-pool 2", "--full_rank_pool"},
                {kSubspaceTrace + kProfile + "--ojakv --prompt-learning-rate nan", "--prompt_learning_rate"},
                {kSubspaceTrace + kProfile + "--ojakv --full-rank 1", "--full-rank"},
                {"subspace", "--trace"}};
  for (const auto& c : kCases) {
    const ProgramRun run = RunBench(c.arguments);
    EXPECT_EQ(run.exit_code, 2) << c.arguments;
    EXPECT_NE(run.err.find(c.named), std::string::npos) << run.err;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
}

TEST(AttentionProbe, LosslessRowsErrNothingAndTheTopTokensComeBack) {
  DatasetInfo info;
  info.group = 2;
  info.head_dim = 16;
  info.num_positions = 8;
  Head head;
  head.num_tokens = 64;
  head.zone_begin = 4;
  head.zone_end = 56;
  std::vector<float> values(64 * 16);
  head.keys.resize(values.size());
  head.queries.resize(8 * 2 * 16);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 37) - 18, head.keys[i] = .1f * (i % 23);
  for (size_t i = 0; i < head.queries.size(); ++i) head.queries[i] = .1f * static_cast<float>(i % 11);
  const AttentionProbe probe(info, head, values, 3);
  EXPECT_EQ(probe.Error(head.keys, values), 0);
  std::vector<float> keys(values.size()), lost(values.size());
  EXPECT_GT(probe.Error(keys, lost), .9);  // of nothing but zeros
  probe.RestoreDense(&keys, &lost);
  EXPECT_TRUE(std::equal(keys.begin(), keys.begin() + 4 * 16, head.keys.begin()));
  EXPECT_TRUE(std::equal(lost.begin() + 56 * 16, lost.end(), values.begin() + 56 * 16));
  EXPECT_EQ(lost[10 * 16], 0);
  probe.RestoreTop(1, &keys, &lost);
  EXPECT_EQ(probe.Error(keys, lost), 0);
  // Rows of some tokens alone: all of them err nothing, half of them something.
  std::vector<int32_t> all(64), half(32);
  std::iota(all.begin(), all.end(), 0);
  std::iota(half.begin(), half.end(), 0);
  EXPECT_EQ(probe.Error(all, head.keys, values), 0);
  EXPECT_GT(
      probe.Error(half, {head.keys.begin(), head.keys.begin() + 32 * 16}, {values.begin(), values.begin() + 32 * 16}),
      0);
}

}  // namespace
}  // namespace seine::bench
