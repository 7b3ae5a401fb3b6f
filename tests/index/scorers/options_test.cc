// Scorers by name, their options, and the simple ones: StreamingLLM, scores of the caller, filters from files.
#include <limits>
#include <memory>

#include "absl/strings/match.h"
#include "index/scorers/filters.h"
#include "profile/tensor_writer.h"
#include "tests/index/scorers/made_up_layer.h"
#include "tests/temp_folder.h"

namespace seine {
namespace {

using testing::MadeUpLayer;
using testing::ScoresOf;

TEST(ScorerOptions, EveryNameMakesAScorer) {
  EXPECT_EQ(ScorerNames().size(), 13u);
  for (const std::string& name : ScorerNames()) {
    ScorerConfig config;
    config.name = name;
    EXPECT_TRUE(MakeScorer(config).ok()) << name;
  }
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
      {"scorer.epsilon: -1 is no number", [](ScorerConfig* c) { c->name = "expected_attention", c->epsilon = -1; }},
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
  EXPECT_EQ(status.message(), "scores: KV head 0, token 1 is not finite");
}

TEST(ScorerOptions, PublishedFiltersAreNegatedAndCheckedForShape) {
  const TempFolder folder;
  const std::string path = folder.Path("filters.safetensors");
  const std::vector<float> values = {1, -2, 3, -4, 5, -6, 7, -8};
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  ASSERT_TRUE(WriteTensors({{"q_filters", TensorFile::Type::kF32, {2, 2, 2}, bytes}}, {}, path).ok());
  const auto published = ReadFilters(path, /*negated=*/true, 2, 2, 2);
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_EQ((*published)[1], (Filters{-5, 6, -7, 8}));
  EXPECT_EQ((*ReadFilters(path, false, 2, 2, 2))[0], (Filters{1, -2, 3, -4}));
  EXPECT_TRUE(absl::StrContains(ReadFilters(path, true, 2, 1, 4).status().message(), "[2 layers, 1 KV heads, 4]"));
  EXPECT_EQ(ReadFilters(path + "x", true, 2, 2, 2).status().code(), absl::StatusCode::kNotFound);
}

TEST(ScorerOptions, FiltersOfAProfilePointWhereItsQueriesDo) {
  Profile profile;
  profile.num_q_heads = 2, profile.num_kv_heads = 1, profile.head_dim = 4;
  LayerProfile& layer = profile.layers.emplace_back();
  for (const double sign : {1.0, -1.0}) {
    const Eigen::VectorXd axis = sign * Eigen::VectorXd::Unit(4, sign > 0 ? 1 : 2);
    layer.q_mean.push_back(2 * axis);
    layer.q_moment.push_back(Eigen::MatrixXd::Identity(4, 4) + 4 * axis * axis.transpose());
  }
  const auto filters = FiltersFromProfile(profile, 0, Rope(), 0, 100);
  ASSERT_TRUE(filters.ok());
  const std::vector<float> want = {0, .5f, -.5f, 0};
  for (int j = 0; j < 4; ++j) EXPECT_NEAR((*filters)[j], want[j], 1e-6);
  EXPECT_FALSE(FiltersFromProfile(profile, 1, Rope(), 0, 100).ok());
}

}  // namespace
}  // namespace seine
