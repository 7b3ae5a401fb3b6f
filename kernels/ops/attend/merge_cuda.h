// The second kernel of attention: the splits of a head become its output.
#ifndef SEINE_KERNELS_OPS_ATTEND_MERGE_CUDA_H_
#define SEINE_KERNELS_OPS_ATTEND_MERGE_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/load.h"
#include "kernels/math.h"
#include "kernels/ops/attend/attend_part_cuda.h"

namespace seine::cuda {

struct MergeShared {
  Quad sums[kAttendLanes];  // of a lane's splits
  float weights[kMostSplitsOfHead];
  float most[kAttendWarps], total[kAttendWarps];
};

// Weighted sums of splits [begin, end), of the four entries that lie at `sums` in the first split, `stride` in each.
SEINE_BODY inline Quad SumSplits(const float* sums, int stride, const float* weights, int begin, int end) {
  constexpr int kAhead = 8;
  float of[4] = {0, 0, 0, 0};
  for (int i = begin; i < end; i += kAhead) {
    Quad ahead[kAhead];
    SEINE_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      const bool any = i + a < end && weights[i + a] > 0;  // else nothing was written
      ahead[a] = any ? *reinterpret_cast<const Quad*>(sums + static_cast<int64_t>(i + a) * stride) : Quad{};
    }
    SEINE_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      const float weight = i + a < end ? weights[i + a] : 0.0f;
      SEINE_UNROLL
      for (int k = 0; k < 4; ++k) of[k] = of[k] + BitsFloat(ahead[a].word[k]) * weight;
    }
  }
  Quad sum;
  SEINE_UNROLL
  for (int k = 0; k < 4; ++k) sum.word[k] = FloatBits(of[k]);
  return sum;
}

// Grid: (group, items). A lane takes four entries of a part of the splits.
struct MergeBody {
  using Shared = MergeShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const AttendArgs& args) {
    const AttendItem& item = args.items[block.index().y];
    const int g = block.index().x, dim = item.head_dim, splits = item.splits();
    if (g >= item.group) return;
    const AttendStats* stats = item.stats + static_cast<int64_t>(g) * splits;
    const float* sums = item.sums + static_cast<int64_t>(g) * splits * dim;
    typename Block::template Local<FloatsOf<1>> mine(block);
    block.Lanes([&](int lane) {
      float most = -INFINITY;
      for (int i = lane; i < splits; i += kAttendLanes) most = Most(most, stats[i].most);
      mine[lane].of[0] = most;
    });
    block.template Butterfly<kWarp>(mine, 1, MostOf());
    block.Lanes([&](int lane) {
      if (lane % kWarp == 0) s.most[lane / kWarp] = mine[lane].of[0];
    });
    const auto largest = [&] {
      float most = s.most[0];
      for (int w = 1; w < kAttendWarps; ++w) most = Most(most, s.most[w]);
      return most;
    };
    block.Lanes([&](int lane) {
      const float most = largest();
      float total = 0;
      for (int i = lane; i < splits; i += kAttendLanes) {
        const float weight = stats[i].most == -INFINITY ? 0.0f : ExpNonPositive(stats[i].most - most);
        s.weights[i] = weight;
        total = total + weight * stats[i].total;  // NaN stays, whatever the weight
      }
      mine[lane].of[0] = total;
    });
    block.template Butterfly<kWarp>(mine, 1, SumOf());
    block.Lanes([&](int lane) {
      if (lane % kWarp == 0) s.total[lane / kWarp] = mine[lane].of[0];
    });
    const int quads = dim / 4, parts = kAttendLanes / quads, each = (splits + parts - 1) / parts;
    block.Lanes([&](int lane) {
      const int at = lane % quads, part = lane / quads;
      if (part >= parts) return;
      s.sums[lane] = SumSplits(sums + at * 4, dim, s.weights, part * each, Least(splits, (part + 1) * each));
    });
    block.Lanes([&](int lane) {
      float total = 0;
      for (int w = 0; w < kAttendWarps; ++w) total = total + s.total[w];
      const float share = total == 0 ? 0.0f : 1.0f / total;
      if (lane == 0) item.log_sum_exp[g] = total > 0 ? largest() + LogPositive(total) : total == 0 ? -INFINITY : total;
      SEINE_ROLLED for (int j = lane; j < dim; j += kAttendLanes) {
        float sum = 0;
        for (int part = 0; part < parts; ++part) sum = sum + BitsFloat(s.sums[part * quads + j / 4].word[j % 4]);
        item.output[g * dim + j] = sum * share;
      }
    });
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_ATTEND_MERGE_CUDA_H_
