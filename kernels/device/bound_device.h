// A device whose calls go to one ordinal, whichever device the calling thread has chosen for itself.
//
// The CUDA runtime keeps a current device for each thread. A thread of an engine may stand at another GPU than the
// backend's, where handles and addresses of ours mean nothing. So every call chooses the backend's ordinal first, and
// leaves the thread where it stood.
//
// While any thread captures a graph in the runtime's usual mode, as torch.cuda.graph does, an allocation on any other
// thread fails and breaks the capture (https://github.com/vllm-project/vllm/pull/48053). Ours has nothing to do with
// what is captured: it goes to streams of our own, which wait for no captured one. So calls are made in relaxed mode.
#ifndef SEINE_KERNELS_DEVICE_BOUND_DEVICE_H_
#define SEINE_KERNELS_DEVICE_BOUND_DEVICE_H_

#include <memory>

#include "kernels/device/device.h"

namespace seine::cuda {

// Calls of the CUDA runtime that concern the calling thread: cudaGetDevice, cudaSetDevice, cudaStreamGetDevice and
// cudaThreadExchangeStreamCaptureMode, where kRelaxed is cudaStreamCaptureModeRelaxed. Thread-safe.
class CurrentDevice {
 public:
  static constexpr int kRelaxed = 2;
  virtual ~CurrentDevice() = default;
  virtual Device::Error Get(int* ordinal) = 0;
  virtual Device::Error Set(int ordinal) = 0;
  virtual Device::Error OfStream(void* theirs, int* ordinal) = 0;
  // The thread's mode becomes *mode; *mode what it was.
  virtual Device::Error ExchangeCaptureMode(int* mode) = 0;
};

// Every call of `device` at `ordinal` and in relaxed capture mode, its destruction too. A call that cannot get there is
// not made, and returns why. Another device's stream cannot be awaited.
std::unique_ptr<Device> BindDevice(std::unique_ptr<Device> device, int ordinal, std::unique_ptr<CurrentDevice> current);

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_DEVICE_BOUND_DEVICE_H_
