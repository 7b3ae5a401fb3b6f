// Q-Filters' directions: of a profile, of queries, and as they are published.
#include "profile/filters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "profile/io/tensor_writer.h"
#include "profile/moments.h"
#include "tests/temp_folder.h"

namespace seine {
namespace {

void Write(const std::string& path, const std::vector<float>& values, const std::string& name = "q_filters") {
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  ASSERT_TRUE(WriteTensors({{name, TensorFile::Type::kF32, {2, 2, 2}, bytes}}, {}, path).ok());
}

TEST(Filters, PublishedOnesAreNegatedAndCheckedForShape) {
  const TempFolder folder;
  const std::string path = folder.Path("filters.safetensors");
  Write(path, {1, -2, 3, -4, 5, -6, 7, -8});
  const auto published = ReadFilters(path, /*negated=*/true, 2, 2, 2);
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_EQ((*published)[1], (Filters{-5, 6, -7, 8}));
  EXPECT_EQ((*ReadFilters(path, false, 2, 2, 2))[0], (Filters{1, -2, 3, -4}));
  EXPECT_TRUE(absl::StrContains(ReadFilters(path, true, 2, 1, 4).status().message(), "[2 layers, 1 KV heads, 4]"));
  EXPECT_EQ(ReadFilters(path + "x", true, 2, 2, 2).status().code(), absl::StatusCode::kNotFound);
  Write(path, {1, -2, 3, -4, 5, -6, 7, std::numeric_limits<float>::quiet_NaN()});
  EXPECT_TRUE(absl::StrContains(ReadFilters(path, true, 2, 2, 2).status().message(), "holds NaN or infinity"));
  Write(path, {1, -2, 3, -4, 5, -6, 7, -8}, "other");
  EXPECT_EQ(ReadFilters(path, true, 2, 2, 2).status().code(), absl::StatusCode::kNotFound);
}

TEST(Filters, OfAProfilePointWhereItsQueriesDo) {
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

// Queries along +-axis, most of them short and along +axis, few of them long and along -axis: the direction is the
// mean's (Q-Filters, section 2.2 c), and the profile of the same queries says the same. Two heads of a group whose axes
// are orthogonal.
TEST(Filters, PointWhereTheMeanDoesAlsoWhereMostDoNot) {
  std::vector<float> queries;
  Profile profile;
  profile.num_q_heads = 2, profile.num_kv_heads = 1, profile.head_dim = 3;
  LayerProfile& layer = profile.layers.emplace_back();
  layer.q_mean.assign(2, Eigen::VectorXd::Zero(3));
  layer.q_moment.assign(2, Eigen::MatrixXd::Zero(3, 3));
  for (int i = 0; i < 5; ++i) {
    const float x = i < 2 ? -3.0f : 1.0f;
    queries.insert(queries.end(), {x, 0, 0, 0, 0, -x});
    for (int h = 0; h < 2; ++h) {
      const Eigen::VectorXd q = Eigen::Map<const Eigen::VectorXf>(queries.data() + (i * 2 + h) * 3, 3).cast<double>();
      layer.q_mean[h] += q / 5;
      layer.q_moment[h] += q * q.transpose() / 5;
    }
  }
  const Filters observed = FiltersFromQueries(queries.data(), 5, 1, 2, 3);
  const auto profiled = FiltersFromProfile(profile, 0, Rope(), 0, 100);
  ASSERT_TRUE(profiled.ok());
  const std::vector<float> want = {-.5f, 0, .5f};
  ASSERT_EQ(observed.size(), want.size());
  for (int j = 0; j < 3; ++j) {
    EXPECT_NEAR(observed[j], want[j], 1e-6);
    EXPECT_NEAR((*profiled)[j], want[j], 1e-6);
  }
}

}  // namespace
}  // namespace seine
