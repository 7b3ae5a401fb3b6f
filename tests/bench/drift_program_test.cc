// `seine-bench drift` as a person or a script runs it: the JSON contract, the table, and wrong flags.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

const std::string kSyntheticDrift =
    "drift --synthetic drift --prefill 600 --decode 1200 --head-dim 64 --points 3 --queries 4 ";
const std::string kTrace = std::string("drift --layers 26 --trace ") + SEINE_TRACE + " ";

TEST(DriftProgramTest, JsonHoldsTheContract) {
  const TestFolder folder;
  const std::string line = kSyntheticDrift + "--methods seine,pq,exact -o json --plot " + folder.File("plot.svg");
  const ProgramRun run = RunBench(line);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["synthetic"], true);
  EXPECT_EQ(json["source"], "drift");
  EXPECT_EQ(json["prefill"], 600);
  EXPECT_EQ(json["decode"], 1200);
  EXPECT_EQ(json["top_k"], 100);
  EXPECT_EQ(json["profile"], "prefill");
  ASSERT_EQ(json["rows"].size(), 3u);
  for (const auto& row : json["rows"]) {
    for (const char* key :
         {"method", "bytes_per_key", "recall_first", "recall_last", "kept", "worst_head_first", "worst_head_last"}) {
      EXPECT_TRUE(row.contains(key)) << key;
    }
    ASSERT_EQ(row["curve"].size(), 3u);
    EXPECT_EQ(row["curve"][0]["recall"], row["recall_first"]);
    EXPECT_EQ(row["curve"][2]["recall"], row["recall_last"]);
    EXPECT_EQ(row["curve"][2]["worst_head"], row["worst_head_last"]);
  }
  EXPECT_EQ(json["rows"][0]["curve"][0]["position"], 592);
  EXPECT_EQ(json["rows"][0]["curve"][2]["position"], 1744);
  EXPECT_EQ(json["rows"][2]["method"], "exact");
  EXPECT_EQ(json["rows"][2]["worst_head_last"], 1);
  EXPECT_NE(ReadFile(folder.File("plot.svg")).find("Recall@100 over a decode"), std::string::npos);
  EXPECT_EQ(RunBench(line).out, run.out);
}

TEST(DriftProgramTest, ThePapersSchedule) {
  const ProgramRun run = RunBench(kSyntheticDrift + "--methods paper,paper_no_tiers --schedule paper -o json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(nlohmann::json::parse(run.out)["schedule"], "paper");
  ExpectWrongFlags(
      {{kSyntheticDrift + "--methods rsq --schedule paper", "--schedule: none of the paper's methods runs"}});
}

TEST(DriftProgramTest, TableSaysWhatIsMadeUp) {
  const ProgramRun run = RunBench(kSyntheticDrift + "--methods rsq,lsh,quest");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const char* part : {"synthetic: drift", "at 592", "at 1744", "worst head at the end", "kept", "rsq", "lsh"}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << "\n" << run.out;
  }
  EXPECT_EQ(run.out.find("profile"), std::string::npos) << run.out;
}

// The committed trace has queries of its last 512 positions: a decode that lies among them can be measured.
TEST(DriftProgramTest, RealKeysWhereTheTraceHasQueries) {
  const ProgramRun run = RunBench(kTrace + "--prefill 7744 --decode 448 --points 2 --methods seine,exact --profile " +
                                  SEINE_TEST_PROFILE + " -o json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["synthetic"], false);
  EXPECT_EQ(json["dtype"], "fp16");
  EXPECT_EQ(json["num_q_heads"], 9);
  EXPECT_GE(json["rows"][0]["recall_last"], .95);
  EXPECT_EQ(json["rows"][1]["recall_last"], 1);
}

TEST(DriftProgramTest, EveryWrongFlagIsOneClearLine) {
  const std::pair<std::string, std::string> cases[] = {
      {"drift", "exactly one of --trace FILE and --synthetic KIND"},
      {"drift --synthetic rope", "--synthetic: rope's queries follow the last key"},
      {"drift --synthetic wave", "--synthetic: \"wave\" is none of"},
      {kTrace, "--trace: has queries from position 7680 on; this decode asks from 1600 on"},
      {kTrace + "--prefill 8000 --decode 4000", "--prefill: 8000 and --decode 4000 do not fit the trace's 8192 tokens"},
      {kTrace + "--prefill 7696 --decode 448 --methods seine", "--profile: the trace has no queries of the prefill"},
      {kSyntheticDrift + "--methods hnsw", "--methods: \"hnsw\" is none of seine, rsq, paper, pq"},
      {kSyntheticDrift + "--methods pq --profile x", "--profile: seine alone uses it"},
      {kSyntheticDrift + "--profile /nowhere", "--profile: /nowhere"},
      {"drift --synthetic drift --points 1", "--points: at least 2"},
      {"drift --synthetic drift --queries 65", "--queries: 65 is not in [1, --local 64]"},
      {kSyntheticDrift + "--beta 0", "--candidate-fraction: 0 is not in (0, 1]"},
      {kSyntheticDrift + "--top-k 0", "--top-k: at least 1"},
      {kSyntheticDrift + "--top-k 600", "--prefill: 600 leaves 512 keys between --sink and --local; 600 are needed"},
      {kSyntheticDrift + "--sink=-1", "--sink: at least 0"},
      {"drift --synthetic drift --prefill=-3", "--prefill: at least 1"},
      {"drift --synthetic drift --prefill 300", "--prefill: 300 leaves 192 keys"},
      {"drift --synthetic drift --prefill 600 --decode 20", "--decode: 20 tokens fill no window of 64 keys"},
      {kSyntheticDrift + "--plot plot.pdf", "--plot: plot.pdf ends neither in .svg nor in .png"},
      {kSyntheticDrift + "-o xml", "--output"},
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

}  // namespace
}  // namespace seine::bench
