// The emulated device (tests/kernels/cuda/host_device.h) in the GPU's place: the suite's checks where there is none.
#include <thread>

#include "tests/device/suite.h"
#include "tests/kernels/cuda/host_device.h"

namespace seine::device {
namespace {

const std::shared_ptr<cuda::HostDeviceControl>& Control() {
  static const auto control = [] {
    auto made = std::make_shared<cuda::HostDeviceControl>();
    made->device_limit = int64_t{2} << 30;
    return made;
  }();
  return control;
}

}  // namespace

std::unique_ptr<Backend> OpenBackend(std::string* why) {
  std::unique_ptr<Backend> backend = cuda::BackendOn(Control(), 2);
  if (backend == nullptr) *why = "the emulated device cannot be opened";
  return backend;
}

int64_t BytesInUse() { return Control()->device_bytes; }

Json DescribeMachine() {
  return {{"device", "emulated on the host: what is right, and nothing of how fast"},
          {"host_threads", std::thread::hardware_concurrency()}};
}

std::vector<Part> Timings(const SuiteOptions&) { return {LaunchFigures()}; }

}  // namespace seine::device
