// How heads are laid on threads.
#ifndef SEINE_INDEX_CELLS_SHARE_REST_H_
#define SEINE_INDEX_CELLS_SHARE_REST_H_

#include <algorithm>
#include <vector>

namespace seine {

// Items of a KV head each, whose query heads are [first, first + count) of its `group`. The last ones would leave
// threads idle at the end: they are shared, query head by query head, larger parts first, which the thread takes that
// is done first.
template <typename Item>
void ShareRest(int threads, int group, std::vector<Item>* items) {
  const auto total = static_cast<int>(items->size());
  const int rest = total % threads;
  if (rest == 0 || group == 1) return;
  const std::vector<Item> whole(items->end() - rest, items->end());
  items->resize(total - rest);
  const int parts = std::min(group, (threads + rest - 1) / rest);
  for (const Item& item : whole) {
    const auto begin = [&](int part) { return (group * part + parts - 1) / parts; };
    for (int p = 0; p < parts; ++p) {
      items->push_back(item);
      items->back().first = begin(p), items->back().count = begin(p + 1) - begin(p);
    }
  }
}

}  // namespace seine

#endif  // SEINE_INDEX_CELLS_SHARE_REST_H_
