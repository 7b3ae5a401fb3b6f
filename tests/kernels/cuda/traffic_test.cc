// Counted bytes against sums by hand.
#include "kernels/device/traffic.h"
#include "kernels/codecs/kinds/balanced.h"
#include "kernels/ops/search/search_plan.h"

#include <gtest/gtest.h>

namespace seine::cuda {
namespace {

SearchItem Item(int64_t num_keys, int group) {
  static const uint8_t* const kStored = nullptr;
  SearchItem item;
  item.kind = CodecKind::kBalanced;
  item.layout = BalancedLayout(128, 64, 256, kWindowTokens);  // 8 bytes scanned, 25 in the record
  item.segment_keys = 2048;
  item.num_keys = num_keys;
  item.chunks = &kStored;
  item.chunk_tokens = 2048;
  item.key_dtype = DType::kFloat16;
  item.group = group;
  return item;
}

TEST(Traffic, EqualsSumsByHand) {
  constexpr int64_t kKeys = 131072;
  SearchParams params;
  params.candidate_fraction = .01;  // 1,311 candidates
  params.rescore_k = 200;
  params.gqa_reduce = GqaReduce::kMax;
  const SearchPlan one(params, {Item(kKeys, 4)}), two(params, {Item(kKeys, 4), Item(kKeys, 4)});
  const std::vector<StepTraffic> steps = CountTraffic(one), twice = CountTraffic(two);
  ASSERT_EQ(steps.size(), 5u);
  ASSERT_EQ(twice.size(), 5u);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_DOUBLE_EQ(twice[i].device_bytes, 2 * steps[i].device_bytes) << steps[i].step;
    EXPECT_DOUBLE_EQ(twice[i].link_bytes, 2 * steps[i].link_bytes) << steps[i].step;
  }
  // Codes: 8 + 1 bytes a key and 4 + 128 + 4 a window. Of each query: a base a window, 8 bytes a block and a find.
  const double codes = kKeys * 9.0 + kKeys / 64 * 136.0, finds = 1.2 * 1311 * 8;
  EXPECT_EQ(steps[1].step, "scan");
  EXPECT_DOUBLE_EQ(steps[1].device_bytes, codes + 4 * (kKeys / 64 * 4.0 + 32 * 8.0 + finds));
  EXPECT_EQ(steps[1].link_bytes, 0);
  // Both blocks of a query read its list; a candidate: two coarse words and a base, a sector each, 25 bytes at any
  // alignment, 12 bytes handed on, 8 read again; survivors; their union, written and read.
  EXPECT_EQ(steps[2].step, "choose");
  EXPECT_DOUBLE_EQ(steps[2].device_bytes,
                   4 * (2 * (32 * 8.0 + finds) + 1311 * (3 * 32.0 + 25 + 31 + 12 + 8) + 200 * 4) + 2 * 800 * 4.0);
  EXPECT_EQ(steps[3].step, "dots");
  EXPECT_DOUBLE_EQ(steps[3].link_bytes, 800 * 256.0);  // 200 keys of each of four queries, all different
}

TEST(Traffic, ALayersWorkEqualsSumsByHand) {
  LayerWork work = {.heads = 8, .head_dim = 128, .rows = 4096, .rank = 90, .interval = 32, .kept = 1024};
  const std::vector<StepTraffic> steps = CountTraffic(work);
  ASSERT_EQ(steps.size(), 6u);
  const double basis = 128 * 96 * 4, rows = 4096;  // 90 columns in 96
  EXPECT_EQ(steps[0].step, "learn");
  EXPECT_DOUBLE_EQ(steps[0].device_bytes, 8 * (2 * basis + rows * 512));
  EXPECT_DOUBLE_EQ(steps[0].block_operations,
                   128.0 * 2 * (3 * 128 * 90 * 32 + 3 * 128 * 32 * 32 + 90 * 32 * 32));  // intervals, one after another
  EXPECT_EQ(steps[1].step, "project");
  EXPECT_DOUBLE_EQ(steps[1].device_bytes, 8 * (basis + rows * (512 + 180)));
  EXPECT_EQ(steps[2].step, "rebuild");
  EXPECT_DOUBLE_EQ(steps[2].device_bytes, 8 * (90 * 256 + rows * 512));
  EXPECT_DOUBLE_EQ(steps[2].link_bytes, 8 * rows * 180);
  EXPECT_EQ(steps[3].step, "sum");
  EXPECT_DOUBLE_EQ(steps[3].device_bytes, 8.0 * (16 + 16 + 1) * 128 * 8);  // 16 groups, written and read; their sum
  EXPECT_DOUBLE_EQ(steps[3].link_bytes, 8 * rows * 256);
  EXPECT_EQ(steps[4].step, "score");
  EXPECT_DOUBLE_EQ(steps[4].device_bytes, 8 * rows * 4);
  EXPECT_DOUBLE_EQ(steps[4].link_bytes, 8 * rows * 256);
  EXPECT_EQ(steps[5].step, "select");
  EXPECT_DOUBLE_EQ(steps[5].device_bytes, 8 * (rows * 4 + 1024 * 4));
  for (size_t i = 1; i < steps.size(); ++i) EXPECT_EQ(steps[i].block_operations, 0);
  work.keys_on_device = true;
  EXPECT_DOUBLE_EQ(CountTraffic(work)[3].device_bytes, 8 * (rows * 256 + 33 * 1024.0));
  EXPECT_DOUBLE_EQ(CountTraffic(work)[4].device_bytes, 8 * rows * 260);
  for (const int i : {3, 4}) EXPECT_EQ(CountTraffic(work)[i].link_bytes, 0);
}

TEST(Traffic, ASetAQueryNeedsNoUnion) {
  SearchParams joint, apart;
  apart.scope = Scope::kPerQHead;
  joint.gqa_reduce = GqaReduce::kMax;
  const SearchPlan one(joint, {Item(8192, 2)}), two(apart, {Item(8192, 2)});
  EXPECT_DOUBLE_EQ(CountTraffic(one)[2].device_bytes - CountTraffic(two)[2].device_bytes, 2 * 400 * 4.0);
}

}  // namespace
}  // namespace seine::cuda
