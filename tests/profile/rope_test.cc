// RoPE: frequencies against transformers' own, turning there and back, moments carried against turning every position.
#include "profile/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "profile/moments.h"
#include "tests/profile/test_util.h"

namespace seine {
namespace {

using Style = Rope::Style;

// inv_freq of head_dim 64 at pairs 0, 5, 10, 16, 20, 24, 28, 31, as ROPE_INIT_FUNCTIONS of transformers 5.23 gives it
// (in fp32).
TEST(Rope, TypesGiveTransformersFrequencies) {
  const struct {
    const char* json;
    int64_t length;
    double expected[8];
  } cases[] = {
      {R"({"rope_type": "default", "rope_theta": 10000.0})",
       1,
       {1, .237137371, .0562341325, .01, .00316227766, .001, .000316227766, .000133352143}},
      {R"({"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})",
       1,
       {.25, .0592843406, .0140585322, .0025, .000790569466, .00025, 7.90569466e-05, 3.33380376e-05}},
      {R"({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0, "max_position_embeddings": 2048})",
       2048,
       {1, .237137362, .0562341288, .01, .00316227786, .001, .000316227786, .00013335215}},
      {R"({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0, "max_position_embeddings": 2048})",
       6000,
       {1, .183764338, .0337693319, .00442217477, .00114036771, .000294072117, 7.58338065e-05, 2.74422418e-05}},
      {R"({"rope_type": "yarn", "rope_theta": 100000.0, "factor": 4.0, "original_max_position_embeddings": 8192})",
       1,
       {1, .165481701, .0273841955, .00173925271, .000187473546, 4.44569851e-05, 1.05424133e-05, 3.58253169e-06}},
      {R"({"rope_type": "yarn", "rope_theta": 100000.0, "factor": 4.0, "original_max_position_embeddings": 8192,
           "truncate": false, "beta_fast": 16, "beta_slow": 2, "mscale": null})",
       1,
       {1, .165481701, .0273841955, .00161567412, .000187473546, 4.44569851e-05, 1.05424133e-05, 3.58253169e-06}},
      {R"({"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})",
       1,
       {1, .128687382, .0165604409, .000524846022, 3.42810235e-05, 6.64786967e-06, 1.28917316e-06, 3.7673226e-07}},
      // As before transformers 5, and a whole config.json.
      {R"({"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}})",
       1,
       {.25, .0592843406, .0140585322, .0025, .000790569466, .00025, 7.90569466e-05, 3.33380376e-05}},
      {R"({"rope_theta": 10000.0, "rope_scaling": null, "max_position_embeddings": 2048})",
       1,
       {1, .237137371, .0562341325, .01, .00316227766, .001, .000316227766, .000133352143}},
      {R"({"hidden_size": 9, "rope_parameters": {"rope_type": "linear", "rope_theta": 10000, "factor": 4}})",
       1,
       {.25, .0592843406, .0140585322, .0025, .000790569466, .00025, 7.90569466e-05, 3.33380376e-05}},
  };
  constexpr int kPairs[] = {0, 5, 10, 16, 20, 24, 28, 31};
  for (const auto& test : cases) {
    const absl::StatusOr<Rope> rope = ParseRope(test.json, 64, Style::kInterleaved, test.length);
    ASSERT_TRUE(rope.ok()) << test.json << ": " << rope.status();
    ASSERT_EQ(rope->head_dim(), 64);
    EXPECT_EQ(rope->style, Style::kInterleaved);
    for (int i = 0; i < 8; ++i) {
      EXPECT_NEAR(rope->inv_freq[kPairs[i]] / test.expected[i], 1, 1e-6) << test.json << " pair " << kPairs[i];
    }
  }
}

