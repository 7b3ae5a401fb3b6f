// Starts the kernels of low_rank_items.h on a device.
#ifndef SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_LAUNCH_H_
#define SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "kernels/ops/low_rank/low_rank_items.h"

namespace seine::cuda {

// Enqueued on `stream`; they return at once. At most 65,535 items.
cudaError_t LaunchProject(const ProjectArgs& args, cudaStream_t stream);
cudaError_t LaunchRebuild(const RebuildArgs& args, cudaStream_t stream);
cudaError_t LaunchLearn(const LearnArgs& args, cudaStream_t stream);

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_LAUNCH_H_
