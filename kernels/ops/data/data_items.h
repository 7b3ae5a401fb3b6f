// Kernels that count or move data: how often each byte of a coarse plane occurs, stored rows fetched by position, and
// many small copies by one launch.
#ifndef SEINE_KERNELS_OPS_DATA_DATA_ITEMS_H_
#define SEINE_KERNELS_OPS_DATA_DATA_ITEMS_H_

#include <cstdint>

#include "kernels/backend.h"

namespace seine::cuda {

inline constexpr int kDataLanes = 256;

// backend.h, CountTask, with every pointer readable by the device.
struct CountItem {
  const uint8_t* coarse = nullptr;
  int32_t coarse_bytes = 0, head_dim = 0;
  int32_t begin = 0, end = 0;
  int32_t sign = 1;
  uint32_t* counts = nullptr;  // [head_dim / 8][256]
};
struct CountArgs {  // one block an item
  const CountItem* items = nullptr;
  int32_t num_items = 0;
};

// Rows of one head by position, straight from page-locked host memory: out[i] = row positions[i].
struct GatherItem {
  const uint8_t* const* chunks = nullptr;  // types.h, ChunkedRows
  int32_t chunk_tokens = 1;
  int32_t row_bytes = 0;  // a multiple of 16
  const int32_t* positions = nullptr;
  int32_t count = 0;
  uint8_t* out = nullptr;  // [count][row_bytes], 16-byte aligned
};
struct GatherArgs {  // kGatherParts blocks an item
  const GatherItem* items = nullptr;
  int32_t num_items = 0;
};
inline constexpr int kGatherParts = 8;

// backend.h, CopyTask, either side the device's or page-locked.
struct CopyItem {
  uint8_t* to = nullptr;
  const uint8_t* from = nullptr;
  int64_t bytes = 0;
};
struct CopyArgs {  // one block an item
  const CopyItem* items = nullptr;
  int32_t num_items = 0;
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_DATA_DATA_ITEMS_H_
