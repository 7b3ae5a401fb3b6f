// seine-llama-bench over a small model of random weights: what it prints, and that a file of rows lets it go on.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "engines/llama.cpp/random_model.h"

namespace seine::llama {
namespace {

class BenchProgram : public ::testing::Test {
 protected:
  BenchProgram() {
    std::filesystem::create_directories(folder_);
    EXPECT_TRUE(WriteRandomModel({.q_heads = 4, .kv_heads = 2}, 3, Path("model.gguf")));
  }
  ~BenchProgram() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  static std::string Contents(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Runs it over random tokens; its exit code. err_ becomes what it said.
  int Run(const std::string& arguments) {
    const std::string command = std::string("SEINE_MIN_KV=256 SEINE_TOP_K=50 ") + SEINE_LLAMA_BENCH +
                                " --random --model " + Path("model.gguf") + " --steps 3 -o json " + arguments + " > " +
                                Path("out") + " 2> " + Path("err");
    const int status = std::system(command.c_str());
    err_ = Contents(Path("err"));
    return WEXITSTATUS(status);
  }
  nlohmann::json Rows() const { return nlohmann::json::parse(Contents(Path("out"))).at("rows"); }
  bool Measured() const { return err_.find(" cells, ") != std::string::npos; }

  const std::string folder_ = ::testing::TempDir() + "seine-llama-bench-" + std::to_string(getpid());
  std::string err_;
};

TEST_F(BenchProgram, RowsThatWereMeasuredAreKept) {
  const std::string rows = Path("rows.jsonl"), flags = "--cells 600,700 --top-k 20,50 --rows " + rows;
  ASSERT_EQ(Run(flags), 0) << err_;
  const nlohmann::json first = Rows();
  ASSERT_EQ(first.size(), 4u);
  EXPECT_EQ(first[1]["top_k"], 50);
  EXPECT_EQ(first[2]["cells"], 700);
  EXPECT_GT(first[0]["seine_ms"], 0);
  ASSERT_EQ(Run(flags), 0) << err_;
  EXPECT_FALSE(Measured()) << err_;
  EXPECT_EQ(Rows(), first);

  const std::string whole = Contents(rows);  // the run was killed while it wrote
  std::ofstream(rows) << whole.substr(0, whole.size() - 9);
  ASSERT_EQ(Run(flags), 0) << err_;
  EXPECT_NE(err_.find("its last line was cut off"), std::string::npos) << err_;
  EXPECT_EQ(err_.find("600 cells, "), std::string::npos) << err_;
  EXPECT_NE(err_.find("700 cells, "), std::string::npos) << err_;
  EXPECT_EQ(Rows()[0], first[0]);

  ASSERT_EQ(Run(flags + " --threads 1"), 0) << err_;  // another measurement
  EXPECT_TRUE(Measured());
  std::ofstream(rows) << "nothing of ours\n";
  EXPECT_EQ(Run(flags), 1);
  EXPECT_NE(err_.find("rows.jsonl: line 1 is no row"), std::string::npos) << err_;
}

TEST_F(BenchProgram, TimesToTheFirstToken) {
  ASSERT_EQ(Run("--cells 600 --prompts 3 --rows " + Path("rows")), 0) << err_;
  const nlohmann::json row = Rows().at(0);
  EXPECT_EQ(row["pairs"], 3);
  EXPECT_LE(row["ratio_least"], row["ratio"]);
  EXPECT_LE(row["ratio"], row["ratio_most"]);
  EXPECT_GT(row["plain_ms"], row["first_step_plain_ms"]);
  EXPECT_GT(row["seine_ms"], row["first_step_seine_ms"]);
  ASSERT_EQ(Run("--cells 600 --prompts 3 --rows " + Path("rows")), 0) << err_;
  EXPECT_FALSE(Measured()) << err_;
  EXPECT_EQ(Rows().at(0), row);
}

TEST_F(BenchProgram, AHoleBesideATextInARow) {
  // Windows are encoded once they are no longer local.
  ASSERT_EQ(Run("--cells 900 --hole 400"), 0) << err_;
  const nlohmann::json row = Rows().at(0);
  EXPECT_EQ(row["hole"], 400);
  EXPECT_GT(row["row_cpu_ms"], 0);
  EXPECT_GT(row["hole_cpu_ms"], 0);
  EXPECT_GT(row["row_encoded_keys"], 0);
}

TEST_F(BenchProgram, WholeAnswersByEachWayToAttendPrompts) {
  for (const std::string prompt : {"exact", "sparse", "off"}) {
    ASSERT_EQ(Run("--cells 600 --whole --prompt " + prompt), 0) << err_;
    const nlohmann::json row = Rows().at(0);
    EXPECT_EQ(row["prompt"], prompt);
    for (const char* way : {"plain", "decode", "both", "exact"}) {
      EXPECT_GT(row[std::string("whole_") + way + "_ms"], row[std::string("first_") + way + "_ms"]);
    }
    const nlohmann::json plugin = nlohmann::json::parse(Contents(Path("out"))).at("plugin");
    EXPECT_EQ(plugin["prompt_answered"] > 0, prompt != "off");
  }
}

TEST_F(BenchProgram, WhatSparsePromptsChange) {
  // Random weights look everywhere alike: a share of a half or more would be attended whole.
  const std::string flags = "--cells 3000 --shares .2,.4,.9 --rows " + Path("rows");
  ASSERT_EQ(Run(flags), 0) << err_;
  const nlohmann::json rows = Rows();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["model"], "model");
  EXPECT_EQ(rows[0]["share"], .2);
  EXPECT_LT(rows[0]["taken"], rows[1]["taken"]);
  EXPECT_LT(rows[1]["taken"], 1);
  EXPECT_GT(rows[0]["kl"], rows[1]["kl"]);
  EXPECT_GT(rows[1]["kl"], 0);
  EXPECT_NE(rows[0]["ppl_sparse"], rows[0]["ppl_exact"]);
  EXPECT_EQ(rows[2]["taken"], 1);
  EXPECT_EQ(rows[2]["kl"], 0) << "exact either way";
  setenv("SEINE_PROMPT", "off", 1);  // what is asked for by a flag wins
  const int ended = Run("--cells 3000 --shares .2");
  unsetenv("SEINE_PROMPT");
  ASSERT_EQ(ended, 0) << err_;
  EXPECT_EQ(Rows()[0]["taken"], rows[0]["taken"]);
  ASSERT_EQ(Run(flags), 0) << err_;
  EXPECT_FALSE(Measured()) << err_;
  EXPECT_EQ(Rows(), rows);
}

TEST_F(BenchProgram, SharesAreRefusedWithReason) {
  for (const std::string flags : {"--shares 1", "--shares 0", "--shares .9,x", "--shares ,", "--shares .9 --whole"}) {
    EXPECT_EQ(Run(flags), 1) << flags;
    EXPECT_NE(err_.find("--shares "), std::string::npos) << flags << ": " << err_;
  }
}

TEST_F(BenchProgram, QuantisedCaches) {
  const std::string flags = "--cells 600 --top-k 20 --rows " + Path("rows.jsonl");
  ASSERT_EQ(Run(flags), 0) << err_;
  const double bytes = Rows()[0]["cache_bytes"];
  ASSERT_EQ(Run(flags + " -ctk q8_0 -ctv q4_0"), 0) << err_;
  EXPECT_TRUE(Measured()) << "rows of f16 caches are others";
  EXPECT_NEAR(Rows()[0]["cache_bytes"].get<double>() / bytes, (34 + 18) / 128., .02);
}

// A peer that says what a file says, and keeps what it was asked. peer_test.py has those that ask servers.
TEST_F(BenchProgram, APeersTimesStandBesideOurs) {
  std::ofstream(Path("peer")) << "#!/bin/sh\ncp \"$3\" " << Path("asked") << "\ncat \"$1\"\n";
  const std::string command = " --peer 'sh " + Path("peer") + " " + Path("says") + "'";
  std::ofstream(Path("says")) << R"({"server": "peer", "rows": [
      {"cells": 700, "prompt_tokens": 701, "prompt_ms": 35, "ms": 3},
      {"cells": 600, "prompt_tokens": null, "prompt_ms": 30, "ms": null}]})";
  ASSERT_EQ(Run("--cells 600,700 --top-k 20,50" + command), 0) << err_;
  const nlohmann::json rows = Rows();
  ASSERT_EQ(rows.size(), 4u);
  for (const int i : {0, 1}) {
    EXPECT_EQ(rows[i]["peer_prompt_ms"], 30);
    EXPECT_TRUE(rows[i]["peer_ms"].is_null() && rows[i]["peer_prompt_tokens"].is_null()) << rows[i];
    EXPECT_EQ(rows[2 + i]["peer_prompt_ms"], 35);
    EXPECT_EQ(rows[2 + i]["peer_ms"], 3);
    EXPECT_EQ(rows[2 + i]["peer_prompt_tokens"], 701);
    EXPECT_NEAR(rows[i]["prompt_seine_ms"].get<double>() / rows[i]["prompt_plain_ms"].get<double>(),
                rows[i]["prompt_ratio"].get<double>(), 1e-9);
  }
  const nlohmann::json asked = nlohmann::json::parse(Contents(Path("asked")));
  EXPECT_EQ(asked["steps"], 3);
  EXPECT_EQ(asked["prompts"][1]["tokens"].size(), 700u);

  ASSERT_EQ(Run("--cells 600,700 --whole" + command), 0) << err_;
  EXPECT_TRUE(Rows()[0]["peer_whole_ms"].is_null());
  EXPECT_EQ(Rows()[1]["peer_first_ms"], 35 + 3);
  EXPECT_EQ(Rows()[1]["peer_whole_ms"], 35 + 3 * 3);
  ASSERT_EQ(Run("--cells 600,700 --top-k 20 -o text" + command), 0) << err_;
  EXPECT_NE(Contents(Path("out")).find("          30           -"), std::string::npos) << Contents(Path("out"));

  std::filesystem::remove(Path("says"));
  EXPECT_EQ(Run("--cells 600" + command), 1);
  EXPECT_NE(err_.find("--peer: the command has no times"), std::string::npos) << err_;
  EXPECT_FALSE(Measured());
}

