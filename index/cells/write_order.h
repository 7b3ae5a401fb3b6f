// The order in which the windows of a cache were last written: a text's newest tokens lie wherever cells were free.
#ifndef SEINE_INDEX_CELLS_WRITE_ORDER_H_
#define SEINE_INDEX_CELLS_WRITE_ORDER_H_

#include <cstdint>
#include <vector>

namespace seine {

// Not thread-safe.
class WriteOrder {
 public:
  // Windows [begin, end) were written, in this order.
  void Wrote(int64_t begin, int64_t end);
  // Every window that was ever written, once; the newest is the last.
  const std::vector<int64_t>& windows() const { return windows_; }
  bool Knows(int64_t window) const { return window < static_cast<int64_t>(listed_.size()) && listed_[window] != 0; }

 private:
  std::vector<int64_t> windows_;
  std::vector<uint8_t> listed_;  // by window
};

}  // namespace seine

#endif  // SEINE_INDEX_CELLS_WRITE_ORDER_H_
