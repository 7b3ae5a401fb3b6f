// First bases from a profile, and the file that keeps bases.
#include "index/subspace/calibrate.h"

#include <gtest/gtest.h>

#include <Eigen/SVD>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "profile/moments.h"
#include "tests/index/subspace/streams.h"
#include "tests/temp_folder.h"

namespace seine {
namespace {

using Eigen::MatrixXd;

constexpr int kCalibratedDim = 64, kCalibratedHeads = 2;

// Two KV heads of one query head each; keys of rank 4 and 6 before RoPE, values of rank 3.
Profile MadeUpProfile() {
  Profile profile;
  profile.num_q_heads = profile.num_kv_heads = kCalibratedHeads;
  profile.head_dim = kCalibratedDim;
  LayerProfile layer;
  const auto moment = [](int rank, uint64_t seed) {
    const MatrixXd u = RandomAxes(kCalibratedDim, seed).leftCols(rank);
    return MatrixXd(u * u.transpose());
  };
  for (int h = 0; h < kCalibratedHeads; ++h) {
    layer.q_mean.push_back(Eigen::VectorXd::Zero(kCalibratedDim));
    layer.k_mean.push_back(Eigen::VectorXd::Zero(kCalibratedDim));
    layer.v_mean.push_back(Eigen::VectorXd::Zero(kCalibratedDim));
    layer.q_moment.push_back(moment(2, 10 + h));
    layer.k_moment.push_back(moment(4 + 2 * h, 20 + h));
    layer.k_residual.push_back(layer.k_moment.back());
    layer.v_moment.push_back(moment(3, 30 + h));
  }
  profile.layers = {layer};
  return profile;
}

Rope MadeUpRope() {
  return ParseRope(R"({"rope_theta": 10000})", kCalibratedDim, Rope::Style::kHalfSplit, 1024).value();
}

CalibrationOptions PreRope(double energy) {
  CalibrationOptions options;
  options.frame = KeyFrame::kPreRope;
  options.energy = energy;
  return options;
}

TEST(Calibrate, RanksOfALayerAreTheSmallestThatHoldTheShareInEveryHead) {
  Profile profile = MadeUpProfile();  // ranks 4 and 6 of keys, 3 of values
  LayerProfile wider = profile.layers[0];
  const MatrixXd axes = RandomAxes(kCalibratedDim, 40);
  wider.v_moment[1] = axes.leftCols(9) * axes.leftCols(9).transpose();
  profile.layers.push_back(wider);
  const auto ranks = [&](double energy) { return RanksForEnergy(profile, MadeUpRope(), {}, PreRope(energy)).value(); };
  ASSERT_EQ(ranks(.999).size(), 2u);
  EXPECT_EQ(ranks(.999)[0].keys, 6);
  EXPECT_EQ(ranks(.999)[0].values, 3);
  EXPECT_EQ(ranks(.999)[1].keys, 6);
  EXPECT_EQ(ranks(.999)[1].values, 9);
  EXPECT_EQ(ranks(.66)[1].keys, 4);    // 4 of 6 equal directions
  EXPECT_EQ(ranks(.66)[1].values, 6);  // 6 of 9
  EXPECT_EQ(ranks(1e-9)[0].keys, 1);
  for (const double energy : {0.0, -.5, 1.01}) {
    const absl::Status refused = RanksForEnergy(profile, MadeUpRope(), {}, PreRope(energy)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.message().find("energy"), 0);
  }
  EXPECT_EQ(RanksForEnergy(profile, Rope(), {}, PreRope(.9)).status().message().find("frame"), 0);
}

TEST(Calibrate, RankIsTheLargestOfTheLayer) {
  const LayerBases bases = CalibrateLayer(MadeUpProfile(), MadeUpRope(), 0, PreRope(.999)).value();
  ASSERT_EQ(bases.keys.size(), kCalibratedHeads);
  EXPECT_EQ(bases.keys[0].rank, 6);
  EXPECT_EQ(bases.keys[1].rank, 6);
  EXPECT_EQ(bases.values[1].rank, 3);
  EXPECT_NEAR(CapturedEnergy(bases.keys[1], MadeUpProfile().layers[0].k_moment[1]), 1, 1e-6);
}

TEST(Calibrate, StackedQueriesShareTheBasis) {
  CalibrationOptions options = PreRope(.999);
  options.stack_queries = true;
  const Profile profile = MadeUpProfile();
  const LayerBases bases = CalibrateLayer(profile, MadeUpRope(), 0, options).value();
  EXPECT_EQ(bases.keys[0].rank, 8);
  EXPECT_NEAR(CapturedEnergy(bases.keys[1], profile.layers[0].q_moment[1]), 1, 1e-6);
}

// A.3 plainly: the rows of keys and of each query head of the group one below another, and their singular vectors.
TEST(Calibrate, StackedBasesAreThoseOfAllRowsOneBelowAnother) {
  constexpr int kRows = 300, kGroup = 4, kRank = 12;
  Profile profile = MadeUpProfile();
  profile.num_q_heads = kCalibratedHeads * kGroup;
  LayerProfile& layer = profile.layers[0];
  layer.q_moment.clear();
  layer.q_mean.assign(profile.num_q_heads, Eigen::VectorXd::Zero(kCalibratedDim));
  std::vector<MatrixXd> stacked;
  for (int h = 0; h < kCalibratedHeads; ++h) {
    MatrixXd rows((1 + kGroup) * kRows, kCalibratedDim);
    for (int part = 0; part <= kGroup; ++part) {  // keys, then each query head; spread differently, along own axes
      const MatrixXd axes = RandomAxes(kCalibratedDim, 100 + 10 * h + part);
      const std::vector<float> drawn = Stream(axes, kRows, 7 * h + part, [&](int i) {
        return part == 0 ? (i < 8 ? 2.0 - .1 * i : 0) : (i < 3 ? 1.5 - .2 * i - .1 * part : 0);
      });
      for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < kCalibratedDim; ++j) rows(part * kRows + i, j) = drawn[i * kCalibratedDim + j];
      }
      const MatrixXd own = rows.middleRows(part * kRows, kRows);
      const MatrixXd moment = own.transpose() * own / kRows;
      if (part == 0) {
        layer.k_moment[h] = moment;
      } else {
        layer.q_moment.push_back(moment);
      }
    }
    stacked.push_back(std::move(rows));
  }
  CalibrationOptions options = PreRope(0);
  options.stack_queries = true;
  options.key_rank = options.value_rank = kRank;
  const LayerBases bases = CalibrateLayer(profile, MadeUpRope(), 0, options).value();
  for (int h = 0; h < kCalibratedHeads; ++h) {
    const Eigen::JacobiSVD<MatrixXd> svd(stacked[h], Eigen::ComputeThinV);
    const double best = svd.singularValues().head(kRank).squaredNorm();
    const MatrixXd moment = stacked[h].transpose() * stacked[h];
    EXPECT_NEAR(CapturedEnergy(bases.keys[h], moment) * moment.trace(), best, 1e-6 * best) << h;
  }
}

