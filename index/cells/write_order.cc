// A list whose entries move to its end.
#include "index/cells/write_order.h"

#include <algorithm>

namespace seine {

void WriteOrder::Wrote(int64_t begin, int64_t end) {
  if (begin >= end) return;
  if (end - begin == 1 && !windows_.empty() && windows_.back() == begin) return;  // as nearly always
  if (static_cast<int64_t>(listed_.size()) < end) listed_.resize(end, 0);
  const auto is_written = [&](int64_t w) { return begin <= w && w < end; };
  if (std::any_of(listed_.begin() + begin, listed_.begin() + end, [](uint8_t listed) { return listed != 0; })) {
    // From the back: what is written again was mostly written lately.
    const auto last = std::find_if(windows_.rbegin(), windows_.rend(), is_written);
    if (end - begin == 1) {
      windows_.erase(std::next(last).base());
    } else {
      std::erase_if(windows_, is_written);
    }
  }
  for (int64_t w = begin; w < end; ++w) {
    windows_.push_back(w);
    listed_[w] = 1;
  }
}

}  // namespace seine
