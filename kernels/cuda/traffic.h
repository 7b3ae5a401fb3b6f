// Counted bytes of a search: what each step must move between memory and the multiprocessors, from the plan's shapes
// alone. Over a bandwidth it is the least time that the step can take; measured over it, the share of memory's speed.
#ifndef SEINE_KERNELS_CUDA_TRAFFIC_H_
#define SEINE_KERNELS_CUDA_TRAFFIC_H_

#include <string>
#include <vector>

#include "kernels/cuda/search_items.h"

namespace seine::cuda {

struct StepTraffic {
  std::string step;
  double device_bytes = 0;  // read and written in the device's memory
  double link_bytes = 0;    // read over the host's link: stored keys
};

// Of every launch of the plan's search by the index, in their order. Scattered reads count in sectors of 32 bytes; what
// all queries of a group read counts once. Sets are taken to be as large as they may become.
std::vector<StepTraffic> CountTraffic(const SearchPlan& plan);

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CUDA_TRAFFIC_H_