// The same of a part of a head, by pairs 0, 2, 5, 7, 8, 12, 15, 16, 24 and 31; what lies behind it does not turn.
TEST(Rope, PartsOfHeadsTurnByTransformersFrequencies) {
  const std::string longrope =
      R"({"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 4096,
          "partial_rotary_factor": 0.25, "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5],
          "short_factor": [1.0, 1.0625, 1.125, 1.1875, 1.25, 1.3125, 1.375, 1.4375]})";
  const struct {
    std::string json;
    int64_t length;
    int rotary_dim;
    double expected[10];
  } cases[] = {
      {R"({"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25})",
       1,
       16,
       {1, .1, .00316227786, .000316227786}},
      {R"({"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75})",
       1,
       48,
       {1, .464158893, .146779925, .0681292117, .046415884, .00999999978, .00316227786, .00215443433}},
      {R"({"rope_type": "yarn", "rope_theta": 100000.0, "factor": 4.0, "original_max_position_embeddings": 8192,
           "partial_rotary_factor": 0.5})",
       1,
       32,
       {1, .237137362, .0273841955, .00454567187, .00173925271, 4.44569851e-05, 5.13381246e-06}},
      {R"({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0, "max_position_embeddings": 2048,
           "partial_rotary_factor": 0.5})",
       6000,
       32,
       {1, .256127357, .0332001336, .00850346312, .00430351961, .000282316119, 3.65948181e-05}},
      {R"({"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "partial_rotary_factor": 0.5})",
       1,
       32,
       {1, .193922758, .0165604409, .00321144611, .000524846022, 6.64786967e-06, 5.6770881e-07}},
      // Gemma 4's pairs are those of a whole head.
      {R"({"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25})",
       1,
       0,
       {1, .421696514, .115478203, .0486967526}},
      {R"({"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5, "factor": 4.0})",
       1,
       0,
       {.25, .105424128, .0288695507, .0121741882, .00790569466, .00140585331, .000384981628}},
      {longrope, 4096, 16, {1, .088888891, .00240935455, .000219984548}},
      {longrope, 4097, 16, {1, .0500000007, .000903507927, 7.02728357e-05}},
      {R"({"rope_type": "none"})", 1, 0, {}},
  };
  constexpr int kPairs[] = {0, 2, 5, 7, 8, 12, 15, 16, 24, 31};
  for (const auto& test : cases) {
    const absl::StatusOr<Rope> rope = ParseRope(test.json, 64, Style::kHalfSplit, test.length);
    ASSERT_TRUE(rope.ok()) << test.json << ": " << rope.status();
    EXPECT_EQ(rope->rotary_dim, test.rotary_dim);
    EXPECT_EQ(rope->turns(), test.expected[0] > 0);
    for (int i = 0; i < 10; ++i) {
      EXPECT_NEAR(rope->inv_freq[kPairs[i]], test.expected[i], 1e-6 * test.expected[i])
          << test.json << " " << kPairs[i];
    }
    const auto again = ParseRope(RopeJson(*rope), 64, Style::kHalfSplit, 1);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->inv_freq, rope->inv_freq);
    EXPECT_EQ(again->rotary_dim, rope->rotary_dim);
  }
}

