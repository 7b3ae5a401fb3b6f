// Q-Filters from a profile: for queries at which positions its moments are carried, under a codec that has a horizon
// and under one that has none; the directions in float64, by a sum over the positions.
#include <Eigen/Dense>
#include <cmath>
#include <memory>

#include "absl/strings/match.h"
#include "profile/moments.h"
#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::MakeIndex;
using testing::Names;
using testing::SmallConfig;
using testing::TestBackend;
using testing::TokenRow;

constexpr int kFilterDim = 64, kHalf = kFilterDim / 2, kFilterTokens = 40;

class FiltersHorizon : public ::testing::Test {
 protected:
  FiltersHorizon() {
    rope_.style = Rope::Style::kHalfSplit;
    for (int i = 0; i < kHalf; ++i) rope_.inv_freq.push_back(.02 * std::pow(1e-4, i / double(kHalf)));
    // Queries along one direction, whose pairs turn at other speeds, and a little of everything.
    Profile profile;
    profile.num_q_heads = 4, profile.num_kv_heads = 2, profile.head_dim = kFilterDim;
    profile.rope_json = RopeJson(rope_);
    profile.layers.resize(2);
    for (LayerProfile& layer : profile.layers) {
      for (int q = 0; q < 4; ++q) {
        Eigen::VectorXd mean(kFilterDim);
        for (int j = 0; j < kFilterDim; ++j) mean[j] = std::sin(j * 1.7 + q) + .3;
        layer.q_mean.push_back(mean);
        layer.q_moment.push_back(mean * mean.transpose() + .1 * Eigen::MatrixXd::Identity(kFilterDim, kFilterDim));
      }
      for (int h = 0; h < 2; ++h) {
        layer.k_mean.push_back(Eigen::VectorXd::Zero(kFilterDim));
        layer.k_moment.push_back(Eigen::MatrixXd::Identity(kFilterDim, kFilterDim));
        layer.k_residual.push_back(Eigen::MatrixXd::Identity(kFilterDim, kFilterDim));
      }
    }
    profile_ = std::make_shared<const Profile>(std::move(profile));
  }

  IndexConfig Config() const {
    IndexConfig config = SmallConfig();
    config.geometry.rope = rope_;
    config.eviction.emplace();
    config.eviction->scorer.name = "qfilters";
    config.eviction->budget.tokens = 1000;
    config.eviction->profile = profile_;
    return config;
  }

  // Mean over the group of the leading directions of queries at positions 0 ... horizon.
  Eigen::VectorXd Want(int kv_head, int64_t horizon) const {
    Eigen::VectorXd filter = Eigen::VectorXd::Zero(kFilterDim);
    for (int q = 2 * kv_head; q < 2 * kv_head + 2; ++q) {
      Eigen::MatrixXd moment = Eigen::MatrixXd::Zero(kFilterDim, kFilterDim);
      Eigen::VectorXd mean = Eigen::VectorXd::Zero(kFilterDim);
      for (int64_t p = 0; p <= horizon; ++p) {
        Eigen::MatrixXd turn = Eigen::MatrixXd::Zero(kFilterDim, kFilterDim);
        for (int i = 0; i < kHalf; ++i) {
          const double c = std::cos(p * rope_.inv_freq[i]), s = std::sin(p * rope_.inv_freq[i]);
          turn(i, i) = turn(i + kHalf, i + kHalf) = c;
          turn(i + kHalf, i) = s;
          turn(i, i + kHalf) = -s;
        }
        moment += turn * profile_->layers[0].q_moment[q] * turn.transpose();
        mean += turn * profile_->layers[0].q_mean[q];
      }
      const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(moment);
      const Eigen::VectorXd direction = solver.eigenvectors().col(kFilterDim - 1);
      filter += direction * (direction.dot(mean) < 0 ? -.5 : .5);
    }
    return filter;
  }

  void Expect(const IndexConfig& config, int64_t horizon) {
    const auto index = MakeIndex(config, &backend_);
    const SequenceHandle sequence = *index->CreateSequence("");
    ASSERT_TRUE(AppendNames(index.get(), sequence, 0, 0, Names(0, kFilterTokens)).ok());
    ScorerConfig scorer;
    scorer.name = "qfilters";
    const auto scores = index->Score(sequence, 0, scorer, {});
    ASSERT_TRUE(scores.ok()) << scores.status();
    for (int h = 0; h < 2; ++h) {
      const Eigen::VectorXd filter = Want(h, horizon);
      for (int i = 0; i < kFilterTokens; ++i) {
        const std::string row = TokenRow(config.geometry, i);
        const auto* key = reinterpret_cast<const _Float16*>(row.data()) + h * kFilterDim;
        double want = 0;
        for (int j = 0; j < kFilterDim; ++j) want += key[j] * filter[j];
        ASSERT_NEAR(scores->scores[h][i], want, 5e-3) << "head " << h << ", token " << i;
      }
    }
  }

  TestBackend backend_;
  Rope rope_;
  std::shared_ptr<const Profile> profile_;
};

TEST_F(FiltersHorizon, IsWhatTheEvictionStates) {
  IndexConfig config = Config();
  for (const int64_t horizon : {512, 2048}) {
    config.eviction->horizon = horizon;
    Expect(config, horizon);
  }
}

TEST_F(FiltersHorizon, IsTheBalancedCodecsAndElseTheDefault) {
  EXPECT_EQ(FilterHorizon(Config()), 32768);
  IndexConfig config = Config();
  config.codec.name = "balanced";
  config.codec.profile = profile_;
  config.codec.horizon = 1024;
  EXPECT_EQ(FilterHorizon(config), 1024);
  Expect(config, 1024);
  config.eviction->horizon = 600;
  Expect(config, 600);
}

TEST_F(FiltersHorizon, IsRefusedWhereItHasNoEffect) {
  struct Case {
    const char* error;
    void (*set)(IndexConfig*);
  };
  const Case kCases[] = {
      {"eviction.horizon: 511 is not in [512,", [](IndexConfig* c) { c->eviction->horizon = 511; }},
      {"eviction.horizon: given, but only qfilters",
       [](IndexConfig* c) {
         c->eviction->horizon = 1024, c->eviction->scorer.name = "knorm", c->eviction->profile = nullptr;
       }},
      {"eviction.horizon: given, but only qfilters",
       [](IndexConfig* c) {
         c->eviction->horizon = 1024, c->eviction->profile = nullptr;
         c->eviction->filters.assign(2, Filters(2 * kFilterDim, 1.0f));
       }},
      {"geometry.rope: not stated", [](IndexConfig* c) { c->eviction->horizon = 1024, c->geometry.rope = Rope(); }},
  };
  for (const Case& test : kCases) {
    IndexConfig config = Config();
    test.set(&config);
    const absl::Status status = Index::Create(config, &backend_).status();
    EXPECT_TRUE(absl::StrContains(status.message(), test.error)) << status << "\nwanted: " << test.error;
  }
}

}  // namespace
}  // namespace seine
