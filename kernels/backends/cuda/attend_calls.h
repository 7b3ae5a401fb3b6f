// A batch of searches and of attention over what they find on a device, in one go: tasks laid out in a stream context,
// the kernels of search_steps.h and attend_cuda.h behind one another, and one copy of what comes back.
#ifndef SEINE_KERNELS_BACKENDS_CUDA_ATTEND_CALLS_H_
#define SEINE_KERNELS_BACKENDS_CUDA_ATTEND_CALLS_H_

#include <vector>

#include "kernels/backend.h"
#include "kernels/device/codec_cache.h"
#include "kernels/device/stream_context.h"

namespace seine::cuda {

// Searches and tasks at the places that are listed. A task's search is among those listed, and has keys.
struct AttendWork {
  const SearchTask* searches;
  const std::vector<int>& searched;
  const SearchParams& params;
  SearchOutput* found;
  AttendTask* tasks;
  const std::vector<int>& attended;
};

// Returns when the answers are there, or nothing of it is under way any more.
Device::Error AttendOnDevice(const AttendWork& work, CodecCache* cache, StreamContext* context);

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_BACKENDS_CUDA_ATTEND_CALLS_H_
