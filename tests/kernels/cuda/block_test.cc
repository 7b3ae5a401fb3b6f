// The block concept itself, and what blocks do together: prefix sums, compaction, the exact cut.
#include "kernels/cuda/block.h"
#include "tests/kernels/cuda/host_block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "kernels/ops/select/block_select_cuda.h"
#include "tests/kernels/test_util.h"

namespace seine::cuda {
namespace {

struct Nothing {};

template <typename Shared, typename Body>
void OneBlock(int lanes, uint64_t seed, Body body) {
  RunGridOnHost<Shared>({1, 1}, lanes, seed, Nothing(),
                        [&](HostBlock& block, Shared& shared, const Nothing&) { body(block, shared); });
}

TEST(Block, EveryLaneOfEveryBlockRunsOnceInAnOrderOfTheSeed) {
  std::set<std::vector<int>> orders;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    std::vector<int> order;
    RunGridOnHost<Nothing>({3, 2}, 32, seed, Nothing(), [&](HostBlock& block, Nothing&, const Nothing&) {
      block.Lanes([&](int lane) { order.push_back((block.index().y * 3 + block.index().x) * 32 + lane); });
    });
    orders.insert(order);
    std::sort(order.begin(), order.end());
    std::vector<int> all(3 * 2 * 32);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(order, all);
  }
  EXPECT_EQ(orders.size(), 4u);
}

// Lanes that read what others write in the same phase: the answer differs with the seed, which is how races show.
TEST(Block, ARaceShows) {
  struct Shared {
    int values[64];
  };
  std::set<int> answers;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    OneBlock<Shared>(64, seed, [&](HostBlock& block, Shared& s) {
      block.Lanes([&](int lane) { s.values[lane] = lane; });
      block.Lanes([&](int lane) { s.values[lane] += s.values[(lane + 1) % 64]; });  // no barrier between
      answers.insert(std::accumulate(s.values, s.values + 64, 0));
    });
  }
  EXPECT_GT(answers.size(), 1u);
}

// The operands' layout against a plain product of matrices.
TEST(Block, MmaMultipliesAsTheLayoutSays) {
  constexpr int kWarps = 2;
  std::mt19937_64 rng(1);
  int8_t a[kWarps][16][32], b[kWarps][32][8];
  for (auto& x : a) std::generate_n(&x[0][0], 16 * 32, [&] { return static_cast<int8_t>(rng()); });
  for (auto& x : b) std::generate_n(&x[0][0], 32 * 8, [&] { return static_cast<int8_t>(rng()); });
  OneBlock<Nothing>(kWarps * kWarp, 5, [&](HostBlock& block, Nothing&) {
    HostBlock::Local<MmaA> la(block);
    HostBlock::Local<MmaB> lb(block);
    HostBlock::Local<MmaD> ld(block);
    block.Lanes([&](int lane) {
      const int warp = lane / kWarp, row = lane % kWarp / 4, j = lane % 4;
      la[lane] = {};
      lb[lane] = {};
      for (int i = 0; i < 4; ++i) {
        for (int half = 0; half < 2; ++half) {
          const int depth = half * 16 + j * 4 + i;
          la[lane].word[2 * half] |= uint32_t{static_cast<uint8_t>(a[warp][row][depth])} << (8 * i);
          la[lane].word[2 * half + 1] |= uint32_t{static_cast<uint8_t>(a[warp][row + 8][depth])} << (8 * i);
          lb[lane].word[half] |= uint32_t{static_cast<uint8_t>(b[warp][depth][row])} << (8 * i);
        }
      }
      ld[lane] = {{7, 7, 7, 7}};
    });
    block.Mma<false>(ld, la, lb);
    block.Lanes([&](int lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane % kWarp / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        int32_t sum = 7;
        for (int depth = 0; depth < 32; ++depth) sum += a[lane / kWarp][row][depth] * b[lane / kWarp][depth][column];
        EXPECT_EQ(ld[lane].sum[i], sum) << lane << " " << i;
      }
    });
  });
}

TEST(BlockSelect, PrefixAndCompaction) {
  for (const int lanes : {32, 256, 1024}) {
    for (const uint32_t n : {1u, 31u, 1000u, 5000u}) {
      std::mt19937_64 rng(n);
      std::vector<uint32_t> mask((n + 31) / 32, 0), kept;
      for (uint32_t i = 0; i < n; ++i) {
        if (rng() % 3 == 0) mask[i / 32] |= 1u << i % 32;
      }
      const auto keep = [&](uint32_t i) { return (mask[i / 32] >> i % 32 & 1) != 0; };
      std::vector<uint32_t> want;
      for (uint32_t i = 0; i < n; ++i) {
        if (keep(i)) want.push_back(i);
      }
      kept.resize(want.size());
      OneBlock<PrefixShared>(lanes, n, [&](HostBlock& block, PrefixShared& s) {
        EXPECT_EQ(Compact(block, s, n, keep, [&](uint32_t i, uint32_t place) { kept.at(place) = i; }), want.size());
      });
      EXPECT_EQ(kept, want);
    }
  }
}

// Against a sort: values that repeat, that fill all 32 bits, and that are all the same.
TEST(BlockSelect, TheFirstCutKeepsExactlyTheBest) {
  for (const uint64_t range : {uint64_t{1}, uint64_t{5}, uint64_t{3000}, uint64_t{1} << 32}) {
    for (const uint32_t m : {0u, 1u, 2u, 300u, 999u, 1000u}) {
      std::mt19937_64 rng(range + m);
      std::vector<std::pair<uint32_t, uint32_t>> keys;  // value, place
      for (uint32_t i = 0; i < 1000; ++i) keys.push_back({static_cast<uint32_t>(rng() % range), i * 3});
      std::shuffle(keys.begin(), keys.end(), rng);
      auto sorted = keys;
      std::sort(sorted.begin(), sorted.end(),
                [](auto a, auto b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
      OneBlock<RadixShared>(64, m, [&](HostBlock& block, RadixShared& s) {
        const FirstCut cut = FindFirstCut(block, s, 3000, 1000, m, [&](uint32_t i, uint32_t* value, uint32_t* place) {
          *value = keys[i].first;
          *place = keys[i].second;
          return true;
        });
        for (uint32_t i = 0; i < 1000; ++i) EXPECT_EQ(cut.Keeps(sorted[i].first, sorted[i].second), i < m);
      });
    }
  }
}

}  // namespace
}  // namespace seine::cuda
