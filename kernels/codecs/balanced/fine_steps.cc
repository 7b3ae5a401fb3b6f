#include "kernels/codecs/balanced/fine_steps.h"

#include <algorithm>

namespace seine {

FineSteps MakeFineSteps(const std::vector<BalancedCell>& cells) {
  const auto rest_of = [&](int i) { return cells[i].total_bits - cells[i].coarse_bits; };
  // The word where a coordinate's bits begin; the first if the record has none of them.
  const auto word_of = [&](int i) { return rest_of(i) > 0 ? cells[i].fine_at / 32 : 0; };
  std::vector<int> order;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (cells[i].total_bits > 0) order.push_back(static_cast<int>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    const bool mixed_a = cells[a].coarse_bits > 0, mixed_b = cells[b].coarse_bits > 0;
    return mixed_a != mixed_b ? mixed_a : word_of(a) < word_of(b);
  });
  FineSteps out;
  for (const int i : order) {
    const BalancedCell& cell = cells[i];
    const uint32_t times = 1u << rest_of(i);
    out.steps.push_back({cell.fine_at % 32u, times - 1, 1u << cell.total_bits, static_cast<uint32_t>(i)});
    if (cell.coarse_bits == 0) continue;
    out.coarse.push_back({cell.coarse_at / 32u, cell.coarse_at % 32u, (1u << cell.coarse_bits) - 1, times});
  }
  const size_t mixed = out.coarse.size();
  for (int w = 0; w <= kRecordWords; ++w) {
    const auto begins_before = [&](int i) { return word_of(i) < w; };
    const auto middle = order.begin() + static_cast<std::ptrdiff_t>(mixed);
    out.mixed_from.push_back(static_cast<uint16_t>(std::count_if(order.begin(), middle, begins_before)));
    out.plain_from.push_back(static_cast<uint16_t>(mixed + std::count_if(middle, order.end(), begins_before)));
  }
  return out;
}

}  // namespace seine
