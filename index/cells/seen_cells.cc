// Divides runs of cells into the zone's windows and dense cells.
#include "index/cells/seen_cells.h"

#include <algorithm>

#include "kernels/types.h"

namespace seine {

namespace {

// `cells` of `runs` from their first on, or before their last: where the part ends, or begins.
int64_t EndOfFirst(const std::vector<CellRun>& runs, int64_t cells) {
  int64_t end = 0;
  for (const CellRun& run : runs) {
    if (cells <= 0) break;
    end = std::min(run.end, run.begin + cells);
    cells -= run.end - run.begin;
  }
  return end;
}

int64_t BeginOfLast(const std::vector<CellRun>& runs, int64_t cells) {
  int64_t begin = runs.empty() ? 0 : runs.back().end;
  for (auto run = runs.rbegin(); run != runs.rend() && cells > 0; ++run) {
    begin = std::max(run->begin, run->end - cells);
    cells -= run->end - run->begin;
  }
  return begin;
}

}  // namespace

SeenCells Divide(std::vector<CellRun> runs, int64_t sink, int64_t local) {
  SeenCells seen;
  const int64_t first = std::max(sink, EndOfFirst(runs, sink)), last = BeginOfLast(runs, local);
  const auto add = [&](int64_t begin, int64_t end) {
    if (begin >= end) return;
    if (!seen.dense.empty() && seen.dense.back().end == begin) {
      seen.dense.back().end = end;
    } else {
      seen.dense.push_back({begin, end});
    }
  };
  for (const CellRun& run : runs) {
    // The run's windows that lie in [first, last).
    const int64_t from = (std::max(run.begin, first) - sink + kWindowTokens - 1) / kWindowTokens;
    const int64_t to = std::max(from, (std::min(run.end, last) - sink) / kWindowTokens);
    if (std::min(run.end, last) < sink || from == to) {
      add(run.begin, run.end);
      continue;
    }
    add(run.begin, sink + from * kWindowTokens);
    for (int64_t w = from; w < to; ++w) seen.windows.push_back(w);
    add(sink + to * kWindowTokens, run.end);
  }
  seen.all = std::move(runs);
  return seen;
}

}  // namespace seine
