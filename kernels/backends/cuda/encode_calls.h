// Encoding on a device: keys brought to its reach a batch at a time, and the kernel of encode_items.h.
#ifndef SEINE_KERNELS_BACKENDS_CUDA_ENCODE_CALLS_H_
#define SEINE_KERNELS_BACKENDS_CUDA_ENCODE_CALLS_H_

#include "kernels/backend.h"
#include "kernels/codecs/kinds/registry.h"
#include "kernels/device/stream_context.h"

namespace seine::cuda {

// backend.h, Encode, but for the codecs' tables, which are the device's. Returns when the codes are there, or nothing
// of it is under way any more. *stopped: the caller's StopToken ended it (stop.h), and some tasks were left out.
Device::Error EncodeOnDevice(const EncodeTask* tasks, const CodecTables* const* tables, int count,
                             StreamContext* context, bool* stopped);

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_BACKENDS_CUDA_ENCODE_CALLS_H_
