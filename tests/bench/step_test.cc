// `seine-bench step`: break-even lies where the curves cross, what is printed holds, and wrong input is one line.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bench/inputs/head_profile.h"
#include "bench/measures/step.h"
#include "profile/moments.h"
#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

const std::string kStep = "step --kv-heads 2 --group 3 --head-dim 64 --repeat 2 --cache warm ";

// Rows of the lengths 1000, 2000, ... with these times of Retrieve, exact attention taking 10 each.
std::vector<StepRow> RowsOf(const std::vector<double>& retrieve) {
  std::vector<StepRow> rows;
  for (const double us : retrieve) {
    StepRow& row = rows.emplace_back();
    row.num_keys = 1000 * static_cast<int64_t>(rows.size());
    row.us = {us, 20, 10};
  }
  return rows;
}

TEST(BreakEvenTest, LiesWhereTheCurvesCrossForGood) {
  const auto at = [](const std::vector<double>& retrieve) {
    return FindBreakEven(RowsOf(retrieve), &StepFigures::retrieve);
  };
  ASSERT_TRUE(at({20, 5}).num_keys.has_value());
  EXPECT_NEAR(*at({20, 5}).num_keys, std::sqrt(1000. * 2000.), 1e-6);  // half-way in logarithms
  EXPECT_NEAR(*at({20, 5, 20, 5}).num_keys, std::sqrt(3000. * 4000.), 1e-6);
  EXPECT_TRUE(at({20, 5}).faster);
  EXPECT_FALSE(at({5, 4}).num_keys.has_value());
  EXPECT_TRUE(at({5, 4}).faster);
  EXPECT_FALSE(at({5, 20}).num_keys.has_value());
  EXPECT_FALSE(at({5, 20}).faster);
  EXPECT_FALSE(FindBreakEven(RowsOf({5}), &StepFigures::attend).faster);
}

TEST(OwnProfileTest, WindowsSpreadOverTheZoneStandForAll) {
  constexpr int kDim = 64, kKeys = 256;
  Head head;
  head.num_tokens = head.zone_end = kKeys;
  for (int t = 0; t < kKeys; ++t) {
    for (int j = 0; j < kDim; ++j) head.keys.push_back(static_cast<float>(t / kWindowTokens));  // 0, 1, 2, 3
  }
  head.own_queries.assign(kDim, 1);
  head.own_positions = {kKeys};
  const auto all = OwnProfile(head, kDim, {}), half = OwnProfile(head, kDim, {}, kKeys / 2);
  ASSERT_TRUE(all.ok() && half.ok());
  EXPECT_NEAR((*all)->layers[0].k_mean[0](0), 1.5, 1e-9);
  EXPECT_NEAR((*half)->layers[0].k_mean[0](0), 1, 1e-9);  // windows 0 and 2
}

TEST(StepCommandTest, JsonHoldsTheContract) {
  const TestFolder folder;
  const ProgramRun run = RunBench(kStep + "--num-keys 2048,512 --layers 2 -o json --plot " + folder.File("step.svg"));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  for (const char* key : {"break_even_keys", "break_even_side"}) {
    EXPECT_TRUE(json[key].contains("retrieve") && json[key].contains("attend")) << key;
  }
  EXPECT_GT(json["read_bandwidth_gb_s"], 0);
  EXPECT_EQ(json["synthetic"], true);
  EXPECT_EQ(json["num_q_heads"], 6);
  EXPECT_EQ(json["codec"], "balanced");
  for (const char* key : {"machine", "simd_target", "last_cache_bytes"}) EXPECT_TRUE(json.contains(key)) << key;
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][0]["num_keys"], 512);  // ascending
  EXPECT_EQ(json["rows"][1]["num_tokens"], 2048 + 128 + 512);
  for (const auto& row : json["rows"]) {
    for (const char* key : {"us_retrieve", "us_attend", "us_exact", "candidates", "exact_gb_s", "code_bytes"}) {
      EXPECT_GT(row[key], 0) << key;
    }
    for (const char* key : {"prepare", "scan", "select", "rerank", "refine", "other"}) {
      EXPECT_GE(row["stage_us"][key], 0) << key;
      EXPECT_LE(row["stage_us"][key], 2 * row["us_retrieve"].get<double>()) << key;
    }
    for (const char* key : {"search", "dense", "chosen", "tail", "softmax"}) {
      EXPECT_GT(row["attend_stage_us"][key], 0) << key;
      EXPECT_LE(row["attend_stage_us"][key], 2 * row["us_attend"].get<double>()) << key;
    }
    for (const char* call : {"retrieve", "attend", "exact"}) EXPECT_GT(row["floor_us"][call], 0) << call;
    EXPECT_EQ(row["bytes"]["exact"], 2. * 2 * 64 * 2 * row["num_tokens"].get<double>());
    EXPECT_GT(row["bytes"]["attend"], row["bytes"]["retrieve"]);
    EXPECT_GT(row["recall_at_k"], .9);
    EXPECT_LE(row["recall_at_k"], 1);
    EXPECT_EQ(row["rounds"], 2);
  }
  EXPECT_NE(ReadFile(folder.File("step.svg")).find("exact attention"), std::string::npos);
}

