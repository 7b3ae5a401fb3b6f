// seine-bench as a person or a script runs it: the JSON contract, and every wrong flag is one clear line and exit
// code 2.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

// The JSON keys are a contract.
constexpr const char* kRecallContract[] = {"recall_at_k",         "recall_at_k_worst_head",
                                           "attention_mass",      "coarse_recall",
                                           "bytes_per_key",       "us_per_query",
                                           "encode_keys_per_s",   "exact_us_per_query",
                                           "scan_ns_per_key",     "num_keys",
                                           "num_queries",         "backend",
                                           "simd_target",         "scan_bandwidth_share",
                                           "read_bandwidth_gb_s", "speedup_over_exact"};

const std::string kRecallTrace =
    std::string("recall --trace ") + SEINE_TRACE + " --layers 26 --num-queries 2 --cache warm ";
const std::string kSynthetic = "recall --synthetic rope --num-keys 2048 --head-dim 64 --num-queries 4 --cache warm ";

TEST(ProgramTest, RecallJsonHoldsTheContract) {
  const TestFolder folder;
  const ProgramRun run = RunBench(kRecallTrace + "--beta .10,.25 -o json --plot " + folder.File("plot.svg"));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  for (const char* key : kRecallContract) {
    ASSERT_TRUE(json.contains(key)) << key;
    EXPECT_FALSE(json[key].is_null()) << key;
  }
  EXPECT_EQ(json["num_keys"], (8192 - 16 - 512) / 64 * 64);
  EXPECT_EQ(json["num_queries"], 2 * 9);
  EXPECT_EQ(json["synthetic"], false);
  EXPECT_EQ(json["dtype"], "fp16");
  EXPECT_EQ(json["beta"], .10);
  EXPECT_GE(json["recall_at_k"], .9);
  ASSERT_EQ(json["rows"].size(), 3u);  // two betas, our exact scan
  EXPECT_EQ(json["rows"][1]["beta"], .25);
  EXPECT_GE(json["rows"][1]["recall_at_k"], json["rows"][0]["recall_at_k"]);
  EXPECT_TRUE(json["rows"][2]["exact"]);
  EXPECT_GT(json["encode_keys_per_s"], 1e5);
  EXPECT_TRUE(json["rows"][2]["encode_keys_per_s"].is_null());
  EXPECT_NE(ReadFile(folder.File("plot.svg")).find("</svg>"), std::string::npos);
}

TEST(ProgramTest, WhatDoesNotArriveOnStdoutIsAnError) {
  for (const std::string& line :
       {std::string("--help"), std::string("--version"), std::string("recall --help"), kSynthetic}) {
    for (const char* sink : {" >/dev/full 2>", " >&- 2>"}) {
      const TestFolder folder;
      const int status = std::system((SEINE_BENCH_PROGRAM " " + line + sink + folder.File("err")).c_str());
      EXPECT_EQ(WEXITSTATUS(status), 1) << line;
      const std::string err = ReadFile(folder.File("err"));
      EXPECT_EQ(err.rfind("seine-bench: cannot write to standard output", 0), 0u) << err;
      EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
    }
  }
}

TEST(ProgramTest, SyntheticSaysSoAndMeasuresBothWidths) {
  const ProgramRun run = RunBench(kSynthetic + "-o json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["synthetic"], true);
  EXPECT_EQ(json["dtype"], "fp32");
  EXPECT_TRUE(json.contains("exact_fp16_us_per_query"));
}

TEST(ProgramTest, TableShowsThePaperAndTheBaselines) {
  const ProgramRun run = RunBench(kSynthetic + "--compare --beta .2");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const char* part :
       {"synthetic: rope", "sign_ip, window 64", "paper: rsq, collision, no centre, refine 100", "faiss_flat",
        "faiss_pq_fastscan 8 B", "faiss_ivfpq", "exact, ours, fp32", "GB/s", "recall@100"}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << "\n" << run.out;
  }
}

