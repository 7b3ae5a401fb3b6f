#include "engines/python/paged/attention.h"

namespace seine::python {

absl::StatusOr<std::shared_ptr<PagedAttention>> PagedAttention::Create(PagedSettings settings, int64_t num_blocks,
                                                                       std::unique_ptr<CellContext> context,
                                                                       int threads) {
  std::shared_ptr<PagedAttention> made(
      new PagedAttention(std::move(settings), num_blocks, std::move(context), threads));
  const int64_t most = made->settings_.codes_bytes, size = made->settings_.block_size;
  if (most == 0) return made;
  const auto cells = CellLayer::Create(made->context(), 0);  // which knows how large codes are
  if (!cells.ok()) return cells.status();
  int64_t low = 0, high = num_blocks;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if ((*cells)->BytesFor(middle * size) <= most) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  made->code_blocks_ = low;
  return made;
}

}  // namespace seine::python
