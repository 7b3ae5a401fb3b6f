// How many tokens a layer may take before it evicts by itself (policy.h).
#include <gtest/gtest.h>

#include "index/eviction/policy.h"
#include "tests/index/test_util.h"

namespace seine {
namespace {

HeadSizes Sizes(std::initializer_list<int64_t> sizes) {
  HeadSizes all;
  for (const int64_t size : sizes) all.Add(size);
  return all;
}

IndexConfig Evicting(HeadBudget heads) {
  IndexConfig config = testing::SmallConfig(KvStore::kKeysValues);
  config.eviction.emplace();
  config.eviction->scorer.name = "knorm";
  config.eviction->budget.tokens = 100;
  config.eviction->budget.heads = heads;
  config.eviction->interval = 16;
  return config;
}

TEST(EvictionRoom, OfUniformHeadsIsThatOfTheFullest) {
  const IndexConfig config = Evicting(HeadBudget::kUniform);
  const EvictionPolicy policy(&config);
  EXPECT_EQ(policy.Room(Sizes({0}), 0, 0), 116);
  EXPECT_EQ(policy.Room(Sizes({90, 110, 100}), 0, 200), 6);
  EXPECT_EQ(policy.Room(Sizes({130, 20}), 0, 200), -14);
}

TEST(EvictionRoom, OfAnAdaptiveLayerIsThatOfItsMeanRoundedUp) {
  const IndexConfig config = Evicting(HeadBudget::kAdaptive);
  const EvictionPolicy policy(&config);
  EXPECT_EQ(policy.Room(Sizes({0}), 0, 0), 116);
  EXPECT_EQ(policy.Room(Sizes({90, 110, 100}), 0, 200), 16);
  EXPECT_EQ(policy.Room(Sizes({130, 21}), 0, 200), 40);
}

}  // namespace
}  // namespace seine
