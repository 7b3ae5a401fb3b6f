// Starts a search on a device.
#ifndef SEINE_KERNELS_OPS_SEARCH_SEARCH_LAUNCH_H_
#define SEINE_KERNELS_OPS_SEARCH_SEARCH_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <functional>

#include "kernels/ops/search/search_items.h"

namespace seine::cuda {

// Enqueues every kernel of the planned search on `stream`; returns at once. args: the plan's params and the device's
// copies of its items, queries and sets. The answers are readable when the stream has come to its end. The error is
// the first launch's that failed.
// `after`, if given, is called once each kernel has been enqueued, in the order of CountTraffic (traffic.h).
cudaError_t LaunchSearch(const SearchPlan& plan, const SearchArgs& args, cudaStream_t stream,
                         const std::function<void()>& after = {});

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SEARCH_SEARCH_LAUNCH_H_
