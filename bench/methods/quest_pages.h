// Quest's pages (docs/references.md): runs of keys, of which the least and the largest of every coordinate are kept. A
// page's bound, sum_j max(q_j min_j, q_j max_j), is at least the product of each of its keys with the query.
#ifndef SEINE_BENCH_METHODS_QUEST_PAGES_H_
#define SEINE_BENCH_METHODS_QUEST_PAGES_H_

#include <cstdint>
#include <vector>

namespace seine::bench {

// Not thread-safe.
class QuestPages {
 public:
  // Quest's own are of 16 keys.
  explicit QuestPages(int dim, int64_t page_keys = 16) : dim_(dim), page_keys_(page_keys) {}

  void Clear() { least_.clear(), most_.clear(); }

  // Takes `count` more keys [count, dim], a multiple of the page's.
  void Add(const float* keys, int64_t count);

  int64_t num_pages() const { return static_cast<int64_t>(least_.size()) / dim_; }
  double BytesPerKey() const { return 2.0 * sizeof(uint16_t) * dim_ / static_cast<double>(page_keys_); }  // fp16 bounds

  // Bounds of all pages with `query` [dim].
  std::vector<float> Bounds(const float* query) const;

  // Keys of the pages with the largest bounds, ties to the lowest, until there are `wanted`; ascending. The last page
  // is whole, or with `cut` as many of its first keys as make exactly `wanted`.
  std::vector<int64_t> Choose(const float* query, int64_t wanted, bool cut) const;

 private:
  int dim_;
  int64_t page_keys_;
  std::vector<float> least_, most_;  // [pages, dim]
};

}  // namespace seine::bench

#endif  // SEINE_BENCH_METHODS_QUEST_PAGES_H_
