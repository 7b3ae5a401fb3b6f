// Which backend "auto" takes: the faster of the two, by a trial.
#include "kernels/backends/faster.h"

#include <gtest/gtest.h>

#include "tests/kernels/cuda/host_device.h"

namespace seine {
namespace {

constexpr Trial kSmall = {1, 1024, 3};

TEST(FasterBackend, AnEmulatedDeviceIsSlowerThanTheCpu) {
  std::string why;
  const auto taken =
      FasterBackend(kSmall, cuda::BackendOn(std::make_shared<cuda::HostDeviceControl>()), MakeCpuBackend(1), &why);
  EXPECT_EQ(taken->name(), "cpu");
  EXPECT_NE(why.find("host took "), std::string::npos) << why;
  EXPECT_NE(why.find(" us for a layer's search in a trial, the CPU "), std::string::npos) << why;
}

TEST(FasterBackend, TheFirstIsTakenWhereItIsFaster) {
  std::string why;
  const auto control = std::make_shared<cuda::HostDeviceControl>();
  const auto taken = FasterBackend(kSmall, MakeCpuBackend(1), cuda::BackendOn(control), &why);
  EXPECT_EQ(taken->name(), "cpu");
  EXPECT_EQ(why, "");
  EXPECT_EQ(control->device_bytes, 0);  // the other is gone
}

// No room for the trial, and a device that is lost in it.
TEST(FasterBackend, ADeviceThatFailsATrialIsNotTaken) {
  for (const int error : {cuda::Device::kOutOfMemory, 719}) {
    std::string why;
    const auto control = std::make_shared<cuda::HostDeviceControl>();
    control->error = error;
    auto device = cuda::BackendOn(control);
    control->fail_call = control->calls + 5;
    EXPECT_EQ(FasterBackend(kSmall, std::move(device), MakeCpuBackend(1), &why)->name(), "cpu");
    EXPECT_NE(why.find("host did not get through a trial"), std::string::npos) << why;
    EXPECT_EQ(why.find("planted error") != std::string::npos, error == 719) << why;
  }
}

}  // namespace
}  // namespace seine
