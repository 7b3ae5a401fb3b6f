// Which cells of an engine's cache a query sees, and how they are attended: windows of the zone by their codes, all
// else row by row.
//   the first `sink` seen cells | zone: windows of which every cell is seen | the newest `local` seen cells, at least
// and cells of other windows are dense wherever they lie. Where a text was written in a row, the newest cells are its
// last ones, and the zone is one run of windows. Where other sequences' cells lie between, or cells were used again,
// it has holes. A window that is being written is among the newest, so that it is not encoded at every step.
#ifndef SEINE_INDEX_CELLS_SEEN_CELLS_H_
#define SEINE_INDEX_CELLS_SEEN_CELLS_H_

#include <cstdint>
#include <vector>

#include "index/cells/write_order.h"
#include "kernels/host.h"

namespace seine {

using CellRun = host::PlaceRun;  // cells [begin, end)

struct SeenCells {
  std::vector<WindowRun> zone;  // ascending and apart; window w is cells [sink + 64 w, sink + 64 (w + 1))
  int64_t num_windows = 0;      // of the zone
  std::vector<CellRun> dense;   // ascending; none of the zone's
  std::vector<CellRun> all;     // what is seen

  // Windows are 0, 1, 2, ...
  bool one_run() const { return num_windows == end_window(); }
  // Codes are needed of windows before this one.
  int64_t end_window() const { return zone.empty() ? 0 : zone.back().end; }
  // The i-th window of the zone.
  int64_t window(int64_t i) const;
};

// `runs`: ascending and apart, none empty. `sink`, `local`: in cells. `order` tells which are the newest; cells that
// it does not know are older, and the last of them are the newest.
SeenCells Divide(std::vector<CellRun> runs, int64_t sink, int64_t local, const WriteOrder& order = {});

}  // namespace seine

#endif  // SEINE_INDEX_CELLS_SEEN_CELLS_H_
