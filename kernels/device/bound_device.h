// A device whose calls go to one ordinal, whichever device the calling thread has chosen for itself.
//
// The CUDA runtime keeps a current device for each thread. A thread of an engine may stand at another GPU than the
// backend's, where handles and addresses of ours mean nothing. So every call chooses the backend's ordinal first, and
// leaves the thread where it stood.
#ifndef SEINE_KERNELS_DEVICE_BOUND_DEVICE_H_
#define SEINE_KERNELS_DEVICE_BOUND_DEVICE_H_

#include <memory>

#include "kernels/device/device.h"

namespace seine::cuda {

// cudaGetDevice and cudaSetDevice. Thread-safe: each concerns the calling thread alone.
class CurrentDevice {
 public:
  virtual ~CurrentDevice() = default;
  virtual Device::Error Get(int* ordinal) = 0;
  virtual Device::Error Set(int ordinal) = 0;
};

// Every call of `device` at `ordinal`, its destruction too. A call that cannot get there is not made, and returns why.
std::unique_ptr<Device> BindDevice(std::unique_ptr<Device> device, int ordinal, std::unique_ptr<CurrentDevice> current);

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_DEVICE_BOUND_DEVICE_H_