TEST(ProgramTest, BalancedByAModelsProfileOrTheHeadsOwn) {
  const std::string profile = SEINE_TEST_PROFILE;
  for (const bool own : {false, true}) {
    SCOPED_TRACE(own);
    const ProgramRun run =
        RunBench(kRecallTrace + "--horizon 4096 --refine 300 " + "--codec balanced --recall-target .9 -o json" +
                 (own ? "" : " --profile " + profile));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const auto json = nlohmann::json::parse(run.out);
    EXPECT_EQ(json["codec"], "balanced");
    EXPECT_EQ(json["profile"], own ? "own" : profile);
    EXPECT_EQ(json["horizon"], 4096);
    EXPECT_GT(json["recall_at_k"], .95);
    EXPECT_LT(json["bytes_per_key"], 20);
    const auto& by_target = json["rows"][1];
    EXPECT_EQ(by_target["recall_target"], .9);
    EXPECT_GT(by_target["coarse_recall"], .9);
    EXPECT_LT(by_target["beta"], .2);
  }
}

TEST(ProgramTest, PeersAreMergedOrRefused) {
  const TestFolder folder;
  WriteFile(folder.File("peer.sh"),
            "echo '{\"versions\": \"test 1\", \"rows\": [{\"name\": \"toy\", \"exact\": true, \"beta\": null, "
            "\"answers\": 4, \"recall_at_k\": 1, \"recall_at_k_worst_head\": 1, \"bytes_per_key\": 256, "
            "\"us_per_query\": 0.001}]}'\n");
  ProgramRun run = RunBench(kSynthetic + "-o json --peers 'sh " + folder.File("peer.sh") + "'");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["peers"], "test 1");
  EXPECT_EQ(json["exact_by"], "toy");
  EXPECT_EQ(json["exact_us_per_query"], .001);

  run = RunBench(kSynthetic + "--peers 'exit 3;'");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(run.err, "seine-bench: --peers: the command ended with 3\n");
  run = RunBench(kSynthetic + "--peers echo");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("--peers: the command printed something else than its JSON"), std::string::npos) << run.err;
}

