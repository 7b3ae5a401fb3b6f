// The CUDA backend: codes in the device's memory, stored keys and values page-locked in the host's, and the CPU
// backend's answers, bit for bit.
//
// A call takes a context, brings its arguments to the device in one copy, starts its kernels and waits for their end;
// none waits in between. Memory that runs out fails the call and nothing else. Any other error of the device loses it:
// every later operation ends in Outcome::kLost, what lay in page-locked memory stays readable.
#ifndef SEINE_KERNELS_BACKENDS_CUDA_CUDA_BACKEND_H_
#define SEINE_KERNELS_BACKENDS_CUDA_CUDA_BACKEND_H_

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "kernels/device/device.h"

namespace seine::cuda {

// Bytes that the searches of one launch work in on the device: a call of more is several launches, in turn. A task
// that alone needs more has it. Times StreamPool::kMost callers, this is what searches take beside the codes.
inline constexpr size_t kWorkspaceBytes = size_t{256} << 20;

// `threads` of the host for Backend::Run; 0: one per core. nullptr, and *why: the device has no room to work in.
std::unique_ptr<Backend> MakeCudaBackend(std::unique_ptr<Device> device, int threads, std::string* why,
                                         size_t workspace_bytes = kWorkspaceBytes);

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_BACKENDS_CUDA_CUDA_BACKEND_H_
