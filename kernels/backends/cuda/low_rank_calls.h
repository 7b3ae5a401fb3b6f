// Subspaces' calls on a device: tasks laid out in a context, the kernels of low_rank_items.h, and their answers brought
// back.
#ifndef SEINE_KERNELS_BACKENDS_CUDA_LOW_RANK_CALLS_H_
#define SEINE_KERNELS_BACKENDS_CUDA_LOW_RANK_CALLS_H_

#include "kernels/device/stream_context.h"
#include "kernels/ops/learn/oja.h"
#include "kernels/ops/low_rank/low_rank.h"

namespace seine::cuda {

// backend.h, Project, Rebuild and Learn. They return when their answers are there, or nothing of theirs is under way
// any more. Rows take their room in the context, some tens of MiB at a time.
Device::Error ProjectOnDevice(const ProjectTask* tasks, int count, StreamContext* context);
Device::Error RebuildOnDevice(const RebuildTask* tasks, int count, StreamContext* context);
Device::Error LearnOnDevice(const LearnTask* tasks, int count, StreamContext* context);

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_BACKENDS_CUDA_LOW_RANK_CALLS_H_