TEST(ProgramTest, HelpIsAHundredColumnsWide) {
  for (const char* command : {"", "recall ", "drift ", "prompt ", "evict ", "step ", "subspace ", "kernels ",
                              "service ", "sharded ", "nodes "}) {
    const ProgramRun run = RunBench(std::string(command) + "--help");
    ASSERT_EQ(run.exit_code, 0) << run.err;
    std::istringstream lines(run.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << command << ": " << line;
  }
}

TEST(ProgramTest, EveryWrongFlagIsOneClearLine) {
  const std::pair<std::string, std::string> cases[] = {
      {"fly", "unknown command fly; there are recall, drift, prompt, prompt-attention, evict"},
      {"recal", "unknown command recal; did you mean recall?"},
      {"step --beta .02 --candidate-fraction .02",
       "step: --candidate-fraction: given more than once; --beta is the same setting"},
      {"recall --trac x", "recall: unknown flag --trac; did you mean --trace?"},
      {"recall", "exactly one of --trace FILE and --synthetic KIND"},
      {"recall --trace a --synthetic rope", "exactly one of --trace FILE and --synthetic KIND"},
      {"recall --trace /nowhere/at/all", "--trace: /nowhere/at/all"},
      {"recall --synthetic wave", "--synthetic: \"wave\" is none of"},
      {kRecallTrace + "--layers 4,7", "--layers: 7 is not in the trace, which holds 4, 15, 26"},
      {kRecallTrace + "--top-k 8000", "--top-k: 8000 is more than the 7616 keys of a head"},
      {kRecallTrace + "--local 8192", "--local 8192 leave 0 keys"},
      {kSynthetic + "--top-k 0", "--top-k: at least 1"},
      {kSynthetic + "--beta 0", "--candidate-fraction: 0 is not in (0, 1]"},
      {kSynthetic + "--beta .1,2", "--candidate-fraction: 2 is not in (0, 1]"},
      {kSynthetic + "--beta many", "--candidate-fraction"},
      {kSynthetic + "--rho 7", "--collision-fraction: 7 is not in (0, 1]"},
      {kSynthetic + "--refine=-1", "--rescore-k: at least 0"},
      {kSynthetic + "--window 100", "--window: 100 is no multiple of 64"},
      {kSynthetic + "--coarse fine", "--coarse"},
      {kSynthetic + "--centre left", "--centre"},
      {kSynthetic + "--codec zip", "--codec"},
      {kSynthetic + "--dtype int3", "--dtype"},
      {kSynthetic + "--backend tpu", "--backend"},
      {kSynthetic + "--plot plot.pdf", "--plot: plot.pdf ends neither in .svg nor in .png"},
      {kSynthetic + "--plot /no/such/folder/plot.svg", "--plot: cannot write /no/such/folder/plot.svg: No such file"},
      {"evict --synthetic rope --plot /no/such/plot.png", "--plot: cannot write /no/such/plot.png"},
      {"subspace --synthetic rope --plot /no/such/plot.png", "--plot: cannot write /no/such/plot.png"},
      {"prompt-attention --trace a --mass 1", "--mass: 1 is not in (0, 1)"},
      {"prompt-attention --trace a --most 2", "--most: 2 is not in [0, 1]"},
      {"prompt-attention --trace a --sample 0", "--sample: 0 is not at least 1"},
      {"prompt-attention --trace /nowhere", "--trace: /nowhere"},
      {"kernels --num-keys 100", "--num-keys: 100 is no multiple of 64"},
      {"kernels --batch 0", "--batch"},
      {"kernels --rank 100 --head-dim 64", "--rank: 100 is above --head-dim 64"},
      {kSynthetic + "-o xml", "--output"},
      {kSynthetic + "--layers 1", "--layers: only a trace has layers"},
      {kSynthetic + "--baseline faiss_hnsw", "--baseline: \"faiss_hnsw\" is none of"},
      {kSynthetic + "--scope kv_head --compare", "--scope: peers answer per q_head only"},
      {"recall --synthetic rope --head-dim 100", "--head-dim: 100 is none of 64, 80, 96, 128, 192, 256, 512"},
      {"recall --synthetic rope --num-keys 10", "--num-keys: 10 is not in [64, "},
      {"recall --synthetic rope --num-queries=-4", "--num-queries: at least 0"},
      {kSynthetic + "--frobnicate", "--frobnicate"},
      {kSynthetic + "--seed -1", "--seed: must be 0 or more, not -1"},
      {"drift --synthetic drift --seed -2", "--seed: must be 0 or more, not -2"},
      {"step --seed -3", "--seed: must be 0 or more, not -3"},
      {kSynthetic + "--codec rsq --profile x", "--profile: rsq needs none"},
      {kSynthetic + "--codec rsq --horizon 4096", "--horizon: rsq has none"},
      {kSynthetic + "--codec rsq --recall-target .9", "--recall-target: only the balanced code"},
      {kSynthetic + "--codec balanced --recall-target 1", "--recall-target: 1 is not in (0, 1)"},
      {kSynthetic + "--codec balanced --coarse collision", "--coarse: the balanced code"},
      {kSynthetic + "--coarse collision --centre window", "--centre: collision leaves out"},
      {kSynthetic + "--codec balanced --centre none", "--centre: the balanced code"},
      {kSynthetic + "--profile /nowhere", "--profile: /nowhere"},
      {"recall --synthetic gaussian --codec balanced --horizon 4096", "--horizon: the data state no RoPE"},
      {"recall --synthetic gaussian --head-dim 256 --codec balanced --total-bits 3",
       "codec.total_bits: 3 at head_dim 256"},
  };
  for (const auto& [arguments, says] : cases) {
    SCOPED_TRACE(arguments);
    const ProgramRun run = RunBench(arguments);
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_NE(run.err.find(says), std::string::npos) << run.err;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    EXPECT_EQ(run.out, "");
  }
}

TEST(ProgramTest, WithoutArgumentsThereAreThreeExamplesThatRun) {
  const ProgramRun run = RunBench("");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.out, "");
  EXPECT_NE(run.err.find("\nseine-bench: A subcommand is required (seine-bench --help)\n"), std::string::npos)
      << run.err;
  std::istringstream lines(run.err);
  int examples = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100u) << line;
    if (line.rfind("  seine-bench ", 0) != 0) continue;
    ++examples;
    std::string example = line.substr(14, line.find('#') - 14);
    for (const auto& [from, to] : {std::pair<std::string, std::string>{"65536", "4096 --num-queries 2"},
                                   {"FILE", SEINE_TRACE " --layers 15 --num-queries 2"}}) {
      if (const size_t at = example.find(from); at != example.npos) example.replace(at, from.size(), to);
    }
    const ProgramRun ran = RunBench(example + (example.rfind("step", 0) == 0 ? "--num-keys 2048" : ""));
    EXPECT_EQ(ran.exit_code, 0) << example << ": " << ran.err;
  }
  EXPECT_EQ(examples, 3);
}

