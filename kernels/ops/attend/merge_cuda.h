// The second kernel of attention: the splits of a head become its output.
#ifndef SEINE_KERNELS_OPS_ATTEND_MERGE_CUDA_H_
#define SEINE_KERNELS_OPS_ATTEND_MERGE_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/math.h"
#include "kernels/ops/attend/attend_part_cuda.h"

namespace seine::cuda {

struct MergeShared {
  float weights[kMostSplitsOfHead];
  float most[kAttendWarps], total[kAttendWarps];
};

// Grid: (group, items).
struct MergeBody {
  using Shared = MergeShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const AttendArgs& args) {
    const AttendItem& item = args.items[block.index().y];
    const int g = block.index().x, dim = item.head_dim, splits = item.splits();
    if (g >= item.group) return;
    const AttendStats* stats = item.stats + static_cast<int64_t>(g) * splits;
    const float* sums = item.sums + static_cast<int64_t>(g) * splits * dim;
    typename Block::template Local<FloatsOf<1>> part(block);
    block.Lanes([&](int lane) {
      float most = -INFINITY;
      for (int i = lane; i < splits; i += kAttendLanes) most = Most(most, stats[i].most);
      part[lane].of[0] = most;
    });
    block.template Butterfly<kWarp>(part, 1, MostOf());
    block.Lanes([&](int lane) {
      if (lane % kWarp == 0) s.most[lane / kWarp] = part[lane].of[0];
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
      part[lane].of[0] = total;
    });
    block.template Butterfly<kWarp>(part, 1, SumOf());
    block.Lanes([&](int lane) {
      if (lane % kWarp == 0) s.total[lane / kWarp] = part[lane].of[0];
    });
    block.Lanes([&](int lane) {
      float total = 0;
      for (int w = 0; w < kAttendWarps; ++w) total = total + s.total[w];
      const float share = total == 0 ? 0.0f : 1.0f / total;
      if (lane == 0) item.log_sum_exp[g] = total > 0 ? largest() + LogPositive(total) : total == 0 ? -INFINITY : total;
      constexpr int kAhead = 8;
      SEINE_ROLLED for (int j = lane; j < dim; j += kAttendLanes) {
        float sum = 0;
        for (int i = 0; i < splits; i += kAhead) {
          float ahead[kAhead];
          SEINE_UNROLL
          for (int a = 0; a < kAhead; ++a) {
            const bool any = i + a < splits && s.weights[i + a] > 0;
            ahead[a] = any ? sums[static_cast<int64_t>(i + a) * dim + j] * s.weights[i + a] : 0.0f;
          }
          SEINE_UNROLL
          for (int a = 0; a < kAhead; ++a) sum = sum + ahead[a];
        }
        item.output[g * dim + j] = sum * share;
      }
    });
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_ATTEND_MERGE_CUDA_H_
