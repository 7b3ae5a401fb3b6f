// Starts the kernels of evict_items.h on a device.
#ifndef SEINE_KERNELS_OPS_SCORE_KEYS_EVICT_LAUNCH_H_
#define SEINE_KERNELS_OPS_SCORE_KEYS_EVICT_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "kernels/ops/score_keys/evict_items.h"

namespace seine::cuda {

// Enqueued on `stream`; they return at once. At most 65,535 items.
cudaError_t LaunchSum(const SumArgs& args, cudaStream_t stream);
cudaError_t LaunchScore(const ScoreArgs& args, cudaStream_t stream);
cudaError_t LaunchSelect(const SelectArgs& args, cudaStream_t stream);

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SCORE_KEYS_EVICT_LAUNCH_H_
