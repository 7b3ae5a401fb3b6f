// `seine-bench evict`: the JSON contract over the committed trace, every scorer, and wrong flags.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

const std::string kEvictTrace = std::string("evict --trace ") + SEINE_TRACE + " --layers 26 ";

TEST(EvictCommandTest, EveryScorerRunsAndKeptIsExact) {
  const TestFolder folder;
  const ProgramRun run =
      RunBench(kEvictTrace + "--repeats 2 --budget 25%,100 -o json --plot " + folder.File("plot.svg"));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  for (const char* key : {"retained_attention_mass", "overlap_with_attention_top", "us_per_token", "kept"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  ASSERT_EQ(json["rows"].size(), 2u * 13);  // twelve scorers and the oracle
  const auto& oracle = json["rows"][24];
  EXPECT_EQ(oracle["scorer"], "oracle");
  EXPECT_EQ(oracle["overlap_with_attention_top"], 1);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["kept"], row["budget"] == "100" ? 100 : (8192 - 256) / 4) << row;
    EXPECT_GT(row["retained_attention_mass"], 0);
    if (row["scorer"] != "oracle") {
      EXPECT_GT(row["read_bandwidth_share_paired"], 0) << row;
    }
    if (row["budget"] == "25%") {
      EXPECT_LE(row["retained_attention_mass"], oracle["retained_attention_mass"]) << row;
    }
  }
  EXPECT_NE(ReadFile(folder.File("plot.svg")).find("</svg>"), std::string::npos);
}

TEST(EvictCommandTest, AdaptiveKeepsTheTotalAndSyntheticSaysSo) {
  const ProgramRun run = RunBench(
      "evict --synthetic rope --num-keys 4096 --kv-heads 2 --head-dim 64 --heads adaptive --scorer keydiff --budget "
      "512 --repeats 1");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("synthetic: rope"), std::string::npos);
  EXPECT_NE(run.out.find(" 512 "), std::string::npos) << run.out;
}

TEST(EvictCommandTest, MadeUpDataSuitsEveryScorer) {
  const ProgramRun run =
      RunBench("evict --synthetic rope --num-keys 4096 --kv-heads 2 --head-dim 64 --budget 512 --repeats 1 -o json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto rows = nlohmann::json::parse(run.out)["rows"];
  EXPECT_GT(rows.size(), 10u);
  for (const auto& row : rows) EXPECT_EQ(row["kept"], 512) << row;
}

TEST(EvictCommandTest, AnIndexThatEvictsByItselfHoldsNoMoreThanItsBudgetAndABlock) {
  const ProgramRun run =
      RunBench(kEvictTrace + "--repeats 2 --budget 512 --scorer keydiff,qfilters,snapkv --interval 100 -o json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto rows = nlohmann::json::parse(run.out)["rows"];
  for (const int i : {0, 1, 2}) {
    const auto& stream = rows[i]["stream"];
    EXPECT_EQ(stream["interval"], 100);
    EXPECT_EQ(stream["most_tokens"], 611);              // the next token evicts
    EXPECT_GT(stream["peak_bytes"], 612 * 3 * 64 * 2);  // three heads of 64 halves
    EXPECT_LT(stream["peak_bytes"].get<double>(), stream["whole_bytes"].get<double>() / 3);
    EXPECT_GT(stream["step_us"], 0);
    EXPECT_GT(stream["eviction_us"], stream["step_us"]);
  }
  EXPECT_FALSE(rows[3].contains("stream"));  // the oracle

  const ProgramRun table = RunBench(kEvictTrace + "--repeats 2 --budget 512 --scorer knorm --interval 128");
  EXPECT_NE(table.out.find("us an eviction"), std::string::npos) << table.out << table.err;
}

// With several scorers an option goes to those that have it.
TEST(EvictCommandTest, OptionsOfScorersChangeWhatIsKept) {
  const auto kept = [](const std::string& flags) {
    const ProgramRun run =
        RunBench(kEvictTrace + "--repeats 1 --budget 512 --scorer keydiff,h2o,snapkv,knorm -o json " + flags);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    std::map<std::string, double> masses;
    const auto rows = nlohmann::json::parse(run.out)["rows"];  // named: a loop over a part of what is gone sees nothing
    EXPECT_EQ(rows.size(), 5u);
    for (const auto& row : rows) {
      EXPECT_EQ(row["kept"], 512) << row;
      masses[row["scorer"]] = row["retained_attention_mass"];
    }
    return masses;
  };
  auto plain = kept(""), optioned = kept("--anchor median --accumulate true --kernel 31");
  for (const char* name : {"keydiff", "snapkv"}) EXPECT_NE(plain[name], optioned[name]) << name;
  EXPECT_EQ(plain["knorm"], optioned["knorm"]);
  auto weighted = kept("--value-weight norm --first-stage .25");
  for (const char* name : {"keydiff", "h2o", "snapkv", "knorm"}) EXPECT_NE(plain[name], weighted[name]) << name;
  auto positions = kept("--positions 700,701,702 --beta 10 --safeguard .5");
  EXPECT_LE(positions["h2o"], plain["h2o"] + 1e-9);
}

TEST(EvictCommandTest, WrongFlagsAreOneLine) {
  const std::pair<const char*, const char*> kCases[] = {
      {"--budget 0", "--budget: 0 is neither"},
      {"--budget 100%", "--budget: 100% is no share"},
      {"--scorer best", "--scorer: scorer.name: unknown scorer"},
      {"--scorer client", "--scorer: client scores"},
      {"--scorer knorm --anchor mean", "--anchor: only keydiff"},
      {"--scorer keydiff --anchor best", "must be one of unit_mean, mean, median, pairwise"},
      {"--value-weight projected", "--value-weight: traces hold no output projection"},
      {"--scorer knorm --window 64", "--window: only windowed_manifoldkv"},
      {"--scorer knorm --lambda .5", "--lambda: only hybrid"},
      {"--kv-heads 2", "--kv-heads: a trace has its own"},
      {"--recent-share 2", "keep.recent_share: 2"},
      {"--interval -1", "--interval: at least 0"},
      {"--repeats 0", "--repeats: 0 is fewer than 1"},
      {"--profile nowhere", "--profile: "},
  };
  for (const auto& [flags, error] : kCases) {
    const ProgramRun run = RunBench(kEvictTrace + flags);
    EXPECT_EQ(run.exit_code, 2) << flags;
    EXPECT_NE(run.err.find(error), std::string::npos) << run.err;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
}

}  // namespace
}  // namespace seine::bench
