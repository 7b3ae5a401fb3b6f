// What stands for the tokens of a window that nobody selects: the means of its keys and of its values, int8 with one
// scale each. Beside stored rows of 4 head_dim bytes a token (fp16) that is about head_dim / 32 bytes more.
#ifndef SEINE_KERNELS_OPS_ATTEND_WINDOW_MEANS_H_
#define SEINE_KERNELS_OPS_ATTEND_WINDOW_MEANS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

namespace seine {

// A record: [head_dim] int8 of the keys' mean, [head_dim] int8 of the values', the true values of a unit of both
// (fp32).
constexpr size_t WindowMeansBytes(int head_dim) { return 2 * static_cast<size_t>(head_dim) + 2 * sizeof(float); }

// The record of finite keys and values [kWindowTokens, head_dim].
void EncodeWindowMeans(const float* keys, const float* values, int head_dim, uint8_t* record);

struct WindowSteps {
  float key, value;
};
WindowSteps StepsOf(const uint8_t* record, int head_dim);

// Records of one head by window: chunk c holds windows [c * chunk_windows, (c + 1) * chunk_windows).
struct ChunkedWindows {
  const uint8_t* const* chunks = nullptr;
  int chunk_windows = 1;
};

}  // namespace seine

#endif  // SEINE_KERNELS_OPS_ATTEND_WINDOW_MEANS_H_
