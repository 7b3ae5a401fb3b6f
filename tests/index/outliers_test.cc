// Keys shorter than their window's: which they are, and the sets that take them in.
#include "index/cells/outliers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace seine::cells {
namespace {

constexpr int kDimension = 128, kTheGroup = 2;

// Keys of norms about 10, those of `shorter` a tenth.
std::vector<float> KeysWithShorter(int64_t count, const std::vector<int>& shorter) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::vector<float> keys(count * kDimension);
  for (float& x : keys) x = normal(rng) * 2;
  for (const int i : shorter) {
    for (int j = 0; j < kDimension; ++j) keys[i * kDimension + j] *= .1f;
  }
  return keys;
}

TEST(Outliers, AreTheKeysShorterThanTheirWindows) {
  EXPECT_EQ(FindOutliers(KeysWithShorter(64, {}).data(), kDimension), 0u);
  EXPECT_EQ(FindOutliers(KeysWithShorter(64, {3, 40, 63}).data(), kDimension),
            uint64_t{1} << 3 | uint64_t{1} << 40 | uint64_t{1} << 63);
  const std::vector<float> alike(64 * kDimension, 1.0f), nothing(64 * kDimension);
  EXPECT_EQ(FindOutliers(alike.data(), kDimension), 0u);
  EXPECT_EQ(FindOutliers(nothing.data(), kDimension), 0u);
}

TEST(Outliers, AreAFewOfAWindow) {
  std::vector<int> many(30);
  for (int i = 0; i < 30; ++i) many[i] = 2 * i;
  const uint64_t found = FindOutliers(KeysWithShorter(64, many).data(), kDimension);
  EXPECT_EQ(__builtin_popcountll(found), kMostOutliers);
  EXPECT_EQ(found & 0xaaaaaaaaaaaaaaaa, 0u);  // none of the long ones
}

TEST(Outliers, JoinTheSetsThatTheyBelongTo) {
  const std::vector<float> keys = KeysWithShorter(128 + 5, {});
  const uint64_t outliers[2] = {uint64_t{1} << 0 | uint64_t{1} << 7, uint64_t{1} << 63 | uint64_t{1} << 20};
  const std::vector<int32_t> cells = {5, 12, 5 + 64 + 20, 5 + 64 + 63};
  std::vector<float> queries(kTheGroup * kDimension);
  for (int j = 0; j < kDimension; ++j) queries[j] = keys[12 * kDimension + j];                // wants cell 12
  for (int j = 0; j < kDimension; ++j) queries[kDimension + j] = keys[132 * kDimension + j];  // and 132
  const auto logit = [&](int g, int cell) {
    float dot = 0;
    for (int j = 0; j < kDimension; ++j) dot += queries[g * kDimension + j] * keys[cell * kDimension + j];
    return dot * .5f;
  };
  const auto* rows = reinterpret_cast<const uint8_t*>(keys.data());
  host::AttentionTask task;
  task.queries = queries.data();
  task.group = kTheGroup;
  task.scale = .5f;
  task.keys = {&rows, 1 << 20, kDimension, DType::kFloat32};
  task.zone_begin = 5;
  SearchOutput found;
  found.positions = {{6, 89, 100}, {132}};
  for (int g = 0; g < kTheGroup; ++g) {
    found.scores.emplace_back();
    for (const int32_t cell : found.positions[g]) found.scores[g].push_back(logit(g, cell));
  }
  const SearchOutput before = found;
  AddOutliers(outliers, {{0, 2}}, task, &found);
  for (int g = 0; g < kTheGroup; ++g) {
    const float least = *std::min_element(before.scores[g].begin(), before.scores[g].end());
    std::vector<int32_t> want = before.positions[g];
    for (const int32_t cell : cells) {
      if (logit(g, cell) > least + 1e-4f) want.push_back(cell);
    }
    std::sort(want.begin(), want.end());
    want.erase(std::unique(want.begin(), want.end()), want.end());
    EXPECT_EQ(found.positions[g], want);
    ASSERT_EQ(found.scores[g].size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(found.scores[g][i], logit(g, want[i]), 1e-3f);
  }
  EXPECT_TRUE(std::count(found.positions[0].begin(), found.positions[0].end(), 12) == 1);
  EXPECT_EQ(found.positions[1], before.positions[1]);  // its best was there
}

// The set and all that are above its least, each once: of many sets and outliers, alike and apart.
TEST(Outliers, JoinManySets) {
  constexpr int kWindows = 6, kCells = kWindows * 64;
  const std::vector<float> keys = KeysWithShorter(kCells, {});
  const auto* rows = reinterpret_cast<const uint8_t*>(keys.data());
  std::mt19937 rng(5);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<float> query(kDimension);
    for (float& x : query) x = std::normal_distribution<float>()(rng);
    uint64_t outliers[kWindows];
    for (uint64_t& w : outliers) w = uint64_t{rng()} << 32 | rng();
    host::AttentionTask task;
    task.queries = query.data();
    task.keys = {&rows, 1 << 20, kDimension, DType::kFloat32};
    std::vector<int32_t> all(kCells);
    for (int i = 0; i < kCells; ++i) all[i] = i;
    std::vector<float> logits(kCells);
    host::DotGather(task.keys, all.data(), kCells, query.data(), 1, logits.data());
    SearchOutput found;
    found.positions.resize(1);
    found.scores.resize(1);
    const unsigned sparse = 1 + rng() % 16;
    for (int i = 0; i < kCells; ++i) {
      if (rng() % sparse != 0) continue;
      found.positions[0].push_back(i);
      found.scores[0].push_back(logits[i]);
    }
    const std::vector<float>& scores = found.scores[0];
    const float least = scores.empty() ? INFINITY : *std::min_element(scores.begin(), scores.end());
    std::vector<int32_t> want = found.positions[0];
    for (int i = 0; i < kCells; ++i) {
      if ((outliers[i / 64] >> i % 64 & 1) != 0 && logits[i] > least) want.push_back(i);
    }
    std::sort(want.begin(), want.end());
    want.erase(std::unique(want.begin(), want.end()), want.end());
    AddOutliers(outliers, {{0, kWindows}}, task, &found);
    ASSERT_EQ(found.positions[0], want);
    ASSERT_EQ(found.scores[0].size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(found.scores[0][i], logits[want[i]]);
  }
}

}  // namespace
}  // namespace seine::cells
