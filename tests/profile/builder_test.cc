// The builder against moments computed straight from the definition.
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "profile/moments.h"
#include "tests/profile/test_util.h"

namespace seine {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

struct Direct {
  explicit Direct(int dim) : mean(VectorXd::Zero(dim)), moment(MatrixXd::Zero(dim, dim)) {}
  void Add(const VectorXd& x) {
    mean += x;
    moment += x * x.transpose();
    ++count;
  }
  VectorXd mean;
  MatrixXd moment;
  int count = 0;
};

// Row of fp32 [count, heads, D].
VectorXd Row(const std::vector<float>& rows, int heads, int dim, int n, int head) {
  return Eigen::Map<const Eigen::VectorXf>(rows.data() + (n * heads + head) * dim, dim).cast<double>();
}

// Adds one head's vectors, each turned back by its own position.
void AddUndone(const std::vector<float>& rows, int heads, int head, int first_position, const Rope& rope, Direct* out) {
  const int dim = static_cast<int>(out->mean.size()), count = static_cast<int>(rows.size()) / heads / dim;
  for (int n = 0; n < count; ++n) {
    VectorXd x = Row(rows, heads, dim, n, head);
    if (rope.stated()) UndoRope(rope, first_position + n, x.data());
    out->Add(x);
  }
}

// Adds whole windows' vectors less their int8 centre, each turned back.
void AddResidual(const std::vector<float>& rows, int heads, int head, int first_position, const Rope& rope,
                 Direct* out) {
  const int dim = static_cast<int>(out->mean.size()), count = static_cast<int>(rows.size()) / heads / dim;
  for (int first = 0; first + 64 <= count; first += 64) {
    VectorXd centre = VectorXd::Zero(dim);
    for (int n = first; n < first + 64; ++n) centre += Row(rows, heads, dim, n, head) / 64;
    const double scale = centre.cwiseAbs().maxCoeff() / 127;
    for (int i = 0; i < dim; ++i) centre(i) = scale > 0 ? std::round(centre(i) / scale) * scale : 0;
    for (int n = first; n < first + 64; ++n) {
      VectorXd x = Row(rows, heads, dim, n, head) - centre;
      if (rope.stated()) UndoRope(rope, first_position + n, x.data());
      out->Add(x);
    }
  }
}

void ExpectNear(const Direct& direct, const VectorXd* mean, const MatrixXd& moment, const char* what) {
  if (mean != nullptr) {
    EXPECT_LT((*mean - direct.mean / direct.count).norm(), 1e-6) << what;
  }
  const MatrixXd expected = direct.moment / direct.count;
  EXPECT_LT((moment - expected).norm(), 1e-4 * expected.norm()) << what;  // centres round in fp32
  EXPECT_EQ(moment, MatrixXd(moment.transpose())) << what;
}

TEST(Builder, TwoTextsAddUpByTheirCounts) {
  for (const int dim : {16, 64, 80}) {
    for (const Rope::Style style : {Rope::Style::kHalfSplit, Rope::Style::kInterleaved}) {
      constexpr int kLayers = 2, kQ = 4, kKv = 2;
      struct Text {
        int tokens, queries;
        Rope rope;
      } texts[] = {
          {700, 30, PlainRope(dim, style)},  // more than one block, and part of a window left over
          {130, 9, ParseRope(R"({"rope_theta": 10000, "rope_type": "linear", "factor": 2})", dim, style, 1).value()}};
      ProfileBuilder builder(kLayers, kQ, kKv, dim);
      std::vector<Direct> q(kQ, Direct(dim)), k(kKv, Direct(dim)), residual(kKv, Direct(dim)), v(kKv, Direct(dim));
      for (uint32_t t = 0; t < 2; ++t) {
        const Text& text = texts[t];
        for (int layer = 0; layer < kLayers; ++layer) {
          const uint32_t seed = 10 * t + 100 * layer;
          std::vector<float> keys = RandomFloats(text.tokens * kKv * dim, seed);
          for (float& key : keys) key = key * .5f + 1;  // a mean that centres take off
          const std::vector<float> queries = RandomFloats(text.queries * kQ * dim, seed + 1);
          const std::vector<float> values = RandomFloats(text.tokens * kKv * dim, seed + 2);
          const int query_start = text.tokens + 16 - text.queries;
          builder.AddKeys(layer, keys.data(), text.tokens, 16, text.rope);
          builder.AddQueries(layer, queries.data(), text.queries, query_start, text.rope);
          builder.AddValues(layer, values.data(), text.tokens);
          if (layer != 1) continue;
          for (int head = 0; head < kQ; ++head) AddUndone(queries, kQ, head, query_start, text.rope, &q[head]);
          for (int head = 0; head < kKv; ++head) {
            AddUndone(keys, kKv, head, 16, text.rope, &k[head]);
            AddResidual(keys, kKv, head, 16, text.rope, &residual[head]);
            AddUndone(values, kKv, head, 0, Rope(), &v[head]);
          }
        }
      }
      const absl::StatusOr<Profile> profile = builder.Finish();
      ASSERT_TRUE(profile.ok()) << profile.status();
      EXPECT_TRUE(CheckGeometry(*profile, kLayers, kQ, kKv, dim).ok());
      EXPECT_EQ(profile->key_tokens, 830);
      EXPECT_EQ(profile->query_tokens, 39);
      EXPECT_EQ(residual[0].count, 640 + 128);
      const LayerProfile& layer = profile->layers[1];
      for (int head = 0; head < kQ; ++head) ExpectNear(q[head], &layer.q_mean[head], layer.q_moment[head], "q");
      for (int head = 0; head < kKv; ++head) {
        ExpectNear(k[head], &layer.k_mean[head], layer.k_moment[head], "k");
        ExpectNear(residual[head], nullptr, layer.k_residual[head], "residual");
        ExpectNear(v[head], &layer.v_mean[head], layer.v_moment[head], "v");
        EXPECT_LT(layer.k_residual[head].trace(), .5 * layer.k_moment[head].trace());
        EXPECT_LT((GroupQueryMoment(*profile, 1, head) - (layer.q_moment[2 * head] + layer.q_moment[2 * head + 1]) / 2)
                      .norm(),
                  1e-12);
      }
    }
  }
}

// Moments of stationary vectors: whatever the positions, they come back the same, and carrying them gives those seen.
TEST(Builder, UndoingAndCarryingMeet) {
  constexpr int kDim = 8, kTokens = 4096;
  const Rope rope = PlainRope(kDim);
  std::vector<float> keys;
  Direct seen(kDim);
  for (int n = 0; n < kTokens; ++n) {
    VectorXd x = VectorXd::LinSpaced(kDim, -1, 2);
    ApplyRope(rope, 1000 + n, x.data());
    seen.Add(x);
    for (const double value : x) keys.push_back(static_cast<float>(value));
  }
  ProfileBuilder builder(1, 1, 1, kDim);
  builder.AddKeys(0, keys.data(), kTokens, 1000, rope);
  builder.AddQueries(0, keys.data(), kTokens, 1000, rope);
  builder.AddValues(0, keys.data(), kTokens);
  const absl::StatusOr<Profile> profile = builder.Finish();
  ASSERT_TRUE(profile.ok()) << profile.status();
  const LayerProfile& layer = profile->layers[0];
  const VectorXd x = VectorXd::LinSpaced(kDim, -1, 2);
  EXPECT_LT((layer.k_mean[0] - x).norm(), 1e-6);
  EXPECT_LT((layer.k_moment[0] - x * x.transpose()).norm(), 1e-5);
  const MatrixXd carried = CarryMoment(layer.q_moment[0], rope, 999.5, 1000 + kTokens - .5);
  EXPECT_LT((carried - seen.moment / seen.count).norm(), .01 * carried.norm());
}

TEST(Builder, NamesTheLayerThatHasNothing) {
  const std::vector<float> rows(100 * 8, 1.0f);
  ProfileBuilder builder(2, 1, 1, 8);
  EXPECT_TRUE(absl::StrContains(builder.Finish().status().message(), "layer 0 has no queries"));
  for (int layer = 0; layer < 2; ++layer) {
    builder.AddQueries(layer, rows.data(), 100, 0, {});
    builder.AddValues(layer, rows.data(), 100);
  }
  EXPECT_TRUE(absl::StrContains(builder.Finish().status().message(), "layer 0 has no keys"));
  builder.AddKeys(0, rows.data(), 100, 0, {});
  builder.AddKeys(1, rows.data(), 63, 0, {});
  const absl::Status status = builder.Finish().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "layer 1 has no whole windows of 64 keys");
  builder.AddKeys(1, rows.data(), 64, 63, {});
  const absl::StatusOr<Profile> profile = builder.Finish();
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->key_tokens, 100);  // what every layer has
  EXPECT_EQ(profile->layers[1].v_moment.size(), 1u);
  EXPECT_TRUE(profile->layers[0].k_residual[0].isZero(1e-9));  // equal keys leave nothing about their mean
}

