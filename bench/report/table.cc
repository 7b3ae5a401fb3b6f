// See table.h.
#include "bench/report/table.h"

#include <algorithm>

namespace seine::bench {

std::string RenderTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string out;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < rows[r].size(); ++c) {
      const std::string pad(widths[c] - rows[r][c].size(), ' ');
      line += (c == 0 ? "" : "  ") + (c == 0 ? rows[r][c] + pad : pad + rows[r][c]);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    if (r > 0) continue;
    size_t total = 0;
    for (size_t w : widths) total += w + 2;
    out += std::string(total - 2, '-') + "\n";
  }
  return out;
}

}  // namespace seine::bench