TEST(Rope, LayersMayTurnOtherwise) {
  const Rope rope = PlainRope(64);
  const auto layers = ParseLayerRopes(R"([{"layers": [3, 7], "rope": {"rope_type": "none"}},
                                          {"layers": [4], "rope": {"rope_theta": 500000}}])",
                                      64, Style::kHalfSplit, 1);
  ASSERT_TRUE(layers.ok()) << layers.status();
  ASSERT_TRUE(CheckLayerRopes(rope, *layers, 8).ok());
  EXPECT_TRUE(RopeOfLayer(rope, *layers, 2).inv_freq == rope.inv_freq);
  EXPECT_FALSE(RopeOfLayer(rope, *layers, 3).turns() || RopeOfLayer(rope, *layers, 7).turns());
  EXPECT_NEAR(RopeOfLayer(rope, *layers, 4).inv_freq[31], std::pow(500000, -31. / 32), 1e-15);
  const auto again = ParseLayerRopes(LayerRopesJson(*layers), 64, Style::kHalfSplit, 1);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(again->size(), 3u);
  for (const auto& [layer, own] : *layers) EXPECT_EQ(again->at(layer).inv_freq, own.inv_freq);
  EXPECT_EQ(LayerRopesJson({}), "");

  EXPECT_EQ(CheckLayerRopes(rope, *layers, 7).message(), "layer 7: the model has 7 layers");
  EXPECT_EQ(CheckLayerRopes(*ParseRope(R"({"rope_theta": 10000, "partial_rotary_factor": 0.5})", 64, rope.style, 1),
                            *layers, 8)
                .message(),
            "layer 4: pairs other coordinates than the model's other layers");
  EXPECT_TRUE(absl::StartsWith(CheckLayerRopes(layers->at(3), *layers, 8).message(), "rope: must be that of layers"));
  for (const auto& [json, message] :
       {std::pair("{", "is not JSON"),
        {"{}", "must be a list"},
        {"[7]", "must be objects"},
        {R"([{"layers": 3, "rope": {}}])", "must be objects"},
        {R"([{"layers": [3], "rope": {"rope_type": "none"}}, {"layers": [3],
                                            "rope": {"rope_type": "none"}}])",
         "layer 3 is stated twice"},
        {R"([{"layers": [-1], "rope": {"rope_type": "none"}}])", "-1 is no layer"},
        {R"([{"layers": [3, 7], "rope": {}}])", "layers [3,7]: rope.rope_theta: is missing"}}) {
    const absl::Status status = ParseLayerRopes(json, 64, Style::kHalfSplit, 1).status();
    EXPECT_TRUE(absl::StartsWith(status.message(), "layer_ropes: ") && absl::StrContains(status.message(), message))
        << json << ": " << status;
  }
}

TEST(Rope, NotStated) {
  for (const char* json : {"", "null"}) {
    const absl::StatusOr<Rope> rope = ParseRope(json, 64, Style::kHalfSplit, 1);
    ASSERT_TRUE(rope.ok()) << rope.status();
    EXPECT_FALSE(rope->stated());
    const Eigen::MatrixXd moment = RandomMoment(8, 20, 1);
    EXPECT_EQ(CarryMoment(moment, *rope, 0, 1000), moment);
    EXPECT_EQ(CarryMean(moment.col(0), *rope, 0, 1000), moment.col(0));
  }
}

TEST(Rope, ATableSaysAnyFrequencies) {
  Rope rope = *ParseRope(R"({"rope_type": "yarn", "rope_theta": 1e5, "factor": 4,
                             "original_max_position_embeddings": 8192})",
                         64, Style::kInterleaved, 1);
  const absl::StatusOr<Rope> again = ParseRope(RopeJson(rope), 64, Style::kInterleaved, 99999);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->inv_freq, rope.inv_freq);
  EXPECT_EQ(RopeJson(Rope()), "");
}

