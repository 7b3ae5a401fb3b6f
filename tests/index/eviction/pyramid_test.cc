// PyramidKV in an index: what one layer cannot use others have, and no layer loses anything before the mean is reached.
#include <algorithm>
#include <cmath>

#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::MakeIndex;
using testing::Names;
using testing::SmallConfig;
using testing::TestBackend;

BudgetConfig Pyramid(int64_t tokens, double ratio = 20) {
  return {.tokens = tokens, .heads = HeadBudget::kPyramid, .pyramid_ratio = ratio};
}

class PyramidIndex : public ::testing::Test {
 protected:
  void Fill(const IndexConfig& config, int64_t tokens) {
    index_ = MakeIndex(config, &backend_);
    sequence_ = *index_->CreateSequence("");
    for (int l = 0; l < config.geometry.num_layers; ++l) {
      ASSERT_TRUE(AppendNames(index_.get(), sequence_, l, 0, Names(0, tokens)).ok());
    }
  }
  std::vector<int64_t> Cut(const BudgetConfig& budget) {
    std::vector<int64_t> kept;
    EvictParams params;
    params.scorer.name = "knorm";
    params.budget = budget;
    for (int l = 0; l < index_->config().geometry.num_layers; ++l) {
      const auto answer = index_->Evict(sequence_, l, params, {});
      EXPECT_TRUE(answer.ok()) << answer.status();
      kept.push_back(static_cast<int64_t>(answer->kept[0].size()));
      EXPECT_EQ(answer->kept[1].size(), answer->kept[0].size());
    }
    return kept;
  }
  int64_t Held(int layer) const { return index_->DescribeHead(sequence_, layer, 0)->num_retained; }

  TestBackend backend_;
  std::unique_ptr<Index> index_;
  SequenceHandle sequence_;
};

TEST_F(PyramidIndex, WhatOneLayerCannotUseOthersHave) {
  Fill(SmallConfig(), 1200);
  EXPECT_EQ(Cut(Pyramid(1000)), (std::vector<int64_t>{1200, 800}));
  Fill(SmallConfig(), 1900);
  EXPECT_EQ(Cut(Pyramid(1000)), (std::vector<int64_t>{1900, 100}));
  Fill(SmallConfig(), 3000);
  EXPECT_EQ(Cut(Pyramid(1000)), (std::vector<int64_t>{1950, 50}));
}

TEST_F(PyramidIndex, APromptBelowTheMeanLosesNothing) {
  for (const int64_t tokens : {1, 10, 999, 1000}) {
    Fill(SmallConfig(), tokens);
    EXPECT_EQ(Cut(Pyramid(1000)), (std::vector<int64_t>{tokens, tokens}));
  }
  IndexConfig config = SmallConfig();
  config.geometry.num_layers = 5;
  Fill(config, 150);
  EXPECT_EQ(Cut(Pyramid(150)), std::vector<int64_t>(5, 150));
  EXPECT_EQ(Cut(Pyramid(100, 4)), (std::vector<int64_t>{150, 125, 100, 75, 50}));
}

// An index that evicts by itself: all layers together have what the budget says at every length, none is cut back below
// its part, and none holds more than that and the interval.
TEST_F(PyramidIndex, AnIndexDealsOutTheWholeBudgetAsItGrows) {
  constexpr int64_t kMean = 100;
  for (const int layers : {2, 5}) {
    for (const int64_t interval : {1, 7, 30}) {
      for (const int64_t step : {1, 64}) {
        SCOPED_TRACE(::testing::Message() << layers << " layers, interval " << interval << ", step " << step);
        IndexConfig config = SmallConfig();
        config.geometry.num_layers = layers;
        config.eviction.emplace();
        config.eviction->scorer.name = "knorm";
        config.eviction->budget = Pyramid(kMean, 4);
        config.eviction->interval = interval;
        Fill(config, 0);
        for (int64_t length = 0; length < 300;) {
          for (int l = 0; l < layers; ++l) {
            const auto appended = AppendNames(index_.get(), sequence_, l, length, Names(length, step));
            ASSERT_TRUE(appended.ok()) << appended.status();
          }
          length += step;
          // From high to low by even steps, high at most the length; the mean is 100 at every length above it.
          const double n = static_cast<double>(length), high = std::min(175.0, n), low = 200 - high;
          for (int l = 0; l < layers; ++l) {
            const double part = n <= kMean ? n : high - (high - low) * l / (layers - 1);
            EXPECT_GE(static_cast<double>(Held(l)), std::floor(part)) << "layer " << l << " of " << length;
            EXPECT_LE(static_cast<double>(Held(l)), std::ceil(part) + static_cast<double>(interval))
                << "layer " << l << " of " << length;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace seine
