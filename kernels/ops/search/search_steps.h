// The steps of a search in their order: run(body, grid, lanes) for each (device/launcher.h).
#ifndef SEINE_KERNELS_OPS_SEARCH_SEARCH_STEPS_H_
#define SEINE_KERNELS_OPS_SEARCH_SEARCH_STEPS_H_

#include "kernels/ops/query/search_items.h"
#include "kernels/ops/scan/scan_cuda.h"
#include "kernels/ops/search/choose_cuda.h"
#include "kernels/ops/search/combine_cuda.h"
#include "kernels/ops/search/dots_cuda.h"
#include "kernels/ops/search/prepare_cuda.h"
#include "kernels/ops/search/rerank_cuda.h"
#include "kernels/ops/search/search_plan.h"

namespace seine::cuda {

// coarse_bytes / 4: at most a bit a coordinate. Of the heads above kNarrowHeadDim, which are of 512, rsq's are the most
// there are; the balanced code scans as many as of narrow ones.
inline constexpr int kNarrowGroups = kNarrowHeadDim / 32, kMostGroups = kMaxHeadDim / 32;

// One scan kernel for each width of a code row in the batch.
template <int kGroups, typename Run>
void RunScans(const SearchGrids& grids, Run& run) {
  if (grids.coarse_groups >> kGroups & 1) run(NibbleScanBody<kGroups>(), grids.scan, Lanes<kScanLanes>());
  if constexpr (kGroups < kNarrowGroups) RunScans<kGroups + 1>(grids, run);
  if constexpr (kGroups == kNarrowGroups) RunScans<kMostGroups>(grids, run);
}

template <int kDim, typename Run>
void RunDots(const SearchGrids& grids, Run& run) {
  if (grids.low_rank) {
    run(DotBody<kDim, true>(), grids.dots, Lanes<kDotLanes>());
  } else {
    run(DotBody<kDim, false>(), grids.dots, Lanes<kDotLanes>());
  }
}

template <typename Run>
void ForEachKernel(const SearchLaunch& launch, Run run) {
  const SearchPlan& plan = *launch.plan;
  const SearchGrids& grids = plan.grids();
  if (plan.params().method == Method::kIndex) {
    run(PrepareBody(), grids.queries, Lanes<kPrepareLanes>());
    if (plan.params().coarse == Coarse::kCollision) {
      if (grids.wide) {
        run(TierScanBody<kMaxHeadDim>(), grids.scan, Lanes<kScanLanes>());
      } else {
        run(TierScanBody<kNarrowHeadDim>(), grids.scan, Lanes<kScanLanes>());
      }
    } else {
      RunScans<1>(grids, run);
    }
    run(ChooseBody(), grids.choose, Lanes<kChooseLanes>());
    run(RescoreBody(), grids.rescore, Lanes<kRerankLanes>());
  }
  if (grids.wide) {
    RunDots<kMaxHeadDim>(grids, run);
  } else {
    RunDots<kNarrowHeadDim>(grids, run);
  }
  run(CombineBody(), grids.sets, Lanes<kCombineLanes>());
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SEARCH_SEARCH_STEPS_H_
