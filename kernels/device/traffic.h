// Counted bytes of kernels: what each must move between memory and the multiprocessors, from its shapes alone. Over a
// bandwidth it is the least time that the kernel can take; measured over it, the share of memory's speed.
#ifndef SEINE_KERNELS_DEVICE_TRAFFIC_H_
#define SEINE_KERNELS_DEVICE_TRAFFIC_H_

#include <string>
#include <vector>

#include "kernels/ops/query/search_items.h"
#include "kernels/ops/search/search_plan.h"

namespace seine::cuda {

struct StepTraffic {
  std::string step;
  double device_bytes = 0;      // read and written in the device's memory
  double link_bytes = 0;        // read over the host's link: stored keys and codes
  double block_operations = 0;  // fp32, of one block one after another, where they and not bytes bound it
};

// Counts the traffic of every launch of the plan's search by the index, in their order. Scattered reads count in
// sectors of 32 bytes; what all queries of a group read counts once. Sets are taken to be as large as they may become.
std::vector<StepTraffic> CountTraffic(const SearchPlan& plan);

// A layer's work beside searches, on heads of equal shapes.
struct LayerWork {
  int heads = 1;
  int head_dim = 128;
  int64_t rows = 0;               // of each head
  DType dtype = DType::kFloat16;  // of stored keys, and of codes
  int rank = 96;
  int interval = 32;            // OjaOptions
  int64_t kept = 0;             // of each head's rows, by a selection
  bool keys_on_device = false;  // for sums and scoring; else in the host's memory, as an index has them
};
// One launch each of "learn", "project", "rebuild", "sum", "score" and "select", on all of a head's rows. What stays in
// caches within a launch (bases, a learner's matrices, scores between a selection's passes) counts once.
std::vector<StepTraffic> CountTraffic(const LayerWork& work);

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_DEVICE_TRAFFIC_H_