TEST(StepCommandTest, BytesAreThoseOfTheCodesAndTheRowsRead) {
  const ProgramRun run = RunBench(kStep + "--num-keys 4096 --beta 1 --top-k 4095 --refine 4096 --codec rsq -o json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto row = nlohmann::json::parse(run.out)["rows"][0];
  EXPECT_EQ(row["candidates"], 4096);
  EXPECT_GT(row["recall_at_k"], .9999);
  // Everything is scanned, reranked and refined: all codes and all keys; a code is less than half of a key.
  const double keys = 2. * 4096 * 64 * 2;
  EXPECT_GT(row["bytes"]["retrieve"], keys);
  EXPECT_LT(row["bytes"]["retrieve"], 1.5 * keys);
}

TEST(StepCommandTest, ATraceCutsLengthsToItsOwn) {
  const ProgramRun run = RunBench(std::string("step --trace ") + SEINE_TRACE +
                                  " --num-keys 2048,8192,16384 --scope kv_head --threads 2 --repeat 1 -o json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["synthetic"], false);
  EXPECT_EQ(json["num_kv_heads"], 3);
  EXPECT_EQ(json["scope"], "kv_head");
  EXPECT_EQ(json["cache"], "cold");
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][1]["num_keys"], (8192 - 128 - 512) / 64 * 64);
  for (const auto& row : json["rows"]) {
    EXPECT_GT(row["recall_at_k"], .95);
    EXPECT_TRUE(row["stage_us"]["other"].is_null());  // stages are sums over threads
    EXPECT_TRUE(row["attend_stage_us"]["search"].is_null());
  }
}

TEST(StepCommandTest, TheTableSaysWhereStepsBreakEven) {
  const ProgramRun run = RunBench(kStep + "--num-keys 512 --recall-target .9 --coarse-bits .5");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const char* part :
       {"synthetic: rope", "0.5+1.5 bits, own profile", "recall target 0.9", "GB/s", "last cache", "retrieve us",
        "attend us", "exact us", "recall@100", "rerank", "floor", "softmax", "\nretrieve: ", "\nattend: "}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << "\n" << run.out;
  }
}

TEST(StepCommandTest, WrongInputIsOneLine) {
  const std::string trace = std::string("step --repeat 1 --trace ") + SEINE_TRACE + " ";
  const std::pair<std::string, std::string> cases[] = {
      {kStep + "--num-keys 100", "--num-keys: 100 is no multiple of 64"},
      {kStep + "--num-keys 64", "--top-k: 100 is not less than the zone's 64 keys"},
      {kStep + "--num-keys 536870912", "--num-keys: 536870912 is more than 268435456"},
      {kStep + "--top-k 0", "--top-k: 0 is not in [1, 65536]"},
      {kStep + "--beta 2", "--candidate-fraction: "},
      {kStep + "--recall-target 1", "--recall-target: "},
      {kStep + "--codec rsq --recall-target .9", "--recall-target: the rsq code does not predict its noise"},
      {kStep + "--coarse-bits 3", "coarse_bits: 3 is none of 0.5, 1 and 2"},
      {kStep + "--refine -1", "--rescore-k: -1 is not in "},
      {"step --group 33", "--group: 33 is not in [1, 32]"},
      {kStep + "--sink -1", "--sink: -1 is not in [0, 1048576]"},
      {kStep + "--synthetic wave", "--synthetic: \"wave\" is none of"},
      {kStep + "--threads 0", "--threads: at least 1"},
      {"step --repeat -1", "--repeat: at least 0"},
      {kStep + "--plot step.jpg", "--plot: step.jpg ends neither in .svg nor in .png"},
      {trace + "--kv-heads 3", "--kv-heads: only synthetic keys take it"},
      {trace + "--synthetic rope", "give one of --trace FILE and --synthetic KIND"},
      {trace + "--layers 4", "--layers: 4 is more than the trace's 3"},
      {trace + "--local 64", "queries of 32 of the last 64 (--local) positions; 64 are needed"},
      {"step --trace /nowhere/at/all", "--trace: /nowhere/at/all"},
  };
  for (const auto& [flags, said] : cases) {
    const ProgramRun run = RunBench(flags);
    EXPECT_EQ(run.exit_code, 2) << flags;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    EXPECT_NE(run.err.find(said), std::string::npos) << flags << "\n" << run.err;
  }
}

TEST(StepCommandTest, MoreMemoryThanThereIsIsSaidBeforeAnythingIsMade) {
  const ProgramRun run = RunBench("step --kv-heads 256 --head-dim 256 --num-keys 268435456");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(run.err.rfind("seine-bench: --num-keys: 268435456 keys of 256 KV heads and 1 layers need ", 0), 0u)
      << run.err;
}

}  // namespace
}  // namespace seine::bench
