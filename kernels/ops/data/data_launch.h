// Starts the kernels of data_items.h on a device.
#ifndef SEINE_KERNELS_OPS_DATA_DATA_LAUNCH_H_
#define SEINE_KERNELS_OPS_DATA_DATA_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "kernels/ops/data/data_items.h"

namespace seine::cuda {

// Enqueued on `stream`; they return at once. At most 65,535 items of a gather.
cudaError_t LaunchCount(const CountArgs& args, cudaStream_t stream);
cudaError_t LaunchGather(const GatherArgs& args, cudaStream_t stream);

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_DATA_DATA_LAUNCH_H_