// 513 keys are a block of 512 and one more, which is no window: nothing is added to the residual.
TEST(Builder, LessThanAWindowOfWideKeys) {
  for (const int dim : {64, 128, 256}) {
    const std::vector<float> rows(513 * dim, 1.0f);
    ProfileBuilder builder(1, 1, 1, dim);
    builder.AddKeys(0, rows.data(), 513, 0, {});
    builder.AddKeys(0, rows.data(), 1, 513, {});
    builder.AddQueries(0, rows.data(), 1, 0, {});
    const absl::StatusOr<Profile> profile = builder.Finish();
    ASSERT_TRUE(profile.ok()) << profile.status();
    EXPECT_EQ(profile->key_tokens, 514);
    EXPECT_TRUE(profile->layers[0].k_residual[0].isZero(1e-9));
  }
}

TEST(Builder, ValuesAreOfAllLayersOrOfNone) {
  const std::vector<float> rows(128 * 8, 1.0f);
  ProfileBuilder builder(2, 1, 1, 8);
  for (int layer = 0; layer < 2; ++layer) {
    builder.AddQueries(layer, rows.data(), 100, 0, {});
    builder.AddKeys(layer, rows.data(), 128, 0, {});
  }
  const absl::StatusOr<Profile> without = builder.Finish();
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_TRUE(without->layers[1].v_mean.empty() && without->layers[1].v_moment.empty());
  builder.AddValues(1, rows.data(), 100);
  EXPECT_EQ(builder.Finish().status().message(), "layer 0 has no values");
}

}  // namespace
}  // namespace seine
