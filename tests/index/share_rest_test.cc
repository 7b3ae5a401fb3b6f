// Items of whole heads, and of the parts that idle threads take.
#include "index/cells/share_rest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace seine {
namespace {

struct SharedItem {
  int head, first, count;
};

TEST(ShareRest, EveryQueryHeadIsAnItemsOnceAndNoThreadIsIdleForLong) {
  for (const int threads : {1, 2, 3, 7, 16}) {
    for (const int group : {1, 3, 4, 7}) {
      for (int heads = 0; heads < 20; ++heads) {
        std::vector<SharedItem> items;
        for (int h = 0; h < heads; ++h) items.push_back({h, 0, group});
        ShareRest(threads, group, &items);
        std::set<std::pair<int, int>> seen;
        for (const SharedItem& item : items) {
          EXPECT_GT(item.count, 0);
          for (int q = item.first; q < item.first + item.count; ++q) {
            EXPECT_LT(q, group);
            EXPECT_TRUE(seen.emplace(item.head, q).second) << threads << " " << group << " " << heads;
          }
        }
        EXPECT_EQ(static_cast<int>(seen.size()), heads * group);
        const int whole = heads / threads * threads, rest = heads - whole;
        for (int i = 0; i < whole; ++i) EXPECT_EQ(items[i].count, group) << "shared for nothing";
        const int parts = static_cast<int>(items.size()) - whole;
        if (rest > 0) {
          EXPECT_GE(parts, std::min(threads, rest * group)) << threads << " " << group << " " << heads;
        }
        for (size_t i = whole + 1; i < items.size(); ++i) {
          if (items[i].head == items[i - 1].head) {
            EXPECT_LE(items[i].count, items[i - 1].count);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace seine
