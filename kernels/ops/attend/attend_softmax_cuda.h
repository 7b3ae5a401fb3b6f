// The softmax of a block's share: a tile's logits become weights, its values are added to the sums.
#ifndef SEINE_KERNELS_OPS_ATTEND_ATTEND_SOFTMAX_CUDA_H_
#define SEINE_KERNELS_OPS_ATTEND_ATTEND_SOFTMAX_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/math.h"
#include "kernels/ops/attend/attend_part_cuda.h"
#include "kernels/ops/attend/attend_rows_cuda.h"

namespace seine::cuda {

// Logits to weights, of windows with their counts and the unit of their values; the softmax so far goes along.
template <typename Block>
SEINE_BODY void WeighTile(Block& block, AttendShared& s, const AttendItem& item, const AttendPart& part, int count) {
  typename Block::template Local<FloatsOf<1>> most(block), total(block);
  const bool windows = part.kind == AttendKind::kWindows;
  const int heads = part.heads, stride = RecordWords(item.head_dim);
  block.Lanes([&](int lane) {
    const int g = lane / kWarp;
    float largest = g < heads ? s.most[g] : -INFINITY;
    for (int r = lane % kWarp; g < heads && r < count; r += kWarp) largest = Most(largest, s.weights[g][r]);
    most[lane].of[0] = largest;
  });
  block.template Butterfly<kWarp>(most, 1, MostOf());
  block.Lanes([&](int lane) {
    const int g = lane / kWarp;
    const float largest = most[lane].of[0];
    float sum = 0;
    for (int r = lane % kWarp; g < heads && r < count; r += kWarp) {
      const float logit = s.weights[g][r];
      float weight = logit == -INFINITY ? 0.0f : ExpNonPositive(logit - largest);
      if (logit != logit) weight = logit;
      if (windows) weight = weight * static_cast<float>(s.left[g][r]);
      sum = sum + weight;
      const float* record = reinterpret_cast<const float*>(s.values) + r * stride;
      s.weights[g][r] = windows ? weight * record[item.head_dim / 2 + 1] : weight;
    }
    total[lane].of[0] = sum;
  });
  block.template Butterfly<kWarp>(total, 1, SumOf());
  block.Lanes([&](int lane) {
    const int g = lane / kWarp;
    if (g >= heads || lane % kWarp != 0) return;
    const float before = s.most[g], scale = before == -INFINITY ? 0.0f : ExpNonPositive(before - most[lane].of[0]);
    s.scale[g] = scale;
    s.most[g] = most[lane].of[0];
    s.total[g] = s.total[g] * scale + total[lane].of[0];
  });
}

using AttendSums = FloatsOf<kSumsOfLane>;

// sums[a] = sums[a] * scale(g) + the weighted values [first, first + rows) of the tile, whose row r is value(r, j); `a`
// stands for entry j of head g.
template <typename Scale, typename Value>
SEINE_BODY void AddToSums(const AttendShared& s, const AttendItem& item, int heads, int first, int rows, int lane,
                          Scale scale, Value value, AttendSums* sums) {
  const int dim = item.head_dim;
  SEINE_UNROLL
  for (int a = 0; a < kSumsOfLane; ++a) {
    const int index = lane + a * kAttendLanes;
    if (index >= heads * dim) continue;
    const int g = index / dim, j = index - g * dim;
    float sum = sums->of[a] * scale(g);
    for (int r = 0; r < rows; ++r) sum = sum + s.weights[g][first + r] * value(r, j);
    sums->of[a] = sum;
  }
}

template <typename Block>
SEINE_BODY void AddTile(Block& block, AttendShared& s, const AttendItem& item, const AttendPart& part, int count,
                        typename Block::template Local<AttendSums>& sums) {
  const auto scale = [&](int g) { return s.scale[g]; };
  if (part.kind == AttendKind::kWindows) {
    const int dim = item.head_dim, stride = RecordWords(dim) * 4;
    block.Lanes([&](int lane) {
      AddToSums(
          s, item, part.heads, 0, count, lane, scale,
          [&](int r, int j) { return static_cast<float>(static_cast<int8_t>(s.values[r * stride + dim + j])); },
          &sums[lane]);
    });
    return;
  }
  const int at_once = ValuesAtOnce(item), row_bytes = static_cast<int>(BytesOf(item.values.dtype, item.head_dim));
  const auto value = [&](int r, int j) { return EntryOf(s.values + r * row_bytes, item.values.dtype, j); };
  for (int first = 0; first < count; first += at_once) {
    const int rows = Least(at_once, count - first);
    if (first > 0) block.Lanes([&](int lane) { LoadValues(s, item, first, rows, lane); });
    block.Lanes([&](int lane) {
      if (first == 0) {
        AddToSums(s, item, part.heads, 0, rows, lane, scale, value, &sums[lane]);
      } else {
        AddToSums(
            s, item, part.heads, first, rows, lane, [](int) { return 1.0f; }, value, &sums[lane]);
      }
    });
  }
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_ATTEND_ATTEND_SOFTMAX_CUDA_H_
