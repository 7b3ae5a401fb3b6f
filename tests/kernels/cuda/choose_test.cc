// Lists of a search's blocks, apart from a search: pieces in the order of their keys, and the union of
// survivors, against std::set.
#include "kernels/ops/search/choose_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "tests/kernels/cuda/host_block.h"

namespace seine::cuda {
namespace {

// More pieces than lanes, many of them empty, in a list whose pieces lie in any order.
TEST(CompactPieces, KeepsTheOrderOfKeysWhereverPiecesLie) {
  for (const uint32_t num_pieces : {1u, 2u, 511u, 512u, 1300u}) {
    for (const int most : {1, 9, 700}) {
      std::mt19937 random(num_pieces + most);
      std::vector<FoundPiece> pieces(num_pieces);
      std::vector<uint32_t> order(num_pieces);
      for (uint32_t i = 0; i < num_pieces; ++i) {
        pieces[i].count = random() % 3 == 0 ? 0 : random() % most;
        order[i] = i;
      }
      std::shuffle(order.begin(), order.end(), random);
      uint32_t total = 0;
      for (const uint32_t i : order) {
        pieces[i].start = total;
        total += pieces[i].count;
      }
      std::vector<FoundKey> found(total);
      std::vector<uint32_t> want;
      for (uint32_t i = 0; i < num_pieces; ++i) {
        for (uint32_t k = 0; k < pieces[i].count; ++k) {
          const uint32_t key = i * kPieceKeys + k * 5;
          found[pieces[i].start + k] = {key, 0};
          if (key % 3 != 1) want.push_back(key);
        }
      }
      QueryPlan q;
      q.found = found.data();
      q.pieces = pieces.data();
      std::vector<uint32_t> got(want.size(), ~0u);
      RunGridOnHost<CandidateShared>({1, 1}, kChooseLanes, most, q,
                                     [&](HostBlock& block, CandidateShared& s, const auto&) {
                                       CompactPieces(
                                           block, s, q, num_pieces, [](FoundKey key) { return key.index % 3 != 1; },
                                           [&](uint32_t key, uint32_t place) { got.at(place) = key; });
                                     });
      ASSERT_EQ(got, want) << num_pieces << " " << most;
    }
  }
}

TEST(UniteSurvivors, IsTheUnionOfTheLists) {
  for (const int group : {2, 3, 8, 32}) {
    for (const uint32_t keep : {1u, 37u, 600u}) {
      for (const uint32_t range : {keep, 2 * keep, 1u << 20}) {  // equal lists, lists that overlap, and hardly any
        std::mt19937 random(group * keep + range);
        std::vector<std::vector<uint32_t>> lists(group);
        std::vector<QueryState> states(group);
        std::vector<QueryPlan> queries(group);
        std::set<uint32_t> want;
        for (int g = 0; g < group; ++g) {
          std::set<uint32_t> keys;
          const uint32_t length = g == 1 && keep > 1 ? 0 : keep;  // one may have no survivors
          while (keys.size() < length) keys.insert(random() % range);
          lists[g].assign(keys.begin(), keys.end());
          want.insert(keys.begin(), keys.end());
          states[g].num_survivors = length;
          queries[g].state = &states[g];
          queries[g].survivors = lists[g].data();
        }
        std::vector<uint32_t> keys(group * keep, ~0u), ranks(group * keep, ~0u);
        uint32_t num_keys = 0;
        SetPlan set;
        set.count = group;
        set.keys = keys.data();
        set.ranks = ranks.data();
        set.num_keys = &num_keys;
        RunGridOnHost<PrefixShared>(
            {1, 1}, kChooseLanes, keep, set,
            [&](HostBlock& block, PrefixShared& s, const auto&) { UniteSurvivors(block, s, set, queries.data()); });
        keys.resize(num_keys);
        ASSERT_EQ(keys, std::vector<uint32_t>(want.begin(), want.end())) << group << " " << keep << " " << range;
      }
    }
  }
}

TEST(IsLast, IsOneOfTheBlocks) {
  uint32_t counter = 0;
  int last = 0, blocks = 0;
  RunGridOnHost<uint32_t>({7, 1}, 32, 3, counter, [&](HostBlock& block, uint32_t&, const auto&) {
    ++blocks;
    if (!block.IsLast(&counter, 7)) return;
    ++last;
    EXPECT_EQ(blocks, 7);
  });
  EXPECT_EQ(last, 1);
}

}  // namespace
}  // namespace seine::cuda