TEST(Rope, NamesTheFieldThatIsWrong) {
  const struct {
    const char* json;
    const char* message;
  } cases[] = {
      {"{", "rope: is not JSON"},
      {"[1]", "rope: must be a JSON object"},
      {"{}", "rope.rope_theta: is missing"},
      {R"({"rope_theta": "10000"})", "rope.rope_theta: must be a number"},
      {R"({"rope_theta": 1})", "rope.rope_theta: must be a number"},
      {R"({"rope_theta": 1e4, "rope_type": "longrope"})", "rope.original_max_position_embeddings: is missing"},
      {R"({"rope_theta": 1e4, "rope_type": "longrope", "original_max_position_embeddings": 9, "short_factor": [1]})",
       "rope.short_factor: must be 32 positive factors"},
      {R"({"rope_theta": 1e4, "rope_type": "axial"})",
       "rope.rope_type: must be default, linear, dynamic, yarn, llama3, longrope, proportional, table or none, not "
       R"("axial")"},
      {R"({"rope_theta": 1e4, "partial_rotary_factor": 0.3})",
       "rope.partial_rotary_factor: must turn an even number of a head's 64 coordinates, not 0.3"},
      {R"({"rope_theta": 1e4, "partial_rotary_factor": 1.5})", "rope.partial_rotary_factor: must turn an even number"},
      {R"({"rope_theta": 1e4, "partial_rotary_factor": 0})", "rope.partial_rotary_factor: must turn an even number"},
      {R"({"rope_theta": 1e4, "rope_type": 3})", "rope.rope_type: must be"},
      {R"({"rope_type": "table"})", "rope.inv_freq: must be 32 frequencies"},
      {R"({"rope_type": "table", "inv_freq": 1})", "rope.inv_freq: must be 32 frequencies"},
      {R"({"rope_type": "table", "inv_freq": [1, 0.5]})", "rope.inv_freq: must be 32 frequencies"},
      {R"({"rope_type": "table", "inv_freq": [-1, "a"]})", "rope.inv_freq: must be 32 frequencies"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"type": "su"}})", R"(not "su")"},
      {R"({"rope_theta": 1e4, "rope_scaling": 4})", "rope.rope_scaling: must be an object or null"},
      {R"({"rope_theta": 1e4, "mrope_section": [16, 24, 24]})", "rope.mrope_section"},
      {R"({"rope_theta": 1e4, "rope_type": "linear"})", "rope.factor: is missing"},
      {R"({"rope_theta": 1e4, "rope_type": "linear", "factor": 0.5})",
       "rope.factor: must be a number of at least 1, not 0.5"},
      {R"({"rope_theta": 1e4, "rope_type": "dynamic", "factor": 2})",
       "rope.original_max_position_embeddings: is missing"},
      {R"({"rope_theta": 1e4, "rope_type": "yarn", "factor": 2})", "rope.original_max_position_embeddings: is missing"},
      {R"({"rope_theta": 1e4, "rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 99, "truncate": 1})",
       "rope.truncate: must be true or false"},
      {R"({"rope_theta": 1e4, "rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 99, "beta_slow": 64})",
       "rope.beta_fast: must be at least beta_slow"},
      {R"({"rope_theta": 1e4, "rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 99,
           "low_freq_factor": 4, "high_freq_factor": 4})",
       "rope.high_freq_factor: must be above low_freq_factor"},
  };
  for (const auto& test : cases) {
    const absl::Status status = ParseRope(test.json, 64, Style::kHalfSplit, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.json;
    EXPECT_TRUE(absl::StrContains(status.message(), test.message)) << test.json << ": " << status;
  }
  for (const int dim : {-2, 0, 2, 63}) {
    const absl::Status status = ParseRope(R"({"rope_theta": 1e4})", dim, Style::kHalfSplit, 1).status();
    EXPECT_TRUE(absl::StartsWith(status.message(), "head_dim: ")) << status;
  }
}

TEST(Rope, TurnsPairsOfItsStyle) {
  for (const Style style : {Style::kHalfSplit, Style::kInterleaved}) {
    Rope rope;
    rope.style = style;
    rope.inv_freq = {std::acos(-1.0) / 2, 0};  // a quarter turn a token, and none
    double x[4] = {1, 2, 3, 4};
    ApplyRope(rope, 1, x);  // (a, b) -> (-b, a)
    const double half_split[4] = {-3, 2, 1, 4}, interleaved[4] = {-2, 1, 3, 4};
    const double* expected = style == Style::kHalfSplit ? half_split : interleaved;
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(x[i], expected[i], 1e-15) << i;
    UndoRope(rope, 1, x);
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(x[i], i + 1, 1e-15) << i;
  }
}

TEST(Rope, UndoTakesBackApplyAtAnyPosition) {
  const Rope rope = PlainRope(128);
  const std::vector<float> values = RandomFloats(128, 7);
  for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{511}, int64_t{1} << 20}) {
    std::vector<double> x(values.begin(), values.end());
    ApplyRope(rope, position, x.data());
    UndoRope(rope, position, x.data());
    for (int i = 0; i < 128; ++i) EXPECT_NEAR(x[i], values[i], 1e-12) << position << " " << i;
  }
}