TEST(Calibrate, PostRopeBasesFitKeysAtThePositionsThatTheyAreCarriedTo) {
  constexpr int kTokens = 2000, kRank = 40;
  const Profile profile = MadeUpProfile();
  const MatrixXd axes = RandomAxes(kCalibratedDim, 20);
  std::vector<float> keys = Stream(axes, kTokens, 5, [](int i) { return i < 4 ? 1.0 : 0.0; });
  ApplyRopeToRows(MadeUpRope(), int64_t{0}, kTokens, keys.data());
  CalibrationOptions options;
  options.end = kTokens;
  options.key_rank = kRank;
  options.value_rank = 3;
  const Basis carried = CalibrateLayer(profile, MadeUpRope(), 0, options)->keys[0];
  options.end = 0;  // as if all keys stood at position 0
  const Basis at_zero = CalibrateLayer(profile, MadeUpRope(), 0, options)->keys[0];
  const double oracle = ResidualRatio(
      BasisOfMoment(MomentOfRows(RowsOf(keys, kCalibratedDim), kTokens, kCalibratedDim), kRank).value(), keys);
  EXPECT_LT(ResidualRatio(carried, keys), oracle + .02);
  EXPECT_GT(ResidualRatio(at_zero, keys), oracle + .1);
}

TEST(Calibrate, RopeIsUndoneAndApplied) {
  std::vector<float> rows = Stream(RandomAxes(kCalibratedDim, 1), 50, 2, [](int) { return 1; });
  const std::vector<float> before = rows;
  UndoRopeOfRows(MadeUpRope(), 1000, 50, rows.data());
  EXPECT_GT(std::abs(rows[0] - before[0]), 1e-3);
  ApplyRopeToRows(MadeUpRope(), 1000, 50, rows.data());
  for (size_t i = 0; i < rows.size(); ++i) ASSERT_NEAR(rows[i], before[i], 1e-5);
}

