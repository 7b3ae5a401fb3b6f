// Scorers by name, their options, and the simple ones: StreamingLLM, scores of the caller, filters from files.
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/index/scorers/synthetic_layer.h"

namespace seine {
namespace {

using testing::MadeUpLayer;
using testing::ScoresOf;

TEST(ScorerOptions, EveryNameMakesAScorer) {
  for (const std::string& name : ScorerNames()) {
    ScorerConfig config;
    config.name = name;
    EXPECT_TRUE(MakeScorer(config).ok()) << name;
  }
}

TEST(ScorerOptions, TheListSaysWhatEachScorerNeeds) {
  for (const ScorerEntry& entry : AllScorers()) {
    ScorerConfig config;
    config.name = entry.name;
    const auto scorer = *MakeScorer(config);
    EXPECT_EQ(entry.Needs("queries"), scorer->needs_queries()) << entry.name;
    EXPECT_EQ(entry.Needs("filters"), scorer->needs_filters()) << entry.name;
    EXPECT_EQ(entry.Needs("scores"), scorer->needs_scores()) << entry.name;
    EXPECT_EQ(entry.Needs("profile"), scorer->takes_profile() || scorer->needs_filters()) << entry.name;
    const std::vector<std::string> needs = absl::StrSplit(entry.needs, ' ', absl::SkipEmpty());
    for (const std::string& need : needs) {
      EXPECT_TRUE(need == "queries" || need == "filters" || need == "profile" || need == "scores") << need;
    }
  }
}

// Every option of a scorer is one of the list, and every option of the list has a scorer.
TEST(ScorerOptions, NoneIsMisspelledOrLeftOver) {
  std::set<std::string> declared, owned;
  ForEachScorerOption([&](const auto& option) { declared.insert(option.name); });
  for (const ScorerEntry& entry : AllScorers()) {
    const std::vector<std::string> options = absl::StrSplit(entry.options, ' ', absl::SkipEmpty());
    owned.insert(options.begin(), options.end());
  }
  const std::vector<std::string> common = absl::StrSplit(kCommonScorerOptions, ' ');
  for (const std::string& option : common) EXPECT_FALSE(owned.contains(option)) << option << " is every scorer's";
  owned.insert(common.begin(), common.end());
  EXPECT_EQ(owned, declared);
}

TEST(ScorerOptions, ATypoIsAnsweredWithTheNearestName) {
  ScorerConfig config;
  config.name = "snapvk";
  EXPECT_EQ(MakeScorer(config).status().message(),
            "scorer.name: unknown scorer; did you mean snapkv? there are " + absl::StrJoin(ScorerNames(), ", "));
  config.name = std::string(1 << 20, 'x');
  EXPECT_EQ(MakeScorer(config).status().message(),
            "scorer.name: unknown scorer; there are " + absl::StrJoin(ScorerNames(), ", "));
}

TEST(ScorerOptions, BadOnesAreNamed) {
  struct Case {
    const char* error;
    void (*set)(ScorerConfig*);
  };
  const Case kCases[] = {
      {"scorer.name: unknown scorer", [](ScorerConfig* c) { c->name = "best"; }},
      {"scorer.anchor: given, but knorm has none",
       [](ScorerConfig* c) { c->name = "knorm", c->anchor = Anchor::kMean; }},
      {"scorer.anchor: unknown value 9", [](ScorerConfig* c) { c->anchor = static_cast<Anchor>(9); }},
      {"scorer.similarity: the pairwise",
       [](ScorerConfig* c) { c->anchor = Anchor::kPairwise, c->similarity = Similarity::kDot; }},
      {"scorer.metric: given, but keydiff", [](ScorerConfig* c) { c->metric = Metric::kL1; }},
      {"scorer.window: 0 is not in", [](ScorerConfig* c) { c->name = "windowed_manifoldkv", c->window = 0; }},
      {"scorer.lambda: 1.5 is not in", [](ScorerConfig* c) { c->name = "hybrid", c->lambda = 1.5; }},
      {"scorer.lambda: nan is not in",
       [](ScorerConfig* c) { c->name = "hybrid", c->lambda = std::numeric_limits<double>::quiet_NaN(); }},
      {"scorer.sink: -1 is not in", [](ScorerConfig* c) { c->name = "streaming_llm", c->sink = -1; }},
      {"scorer.query_window: 0 is not in", [](ScorerConfig* c) { c->name = "snapkv", c->query_window = 0; }},
      {"scorer.kernel: 4 is not odd", [](ScorerConfig* c) { c->name = "snapkv", c->kernel = 4; }},
      {"scorer.future: 0 is not in", [](ScorerConfig* c) { c->name = "expected_attention", c->future = 0; }},
      {"scorer.kernel: 257 is not in [1, 255]", [](ScorerConfig* c) { c->name = "snapkv", c->kernel = 257; }},
      {"scorer.query_window: 65537 is not in [1, 65536]",
       [](ScorerConfig* c) { c->name = "snapkv", c->query_window = 65537; }},
      {"scorer.epsilon: 1e+30 is not in [0, 1]",
       [](ScorerConfig* c) { c->name = "expected_attention", c->epsilon = 1e30; }},
      {"scorer.epsilon: -1 is not in", [](ScorerConfig* c) { c->name = "expected_attention", c->epsilon = -1; }},
      {"scorer.value_norms: given, but tova", [](ScorerConfig* c) { c->name = "tova", c->value_norms = false; }},
  };
  for (const Case& test : kCases) {
    ScorerConfig config;
    test.set(&config);
    const absl::Status status = MakeScorer(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.error;
    EXPECT_TRUE(absl::StrContains(status.message(), test.error)) << status << "\nwanted: " << test.error;
  }
}

TEST(ScorerOptions, StreamingLlmKeepsSinksThenTheMostRecent) {
  auto backend = MakeCpuBackend(1);
  MadeUpLayer l(1, 1, 64, 20, 0);
  const Scores scores = ScoresOf("streaming_llm", l.Input(backend.get()));
  for (int i = 5; i < 20; ++i) EXPECT_GT(scores[0][i], scores[0][i - 1]);
  for (int i = 0; i < 4; ++i) EXPECT_GT(scores[0][i], scores[0][19]);
  for (int i = 1; i < 4; ++i) EXPECT_EQ(scores[0][i], scores[0][0]);
}

TEST(ScorerOptions, ScoresOfTheCallerAreTakenAsTheyAre) {
  auto backend = MakeCpuBackend(1);
  MadeUpLayer l(1, 1, 64, 3, 0);
  std::vector<float> given = {1, -2, 3};
  ScoreInput input = l.Input(backend.get());
  input.given = {given.data()};
  EXPECT_EQ(ScoresOf("client", input), Scores{given});
  given[1] = std::numeric_limits<float>::infinity();
  ScorerConfig config;
  config.name = "client";
  Scores scores;
  const absl::Status status = (*MakeScorer(config))->Score(input, &scores);
  EXPECT_EQ(status.message(), "given.scores[0]: token 1 is not finite");
}

}  // namespace
}  // namespace seine
