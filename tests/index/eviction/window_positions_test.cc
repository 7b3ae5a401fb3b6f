// windowed_manifoldkv: windows are of positions, also where tokens have gone from among them; in float64.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::MakeIndex;
using testing::Names;
using testing::SmallConfig;
using testing::TestBackend;
using testing::TokenRow;

using Sets = std::vector<std::vector<int32_t>>;

ScorerConfig Windowed(int window) {
  ScorerConfig config;
  config.name = "windowed_manifoldkv";
  config.window = window;
  return config;
}

class WindowPositions : public ::testing::Test {
 protected:
  // Distances of the tokens at `positions` to the mean of those of the same window of positions.
  static std::vector<double> Want(const Geometry& g, int head, const std::vector<int32_t>& positions, int window) {
    std::map<int32_t, std::vector<size_t>> windows;
    std::vector<std::vector<double>> keys;
    for (size_t i = 0; i < positions.size(); ++i) {
      const std::string row = TokenRow(g, positions[i]);
      const auto* halves = reinterpret_cast<const _Float16*>(row.data()) + head * g.head_dim;
      keys.emplace_back(halves, halves + g.head_dim);
      windows[positions[i] / window].push_back(i);
    }
    std::vector<double> want(positions.size());
    for (const auto& [number, members] : windows) {
      for (const size_t i : members) {
        for (int j = 0; j < g.head_dim; ++j) {
          double mean = 0;
          for (const size_t m : members) mean += keys[m][j] / static_cast<double>(members.size());
          want[i] += (keys[i][j] - mean) * (keys[i][j] - mean);
        }
        want[i] = std::sqrt(want[i]);
      }
    }
    return want;
  }

  Sets Held(const Index& index, const SequenceHandle& sequence) {
    ScorerConfig knorm;
    knorm.name = "knorm";
    return index.Score(sequence, 0, knorm, {})->positions;
  }

  void ExpectWanted(const Index& index, const SequenceHandle& sequence, int window) {
    const auto scores = index.Score(sequence, 0, Windowed(window), {});
    ASSERT_TRUE(scores.ok()) << scores.status();
    for (int h = 0; h < 2; ++h) {
      const auto want = Want(index.config().geometry, h, scores->positions[h], window);
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(scores->scores[h][i], want[i], 1e-4) << "head " << h << ", token " << scores->positions[h][i];
      }
    }
  }

  TestBackend backend_;
};

TEST_F(WindowPositions, AfterAnEvictionByCall) {
  for (const int window : {1, 16, 100, 4096}) {
    SCOPED_TRACE(window);
    const auto index = MakeIndex(SmallConfig(), &backend_);
    const SequenceHandle sequence = *index->CreateSequence("");
    ASSERT_TRUE(AppendNames(index.get(), sequence, 0, 0, Names(0, 700)).ok());
    ExpectWanted(*index, sequence, window);
    EvictParams params;
    params.budget.tokens = 150;
    ASSERT_TRUE(index->Evict(sequence, 0, params, {}).ok());
    ExpectWanted(*index, sequence, window);
    ASSERT_TRUE(AppendNames(index.get(), sequence, 0, 700, Names(700, 333)).ok());
    ExpectWanted(*index, sequence, window);
  }
}

// Its running sums are those of positions too: it keeps what a call keeps, and not what manifoldkv keeps.
TEST_F(WindowPositions, InAnIndexThatEvictsByItself) {
  for (const int64_t step : {1, 33}) {
    IndexConfig config = SmallConfig();
    config.eviction.emplace();
    config.eviction->scorer = Windowed(128);  // longer than a layer ever holds
    config.eviction->budget.tokens = 60;
    config.eviction->interval = 20;
    IndexConfig plain = SmallConfig(), raw = config;
    raw.eviction->scorer = ScorerConfig();
    raw.eviction->scorer.name = "manifoldkv";
    const auto own = MakeIndex(config, &backend_), called = MakeIndex(plain, &backend_),
               other = MakeIndex(raw, &backend_);
    const SequenceHandle s = *own->CreateSequence(""), c = *called->CreateSequence(""), o = *other->CreateSequence("");
    for (int64_t length = 0; length < 600; length += step) {
      ASSERT_TRUE(AppendNames(own.get(), s, 0, length, Names(length, step)).ok());
      ASSERT_TRUE(AppendNames(other.get(), o, 0, length, Names(length, step)).ok());
      for (int64_t p = length; p < length + step; ++p) {
        ASSERT_TRUE(AppendNames(called.get(), c, 0, p, Names(p, 1)).ok());
        if (called->DescribeHead(c, 0, 0)->num_retained < 80) continue;
        EvictParams params;
        params.scorer = config.eviction->scorer;
        params.budget = config.eviction->budget;
        ASSERT_TRUE(called->Evict(c, 0, params, {}).ok());
      }
      ASSERT_EQ(Held(*own, s), Held(*called, c)) << "length " << length;
      if (length % 100 == 0) ExpectWanted(*own, s, 128);
    }
    EXPECT_NE(Held(*own, s), Held(*other, o));
    ASSERT_TRUE(own->Truncate(s, 500).ok());
    ExpectWanted(*own, s, 128);
    const SequenceHandle fork = *own->Fork(s, "", 450);
    ExpectWanted(*own, fork, 128);
  }
}

}  // namespace
}  // namespace seine
