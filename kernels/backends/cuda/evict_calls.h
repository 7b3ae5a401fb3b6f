// Eviction's calls on a device: tasks laid out in a context, the kernels of evict_items.h, and their answers brought
// back.
#ifndef SEINE_KERNELS_BACKENDS_CUDA_EVICT_CALLS_H_
#define SEINE_KERNELS_BACKENDS_CUDA_EVICT_CALLS_H_

#include "kernels/device/stream_context.h"
#include "kernels/ops/score_keys/score_keys.h"

namespace seine::cuda {

// backend.h, Sum, Score and Select. Each returns when its answers are there, or nothing of it is under way any
// more. Scores take their room in the context, 4 bytes a key, for a few million keys at a time.
Device::Error SumOnDevice(const SumTask* tasks, int count, StreamContext* context);
Device::Error ScoreOnDevice(const ScoreTask* tasks, int count, StreamContext* context);
Device::Error SelectOnDevice(const SelectTask* tasks, int count, StreamContext* context);

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_BACKENDS_CUDA_EVICT_CALLS_H_
