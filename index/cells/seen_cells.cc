// Divides runs of cells into the zone's windows and dense cells.
#include "index/cells/seen_cells.h"

#include <algorithm>

#include "kernels/types.h"

namespace seine {

namespace {

// Where the first `cells` of `runs` end.
int64_t EndOfFirst(const std::vector<CellRun>& runs, int64_t cells) {
  int64_t end = 0;
  for (const CellRun& run : runs) {
    if (cells <= 0) break;
    end = std::min(run.end, run.begin + cells);
    cells -= run.end - run.begin;
  }
  return end;
}

int64_t CountIn(const std::vector<CellRun>& runs, int64_t begin, int64_t end) {
  auto run = std::upper_bound(runs.begin(), runs.end(), begin, [](int64_t c, const CellRun& r) { return c < r.end; });
  int64_t count = 0;
  for (; run != runs.end() && run->begin < end; ++run) count += std::min(run->end, end) - std::max(run->begin, begin);
  return count;
}

// Windows that hold the newest `local` of the seen cells, ascending.
std::vector<int64_t> FindNewest(const std::vector<CellRun>& runs, int64_t sink, int64_t local,
                                const WriteOrder& order) {
  std::vector<int64_t> newest;
  const auto take = [&](int64_t w) {
    const int64_t begin = sink + w * kWindowTokens, count = CountIn(runs, begin, begin + kWindowTokens);
    if (count > 0) newest.push_back(w);
    local -= count;
  };
  for (auto w = order.windows().rbegin(); w != order.windows().rend() && local > 0; ++w) take(*w);
  const int64_t behind = runs.empty() ? 0 : (runs.back().end - sink + kWindowTokens - 1) / kWindowTokens;
  for (int64_t w = behind - 1; w >= 0 && local > 0; --w) {
    if (!order.Knows(w)) take(w);
  }
  std::sort(newest.begin(), newest.end());
  return newest;
}

}  // namespace

int64_t SeenCells::window(int64_t i) const {
  auto run = zone.begin();
  for (; i >= run->end - run->begin; ++run) i -= run->end - run->begin;
  return run->begin + i;
}

SeenCells Divide(std::vector<CellRun> runs, int64_t sink, int64_t local, const WriteOrder& order) {
  SeenCells seen;
  const std::vector<int64_t> newest = FindNewest(runs, sink, local, order);
  const int64_t first = std::max(sink, EndOfFirst(runs, sink));
  const auto add = [&](int64_t begin, int64_t end) {
    if (begin >= end) return;
    if (!seen.dense.empty() && seen.dense.back().end == begin) {
      seen.dense.back().end = end;
    } else {
      seen.dense.push_back({begin, end});
    }
  };
  auto next = newest.begin();
  for (const CellRun& run : runs) {
    // The run's windows that lie behind the first cells.
    const int64_t from = (std::max(run.begin, first) - sink + kWindowTokens - 1) / kWindowTokens;
    const int64_t to = std::max(from, (run.end - sink) / kWindowTokens);
    if (run.end < sink || from == to) {
      add(run.begin, run.end);
      continue;
    }
    add(run.begin, sink + from * kWindowTokens);
    next = std::lower_bound(next, newest.end(), from);
    for (int64_t w = from; w < to; ++w) {
      if (next == newest.end() || *next != w) {
        if (seen.zone.empty() || seen.zone.back().end != w) seen.zone.push_back({w, w});
        ++seen.zone.back().end, ++seen.num_windows;
        continue;
      }
      add(sink + w * kWindowTokens, sink + (w + 1) * kWindowTokens);
      ++next;
    }
    add(sink + to * kWindowTokens, run.end);
  }
  seen.all = std::move(runs);
  return seen;
}

}  // namespace seine