TEST(ProgramTest, TablesEndWithWhatTheyMean) {
  const std::pair<std::string, std::string> cases[] = {
      {"recall --synthetic rope --num-keys 4096 --num-queries 2", "% of the exact top 100, in "},
      {std::string("evict --layers 15 --scorer keydiff,knorm --budget 5%,10% --trace ") + SEINE_TRACE,
       "budget 10%: keydiff keeps most of attention, 0.8"},
      {"subspace --synthetic drift --num-keys 2048 --head-dim 64 --rank 16",
       "keys_post_rope at rank 16: oja_32 leaves out 0."},
      {"kernels --num-keys 131072 --batch 1", "None of them was measured."},
  };
  for (const auto& [arguments, says] : cases) {
    const ProgramRun run = RunBench(arguments);
    ASSERT_EQ(run.exit_code, 0) << arguments << ": " << run.err;
    const size_t begin = run.out.rfind('\n', run.out.size() - 2);
    EXPECT_NE(run.out.substr(begin + 1).find(says), std::string::npos) << run.out;
  }
}

TEST(ProgramTest, SampledRowsChooseBetterThanMeans) {
  const ProgramRun run = RunBench(std::string("prompt-attention --trace ") + SEINE_TRACE +
                                  " --layers 15 --mass .9,.95 --repeats 1 -o json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto rows = nlohmann::json::parse(run.out).at("rows");
  ASSERT_EQ(rows.size(), 9u);  // exact, and two ways at each mass and each number of samples
  for (size_t i = 1; i < rows.size(); i += 2) {
    EXPECT_EQ(rows[i].at("method"), "sampled");
    EXPECT_LT(rows[i].at("taken"), .5);
    EXPECT_LT(rows[i].at("error"), .2);
    EXPECT_LT(rows[i].at("error").get<double>(), rows[i + 1].at("error").get<double>());
    EXPECT_NEAR(rows[i].at("taken"), rows[i + 1].at("taken"), 1e-9);
  }
  for (const size_t i : {1u, 3u}) {  // .9 and .95 of the same samples
    ASSERT_EQ(rows[i].at("sample"), rows[i + 4].at("sample"));
    EXPECT_GT(rows[i].at("error").get<double>(), rows[i + 4].at("error").get<double>());
  }
}

TEST(ProgramTest, EverySpellingOfAValueIsTaken) {
  const ProgramRun run = RunBench(kSynthetic + "--dtype bfloat16 --scope per_q_head --gqa-reduce MAX -o json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(nlohmann::json::parse(run.out)["dtype"], "bf16");
}

TEST(ProgramTest, HelpTeaches) {
  const ProgramRun run = RunBench("recall --help");
  EXPECT_EQ(run.exit_code, 0);
  for (const char* part : {"--trace", "--beta", "--peers", "one query head at a time", "bench/data"}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(RunBench("--help").exit_code, 0);
}

}  // namespace
}  // namespace seine::bench
