// A tile of windows' means: records as they are stored, multiplied by the queries in int8.
#ifndef SEINE_KERNELS_OPS_ATTEND_ATTEND_WINDOWS_CUDA_H_
#define SEINE_KERNELS_OPS_ATTEND_ATTEND_WINDOWS_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/load.h"
#include "kernels/math.h"
#include "kernels/ops/attend/attend_part_cuda.h"

namespace seine::cuda {

// The part's queries, for windows in int8 too, and an empty softmax.
template <typename Block>
SEINE_BODY void BeginPart(Block& block, AttendShared& s, const AttendItem& item, const AttendPart& part) {
  const int dim = item.head_dim, heads = part.heads, stride = QueryStride(HeadsOfBlock(dim));
  const float* queries = item.queries + static_cast<int64_t>(part.first_head) * dim;
  block.Lanes([&](int lane) {
    for (int i = lane; i < heads * dim; i += kAttendLanes) s.queries[i / dim * stride + i % dim] = queries[i];
    if (lane >= kAttendHeads) return;
    s.most[lane] = -INFINITY;
    s.total[lane] = 0;
  });
  if (part.kind != AttendKind::kWindows) return;
  typename Block::template Local<FloatsOf<1>> largest(block);
  block.Lanes([&](int lane) {
    const int g = lane / kWarp;
    float most = 0;
    for (int j = lane % kWarp; g < heads && j < dim; j += kWarp) most = Most(most, fabsf(s.queries[g * stride + j]));
    largest[lane].of[0] = most;
  });
  block.template Butterfly<kWarp>(largest, 1, MostOf());
  block.Lanes([&](int lane) {
    const int g = lane / kWarp;
    if (g >= heads) return;
    const Scale8 scale = Scale8Of(largest[lane].of[0]);
    for (int w = lane % kWarp; w < dim / 4; w += kWarp) {
      uint32_t word = 0;
      for (int i = 0; i < 4; ++i) {
        const auto byte = static_cast<uint8_t>(ToInt8(s.queries[g * stride + w * 4 + i], scale.inverse));
        word |= static_cast<uint32_t>(byte) << (i * 8);
      }
      s.queries8[g * stride / 4 + w] = word;
    }
    if (lane % kWarp == 0) s.unit[g] = scale.step * item.scale;
  });
}

// Records, logits and counts of windows [first, first + count).
template <typename Block>
SEINE_BODY void ReadWindows(Block& block, AttendShared& s, const AttendItem& item, const AttendPart& part, int first,
                            int count) {
  const int dim = item.head_dim, heads = part.heads, words = WindowStride(dim) / 4, stride = RecordWords(dim);
  auto* const records = reinterpret_cast<uint32_t*>(s.values);
  block.Lanes([&](int lane) {
    for (int w = lane / kWarp; w < count; w += kAttendWarps) {
      const int window = first + w, chunk = window / item.chunk_windows;
      const uint8_t* record =
          item.windows[chunk] + (window - chunk * item.chunk_windows) * static_cast<int64_t>(WindowStride(dim));
      for (int i = lane % kWarp; i < words; i += kWarp) records[w * stride + i] = LoadWord(record + i * 4);
    }
    for (int i = lane; i < kAttendHeads * kAttendTile; i += kAttendLanes) {
      s.left[i / kAttendTile][i % kAttendTile] = kWindowTokens;
    }
  });
  block.Lanes([&](int lane) {
    const int32_t begin = item.zone_begin + first * kWindowTokens, end = begin + count * kWindowTokens;
    const int sets = item.num_sets > 1 ? heads : item.num_sets;
    for (int i = 0; i < sets; ++i) {
      const AttendSet& set = item.sets[item.num_sets > 1 ? part.first_head + i : 0];
      const int chosen = *set.count;
      for (int r = lane; r < chosen; r += kAttendLanes) {
        const int32_t place = set.places[r];
        if (place < begin || place >= end) continue;
        const int w = (place - begin) / kWindowTokens;
        for (int g = i; g < (item.num_sets > 1 ? i + 1 : heads); ++g) block.AtomicAdd(&s.left[g][w], -1);
      }
    }
  });
  block.Lanes([&](int lane) {
    const int w = lane % kAttendTile;
    if (w >= count) return;
    const uint32_t* record = records + w * stride;
    const float step = BitsFloat(record[dim / 2]);  // of the keys' mean
    for (int g = lane / kAttendTile; g < heads; g += kAttendLanes / kAttendTile) {
      const uint32_t* query = s.queries8 + g * QueryStride(HeadsOfBlock(dim)) / 4;
      int32_t dot = 0;
      for (int i = 0; i < dim / 4; ++i) dot = Dot4(record[i], query[i], dot);
      const float logit = static_cast<float>(dot) * (step * s.unit[g]);
      s.weights[g][w] = s.left[g][w] > 0 ? CapLogit(logit, item.softcap) : -INFINITY;
    }
  });
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_ATTEND_ATTEND_WINDOWS_CUDA_H_
