// A batch of searches on a device: tasks laid out in a stream context, the kernels of search_steps.h, and their
// answers.
#ifndef SEINE_KERNELS_BACKENDS_CUDA_SEARCH_CALLS_H_
#define SEINE_KERNELS_BACKENDS_CUDA_SEARCH_CALLS_H_

#include <vector>

#include "kernels/device/codec_cache.h"
#include "kernels/device/stream_context.h"
#include "kernels/ops/query/search.h"

namespace seine::cuda {

// Searches the tasks at the places that `batch` lists, into outputs[place]. Returns when the answers are there, or
// nothing of it is under way any more.
Device::Error SearchOnDevice(const SearchTask* tasks, const std::vector<int>& batch, const SearchParams& params,
                             CodecCache* cache, SearchOutput* outputs, StreamContext* context);

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_BACKENDS_CUDA_SEARCH_CALLS_H_
