// Stored rows by positions that mostly ascend.
#ifndef SEINE_KERNELS_OPS_ROWS_ROW_WALK_H_
#define SEINE_KERNELS_OPS_ROWS_ROW_WALK_H_

#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

namespace seine::cpu {

// A chunk serves many rows, so that a comparison finds a row where ChunkedRows::row takes a division. `rows` are stored
// (chunks is not nullptr), and positions lie in them. For one thread.
class RowWalk {
 public:
  explicit RowWalk(const ChunkedRows& rows)
      : chunks_(rows.chunks), stride_(rows.stride()), tokens_(static_cast<uint32_t>(rows.chunk_tokens)) {}
  const uint8_t* At(int32_t position) {
    const auto at = static_cast<uint32_t>(position);
    if (chunk_ == nullptr || at - first_ >= tokens_) {
      chunk_ = chunks_[at / tokens_];
      first_ = at / tokens_ * tokens_;
    }
    return chunk_ + (at - first_) * stride_;
  }

 private:
  const uint8_t* const* chunks_;
  const uint8_t* chunk_ = nullptr;
  const size_t stride_;
  const uint32_t tokens_;
  uint32_t first_ = 0;
};

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_ROWS_ROW_WALK_H_
