// The ledger of a long soak: what is written is read again, what was cut off is dropped, and a run goes on where the
// last one ended.
#include "tests/soak/ledger.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/soak/result.h"
#include "tests/temp_folder.h"

namespace seine::soak {
namespace {

Result MadeRun(const std::string& member, uint32_t seed, const std::string& commit = "abc") {
  Result run;
  run.member = member;
  run.seed = seed;
  run.commit = commit;
  run.time = "2026-01-31T10:00:00Z";
  run.seconds = 12.5;
  run.ops = 100;
  run.faults = 20;
  run.stated = {10, 5};
  run.figures["rss_mib"] = 40.25;
  return run;
}

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class LedgerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Ledger> Open() {
    auto ledger = Ledger::Open(path_);
    EXPECT_TRUE(ledger.ok()) << ledger.status();
    return ledger.ok() ? *std::move(ledger) : nullptr;
  }
  std::string WhyNot() { return std::string(Ledger::Open(path_).status().message()); }

  TempFolder folder_;
  const std::string path_ = folder_.Path("state/soak.jsonl");
};

TEST_F(LedgerTest, RunsAreReadAgain) {
  ASSERT_TRUE(Open()->Add(MadeRun("cancels", 3)).ok());
  ASSERT_TRUE(Open()->Add(MadeRun("resets", 4, "def")).ok());
  const auto ledger = Open();
  const auto runs = ledger->Of("abc");
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(ToJson(runs[0]).dump(), ToJson(MadeRun("cancels", 3)).dump());
  EXPECT_EQ(ledger->Of("def").size(), 1u);
  EXPECT_TRUE(ledger->Of("0").empty());
}

TEST_F(LedgerTest, ALineThatWasCutOffIsDropped) {
  ASSERT_TRUE(Open()->Add(MadeRun("cancels", 1)).ok());
  const std::string whole = FileText(path_);
  std::ofstream(path_, std::ios::app) << whole.substr(0, whole.size() / 2);
  ASSERT_TRUE(Open()->Add(MadeRun("cancels", 2)).ok());
  EXPECT_EQ(Open()->Of("abc").size(), 2u);
}

TEST_F(LedgerTest, WhatIsNoLedgerIsRefusedAndLeftAlone) {
  Open();
  for (const std::string text : {"hello\n", "{}\n", "{\"attack\": \"cancels\", \"seed\": \"one\"}\n", "[[[\n"}) {
    std::ofstream(path_) << text;
    EXPECT_EQ(WhyNot(), path_ + ":1: no line of a soak's ledger") << text;
    EXPECT_EQ(FileText(path_), text);
  }
}

TEST_F(LedgerTest, OneProcessWritesAtATime) {
  const auto first = Open();
  EXPECT_EQ(WhyNot(), path_ + ": another soak writes to it");
}

TEST_F(LedgerTest, NextIsWhatRanLeastWithTheSeedAfterItsLast) {
  const std::vector<std::string> members = {"none", "cancels", "resets"};
  std::vector<Result> runs;
  std::vector<std::string> order;
  for (int i = 0; i < 5; ++i) {
    const Next next = NextOf(members, runs, 7);
    runs.push_back(MadeRun(next.member, next.seed));
    order.push_back(next.member + std::to_string(next.seed));
  }
  EXPECT_EQ(order, (std::vector<std::string>{"none7", "cancels7", "resets7", "none8", "cancels8"}));
  EXPECT_DOUBLE_EQ(SecondsOf(runs), 62.5);
}

TEST(ResultTest, VerdictsNameWhatWasWrong) {
  Result run = MadeRun("cancels", 1);
  EXPECT_EQ(run.Verdict(), "ok");
  run.faults = 4;
  EXPECT_EQ(run.Verdict(), "short");
  run.Break("a foreign byte");
  run.hangs = 1;
  EXPECT_EQ(run.Verdict(), "hang,break,short");
  EXPECT_NE(TableRow(run).find("at least 10 operations and 5 faults"), std::string::npos);
  EXPECT_NE(TableRow(run).find("a foreign byte"), std::string::npos);
}

TEST(ResultTest, StatedNumbersScaleWithTheTime) {
  const Stated stated{1000, 5};
  EXPECT_EQ(stated.For(1).ops, 100);
  EXPECT_EQ(stated.For(1).faults, 1);
  EXPECT_EQ(stated.For(20).faults, 10);
  EXPECT_EQ((Stated{1, 0}.For(.1).ops), 1);
  EXPECT_EQ((Stated{1, 0}.For(.1).faults), 0);
}

}  // namespace
}  // namespace seine::soak
