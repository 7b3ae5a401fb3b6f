// One search task on the calling thread: the pipeline of kernels/ops/query/search.h over vector operations.
#ifndef SEINE_KERNELS_OPS_SEARCH_SEARCH_CPU_H_
#define SEINE_KERNELS_OPS_SEARCH_SEARCH_CPU_H_

#include "kernels/ops/query/search.h"

namespace seine::cpu {

// Thread-safe; keeps a workspace a thread. `next`: the codec of what is searched after this, whose tables are asked for
// meanwhile, or nullptr.
void SearchOne(const SearchTask& task, const SearchParams& params, SearchOutput* output, const Codec* next = nullptr);

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_SEARCH_SEARCH_CPU_H_
