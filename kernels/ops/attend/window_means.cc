#include "kernels/ops/attend/window_means.h"

#include <cstring>

#include "kernels/codecs/codec_util.h"
#include "kernels/ops/rows/rows.h"

namespace seine {

void EncodeWindowMeans(const float* keys, const float* values, int head_dim, uint8_t* record) {
  float mean[kMaxHeadDim], steps[2];
  int8_t* out = reinterpret_cast<int8_t*>(record);
  cpu::MeanRow(keys, kWindowTokens, head_dim, mean);
  steps[0] = Quantise8(mean, head_dim, out);
  cpu::MeanRow(values, kWindowTokens, head_dim, mean);
  steps[1] = Quantise8(mean, head_dim, out + head_dim);
  std::memcpy(record + 2 * static_cast<size_t>(head_dim), steps, sizeof(steps));
}

WindowSteps StepsOf(const uint8_t* record, int head_dim) {
  WindowSteps steps;
  std::memcpy(&steps, record + 2 * static_cast<size_t>(head_dim), sizeof(steps));
  return steps;
}

}  // namespace seine