TEST_F(BenchProgram, RowsArePrintedWithNumbersAndWords) {
  for (const std::string measure : {"--whole --prompt sparse", "--shares .4"}) {
    ASSERT_EQ(Run("--cells 600 " + measure + " -o text"), 0) << err_;
    const std::string text = Contents(Path("out"));
    EXPECT_NE(text.find("cells"), std::string::npos);
    EXPECT_NE(text.find(" 600 "), std::string::npos) << text;
  }
}

TEST_F(BenchProgram, ModelsHaveTheWeightsAskedFor) {
  ModelShape shape = {.embedding = 256, .feed_forward = 256, .q_heads = 4, .kv_heads = 2, .weights = "f32"};
  std::uintmax_t largest = 0;
  for (const char* weights : {"q4_K", "q8_0", "f32"}) {
    shape.weights = weights;
    ASSERT_TRUE(WriteRandomModel(shape, 3, Path("model.gguf")));
    const std::uintmax_t bytes = std::filesystem::file_size(Path("model.gguf"));
    EXPECT_GT(bytes, largest * 3 / 2) << weights;
    largest = bytes;
    ASSERT_EQ(Run("--cells 600"), 0) << err_;
    EXPECT_GT(Rows().at(0)["seine_ms"], 0);
  }
  shape.weights = "q4_X";
  EXPECT_FALSE(WriteRandomModel(shape, 3, Path("model.gguf")));
}

TEST_F(BenchProgram, WrongFlagsAreOneClearLine) {
  for (const auto& [flags, says] : {std::pair{"--prompts 0", "--prompts must be a positive number"},
                                    {"--needles 33", "--needles must be in [1, 32]"},
                                    {"--needles 2", "--needles wants a text"},
                                    {"--weights f32", "--weights f32: q4_K, q4_0 or q8_0"},
                                    {"--prompts 2 --needles 2", "give one"},
                                    {"--context 0", "--context must be a positive number"},
                                    {"--prompt some", "--prompt some: exact, sparse or off"},
                                    {"-ctk q5_1", "-ctk q5_1: f16, bf16, q8_0 or q4_0"},
                                    {"--hole 0", "--hole must be a positive number"},
                                    {"--hole 9 --needles 2", "--hole is a measure of its own"},
                                    {"--peer true --hole 9", "--peer reads texts as they are"},
                                    {"--peer true --yarn 2", "--peer reads texts as they are"}}) {
    EXPECT_EQ(Run(flags), 1);
    EXPECT_NE(err_.find(says), std::string::npos) << err_;
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
  }
}

}  // namespace
}  // namespace seine::llama