TEST(Calibrate, RefusesByField) {
  const auto message = [](const Rope& rope, int layer, const CalibrationOptions& options) {
    const auto bases = CalibrateLayer(MadeUpProfile(), rope, layer, options);
    EXPECT_EQ(bases.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(bases.status().message());
  };
  CalibrationOptions wide = PreRope(.9);
  wide.key_rank = 65;
  EXPECT_EQ(message(MadeUpRope(), 1, PreRope(.9)).find("layer"), 0);
  EXPECT_EQ(message(Rope(), 0, PreRope(.9)).find("frame"), 0);
  EXPECT_EQ(message(MadeUpRope(), 0, PreRope(0)).find("energy"), 0);
  EXPECT_EQ(message(MadeUpRope(), 0, wide), "key_rank: 65 is not in [1, 64]");
  Profile keys_alone = MadeUpProfile();
  keys_alone.layers[0].v_moment.clear();
  const absl::Status none = CalibrateLayer(keys_alone, MadeUpRope(), 0, PreRope(.9)).status();
  EXPECT_EQ(none.message(), "profile: has no moments of values");
  EXPECT_FALSE(KeyFrameOf("sideways").ok());
  EXPECT_EQ(KeyFrameOf("pre_rope").value(), KeyFrame::kPreRope);
}

TEST(BasesFile, ComesBackAsItWas) {
  const TempFolder folder;
  BasesFile file;
  file.frame = KeyFrame::kPreRope;
  file.model = "made up";
  file.layers = {CalibrateLayer(MadeUpProfile(), MadeUpRope(), 0, PreRope(.999)).value()};
  file.layers.push_back(file.layers[0]);
  ASSERT_TRUE(WriteBases(file, folder.Path("bases")).ok());
  const BasesFile back = ReadBases(folder.Path("bases")).value();
  EXPECT_EQ(back.frame, file.frame);
  EXPECT_EQ(back.model, file.model);
  ASSERT_EQ(back.layers.size(), 2u);
  for (int h = 0; h < kCalibratedHeads; ++h) {
    EXPECT_EQ(back.layers[1].keys[h].u, file.layers[1].keys[h].u);
    EXPECT_EQ(back.layers[1].values[h].u, file.layers[1].values[h].u);
  }
}

TEST(BasesFile, RefusesWhatIsNoFileOfBases) {
  const TempFolder folder;
  EXPECT_EQ(ReadBases(folder.Path("absent")).status().code(), absl::StatusCode::kNotFound);
  BasesFile file;
  file.layers = {CalibrateLayer(MadeUpProfile(), MadeUpRope(), 0, PreRope(.999)).value()};
  file.layers[0].keys[1].u[0] += .5f;
  ASSERT_TRUE(WriteBases(file, folder.Path("askew")).ok());
  const absl::Status askew = ReadBases(folder.Path("askew")).status();
  EXPECT_EQ(askew.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(askew.message().find("KV head 1"), std::string::npos) << askew;
  file.layers[0].keys[1].u[0] = std::nanf("");
  ASSERT_TRUE(WriteBases(file, folder.Path("nan")).ok());
  EXPECT_NE(ReadBases(folder.Path("nan")).status().message().find("NaN"), std::string::npos);
  ASSERT_TRUE(WriteProfile(MadeUpProfile(), ProfilePrecision::kFloat32, folder.Path("profile")).ok());
  EXPECT_NE(ReadBases(folder.Path("profile")).status().message().find("seine-bases-1"), std::string::npos);
}

}  // namespace
}  // namespace seine