// Positions so fine that their mean is the integral.
TEST(Rope, CarriedMomentsAreMeansOverTurnedOnes) {
  constexpr int kDim = 8, kSteps = 20000;
  const Eigen::MatrixXd moment = RandomMoment(kDim, 5, 3);  // of rank 5
  const Eigen::VectorXd mean = moment.col(2);
  for (const Style style : {Style::kHalfSplit, Style::kInterleaved}) {
    const Rope rope = PlainRope(kDim, style);
    for (const auto& [begin, end] : {std::pair(0.0, 0.0), {17.0, 17.0}, {0.0, 40.0}, {300.0, 355.0}}) {
      Eigen::MatrixXd sum = Eigen::MatrixXd::Zero(kDim, kDim);
      Eigen::VectorXd mean_sum = Eigen::VectorXd::Zero(kDim);
      for (int step = 0; step < kSteps; ++step) {
        const double position = begin + (end - begin) * (step + .5) / kSteps;
        Rope turn = rope;  // at position 1 of this one, a vector has turned as far as at `position` of the other
        for (double& w : turn.inv_freq) w *= position;
        Eigen::MatrixXd rotation = Eigen::MatrixXd::Identity(kDim, kDim);
        for (int i = 0; i < kDim; ++i) ApplyRope(turn, 1, rotation.col(i).data());
        sum += rotation * moment * rotation.transpose();
        mean_sum += rotation * mean;
      }
      const double scale = moment.norm();
      EXPECT_LT((CarryMoment(moment, rope, begin, end) - sum / kSteps).norm(), 1e-6 * scale) << begin << " " << end;
      EXPECT_LT((CarryMean(mean, rope, begin, end) - mean_sum / kSteps).norm(), 1e-6 * scale) << begin << " " << end;
    }
  }
}

// A part of a head by RoFormer's matrices, written out: coordinates behind the part are as they were.
TEST(Rope, CarriedMomentsOfAPartAreMeansOverTurnedOnes) {
  constexpr int kDim = 12, kPart = 6, kSteps = 20000;
  const Eigen::MatrixXd moment = RandomMoment(kDim, 7, 4);
  const Eigen::VectorXd mean = moment.col(5);
  for (const Style style : {Style::kHalfSplit, Style::kInterleaved}) {
    const Rope rope = *ParseRope(R"({"rope_theta": 100.0, "partial_rotary_factor": 0.5})", kDim, style, 1);
    for (const auto& [begin, end] : {std::pair(5.0, 5.0), {0.0, 40.0}, {300.0, 355.0}}) {
      Eigen::MatrixXd sum = Eigen::MatrixXd::Zero(kDim, kDim);
      Eigen::VectorXd mean_sum = Eigen::VectorXd::Zero(kDim);
      for (int step = 0; step < kSteps; ++step) {
        const double position = begin + (end - begin) * (step + .5) / kSteps;
        Eigen::MatrixXd rotation = Eigen::MatrixXd::Identity(kDim, kDim);
        for (int i = 0; i < kPart / 2; ++i) {
          const double angle = position * std::pow(100.0, -2.0 * i / kPart);
          const int a = style == Style::kHalfSplit ? i : 2 * i,
                    b = style == Style::kHalfSplit ? i + kPart / 2 : 2 * i + 1;
          rotation(a, a) = rotation(b, b) = std::cos(angle);
          rotation(b, a) = std::sin(angle);
          rotation(a, b) = -std::sin(angle);
        }
        sum += rotation * moment * rotation.transpose();
        mean_sum += rotation * mean;
      }
      EXPECT_LT((CarryMoment(moment, rope, begin, end) - sum / kSteps).norm(), 1e-6 * moment.norm()) << begin;
      EXPECT_LT((CarryMean(mean, rope, begin, end) - mean_sum / kSteps).norm(), 1e-6 * moment.norm()) << begin;
    }
  }
}

TEST(Rope, CarriedMomentsKeepTraceAndStayPositive) {
  for (const int dim : {64, 80, 96, 128, 256}) {
    const Eigen::MatrixXd moment = RandomMoment(dim, dim / 3, 5),
                          carried = CarryMoment(moment, PlainRope(dim), 0, 32768);
    EXPECT_NEAR(carried.trace() / moment.trace(), 1, 1e-12);
    EXPECT_EQ(carried, Eigen::MatrixXd(carried.transpose()));
    EXPECT_GT(Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd>(carried).eigenvalues()(0), -1e-12 * carried.trace());
  }
}

}  // namespace
}  // namespace seine
