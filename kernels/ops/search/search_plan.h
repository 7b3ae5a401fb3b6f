// A batch of searches laid out for a device.
//
// How to use it (the backend does): fill a SearchItem a task; SearchPlan counts bytes and places everything in one
// workspace and one block of answers; copy items(), queries() and sets() to the device; a
// SearchLaunch of the plan and the copies. Nothing waits for the host between its kernels.
#ifndef SEINE_KERNELS_OPS_SEARCH_SEARCH_PLAN_H_
#define SEINE_KERNELS_OPS_SEARCH_SEARCH_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/ops/query/search.h"
#include "kernels/ops/query/search_items.h"

namespace seine::cuda {

// Places of one batch. At most 65,535 items and sets. Under a recall target every query has room for half its zone,
// 12 bytes a key.
class SearchPlan {
 public:
  SearchPlan(const SearchParams& params, std::vector<SearchItem> items);

  size_t workspace_bytes() const { return workspace_bytes_; }  // device memory, 256-byte aligned, of any content
  size_t answer_bytes() const { return answer_bytes_; }        // where the host reads: page-locked, 256-byte aligned
  // Points every view into the two buffers. May be called again when they have moved.
  void Place(uint8_t* workspace, uint8_t* answers);

  const SearchParams& params() const { return params_; }
  const std::vector<SearchItem>& items() const { return items_; }
  const std::vector<QueryPlan>& queries() const { return queries_; }
  const std::vector<SetPlan>& sets() const { return sets_; }
  const SearchGrids& grids() const { return grids_; }

  // After the launch has finished: answer i, from the answers' block. Counts of SearchStats, no times.
  void Read(int i, SearchOutput* out) const;

 private:
  struct Cursor;
  void PlaceItem(SearchItem* item, Cursor* work, Cursor* answers);
  void PlaceSet(SetPlan* set, Cursor* work, Cursor* answers);
  void SizeGrids();

  SearchParams params_;
  std::vector<SearchItem> items_;
  std::vector<QueryPlan> queries_;
  std::vector<SetPlan> sets_;
  SearchGrids grids_;
  size_t workspace_bytes_ = 0, answer_bytes_ = 0;
};

// Workspace of one item of a plan, or somewhat more, without a plan: `usual_share` as SearchItem has it.
size_t WorkspaceAtMost(const SearchParams& params, const CodeLayout& layout, double usual_share, int64_t num_keys,
                       int group, int64_t dense_tokens, bool refine_all);

// A planned search. args: the plan's params and the device's copies of its items, queries and sets. The answers are
// readable when the stream has come to its end.
struct SearchLaunch {
  const SearchPlan* plan = nullptr;
  SearchArgs args;
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SEARCH_SEARCH_PLAN_H_
