// The kernels of a search: each is one body of search_steps.h, run by thread blocks.
#include "kernels/device/launch_kernels.h"
#include "kernels/ops/search/search_plan.h"
#include "kernels/ops/search/search_steps.h"

namespace seine::cuda {

template cudaError_t Launch(const SearchLaunch&, cudaStream_t, const std::function<void()>&);

}  // namespace seine::cuda
