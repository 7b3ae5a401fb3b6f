// Every call of the CUDA runtime that the backend makes and every kernel that it starts, behind one interface. So the
// backend is plain C++ that is built and tested without CUDA: tests run the kernels' bodies on the host, behind memory
// that the host may not read, and make each call fail once.
//
// Thread safety: every method may be called from any thread at once, with streams of their own.
#ifndef SEINE_KERNELS_DEVICE_DEVICE_H_
#define SEINE_KERNELS_DEVICE_DEVICE_H_

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/device/work.h"

namespace seine::cuda {

class Device {
 public:
  using Error = int;                                      // cudaError_t's number; 0: none
  using Stream = void*;                                   // the device's own (cuda_stream.h)
  static constexpr Error kNoError = 0, kOutOfMemory = 2;  // cudaErrorMemoryAllocation

  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "NVIDIA H200", and where its graphs (launch_cache.h) are off or failed, that
  virtual std::string Describe(Error error) const = 0;

  // Memory of the device, and page-locked memory of the host, which kernels read at the same address. Both 256-byte
  // aligned.
  virtual Error Allocate(size_t bytes, void** out) = 0;
  virtual Error Free(void* data) = 0;
  virtual Error AllocateHost(size_t bytes, void** out) = 0;
  virtual Error FreeHost(void* data) = 0;

  virtual Error MakeStream(Stream* out) = 0;
  virtual Error DropStream(Stream stream) = 0;
  // Whether a caller's cudaStream_t can be waited for: not another device's (bound_device.h), and not while it is
  // captured into a graph, which would take in what waits for it, and break where the host waits for that.
  virtual bool CanAwait(void* theirs) = 0;
  // Whether a caller's memory is this device's own: none of the host's, page-locked or not, and no other device's.
  virtual bool Holds(const void* theirs) = 0;
  // Work enqueued from now on begins after the work that is on `theirs` by now, a cudaStream_t of the caller's own.
  virtual Error Await(void* theirs, Stream stream) = 0;
  // Waits until all that was enqueued is done; what went wrong in it comes out here.
  virtual Error Finish(Stream stream) = 0;

  // Enqueued, one after another. Copy: either side may be the device's or page-locked.
  virtual Error Copy(void* to, const void* from, size_t bytes, Stream stream) = 0;
  virtual Error Zero(void* data, size_t bytes, Stream stream) = 0;
  virtual Error Launch(const Work& work, Stream stream) = 0;
};

// Whether this build has kernels for a device; else none is opened.
bool HasCuda();
// The machine's CUDA device of an ordinal, for every thread, whichever device that has chosen (bound_device.h).
// nullptr, and *why: built without CUDA, no driver, no such device, or one too old.
std::unique_ptr<Device> OpenDevice(std::string* why, int ordinal = 0);

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_DEVICE_DEVICE_H_
