// Threads that stand at devices of their own: every call of a backend reaches its device at the backend's ordinal, and
// leaves the thread where it was.
#include "kernels/device/bound_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "tests/kernels/cuda/host_device.h"
#include "tests/kernels/test_util.h"

namespace seine::cuda {
namespace {

thread_local int here = 0;  // the runtime's current device of this thread
thread_local int mode = 0;  // and its capture mode, cudaStreamCaptureModeGlobal

// The runtime's two calls; an ordinal beyond 7 is none.
class FakeCurrent final : public CurrentDevice {
 public:
  Device::Error Get(int* ordinal) override {
    *ordinal = here;
    return Device::kNoError;
  }
  Device::Error Set(int ordinal) override {
    if (ordinal > 7) return 101;  // cudaErrorInvalidDevice
    here = ordinal;
    return Device::kNoError;
  }
  Device::Error OfStream(void* theirs, int* ordinal) override {  // a stream points to its device
    *ordinal = theirs == nullptr ? here : *static_cast<int*>(theirs);
    return Device::kNoError;
  }
  Device::Error ExchangeCaptureMode(int* exchanged) override {
    std::swap(mode, *exchanged);
    return Device::kNoError;
  }
};

struct Watch {
  std::atomic<int> calls{0}, astray{0}, strict{0};
};

// A device of one ordinal, which counts the calls of threads that stand elsewhere, and of those that a capture on
// another thread would make fail.
class WatchedDevice final : public Device {
 public:
  WatchedDevice(int ordinal, std::shared_ptr<Watch> watch)
      : ordinal_(ordinal), watch_(std::move(watch)), host_(std::make_shared<HostDeviceControl>()) {}
  ~WatchedDevice() override { Seen(); }
  std::string name() const override { return "watched"; }
  std::string Describe(Error error) const override { return std::to_string(error); }
  Error Allocate(size_t bytes, void** out) override { return Seen().Allocate(bytes, out); }
  Error Free(void* data) override { return Seen().Free(data); }
  Error AllocateHost(size_t bytes, void** out) override { return Seen().AllocateHost(bytes, out); }
  Error FreeHost(void* data) override { return Seen().FreeHost(data); }
  Error MakeStream(Stream* out) override { return Seen().MakeStream(out); }
  Error DropStream(Stream stream) override { return Seen().DropStream(stream); }
  bool CanAwait(void* theirs) override { return Seen().CanAwait(theirs); }
  bool Holds(const void* theirs) override { return Seen().Holds(theirs); }
  Error Await(void* theirs, Stream stream) override { return Seen().Await(theirs, stream); }
  Error Finish(Stream stream) override { return Seen().Finish(stream); }
  Error Copy(void* to, const void* from, size_t bytes, Stream stream) override {
    return Seen().Copy(to, from, bytes, stream);
  }
  Error Zero(void* data, size_t bytes, Stream stream) override { return Seen().Zero(data, bytes, stream); }
  Error Launch(const Work& work, Stream stream) override { return Seen().Launch(work, stream); }

 private:
  HostDevice& Seen() {
    ++watch_->calls;
    if (here != ordinal_) ++watch_->astray;
    if (mode != CurrentDevice::kRelaxed) ++watch_->strict;
    return host_;
  }
  const int ordinal_;
  const std::shared_ptr<Watch> watch_;
  HostDevice host_;
};

// Attends two equal rows.
void Attend(Backend* backend) {
  constexpr int kDim = 64;
  const Buffer rows = backend->Allocate(2 * kDim * sizeof(float), MemorySpace::kStore);
  ASSERT_TRUE(rows);
  std::fill_n(reinterpret_cast<float*>(rows.data()), 2 * kDim, .5f);
  const uint8_t* const chunk = rows.data();
  const std::vector<float> queries(kDim, 1.0f);
  std::vector<float> output(kDim);
  float log_sum_exp = 0;
  AttendTask task;
  task.attention.queries = queries.data();
  task.attention.keys = task.attention.values = {&chunk, 2, kDim, DType::kFloat32};
  task.attention.dense = {{0, 2}};
  task.output = output.data();
  task.log_sum_exp = &log_sum_exp;
  ASSERT_EQ(backend->attention()->Attend(nullptr, 0, {}, nullptr, &task, 1), Outcome::kDone);
  EXPECT_EQ(output, std::vector<float>(kDim, .5f));
  EXPECT_NEAR(log_sum_exp, 32 + std::log(2.0), 1e-5);
}

// Makes a backend, uses it from threads that stand at devices of their own, and ends it from another.
void Live(std::unique_ptr<Device> device) {
  std::string why;
  std::unique_ptr<Backend> backend = MakeCudaBackend(std::move(device), 2, &why);
  ASSERT_NE(backend, nullptr) << why;
  std::vector<std::thread> callers;
  for (const int own : {0, 2, 3}) {
    callers.emplace_back([&, own] {
      here = own;
      Buffer buffer = backend->Allocate(1 << 16, MemorySpace::kCodes);
      Buffer other = backend->Allocate(1 << 16, MemorySpace::kStore);
      ASSERT_TRUE(buffer && other);
      EXPECT_EQ(backend->Zero(buffer.data(), 1 << 16), Outcome::kDone);
      const CopyTask copy = {other.data(), buffer.data(), 1 << 16};
      EXPECT_EQ(backend->Copy(&copy, 1), Outcome::kDone);
      EXPECT_EQ(other.data()[100], 0);
      Attend(backend.get());
      EXPECT_TRUE(backend->attention()->Holds(buffer.data(), 1 << 16));
      EXPECT_FALSE(backend->attention()->Holds(other.data(), 1));
      EXPECT_EQ(here, own);
      buffer = Buffer();
      EXPECT_EQ(here, own);
      EXPECT_EQ(mode, 0);
    });
  }
  for (std::thread& caller : callers) caller.join();
  here = 5;
  backend.reset();
  EXPECT_EQ(here, 5);
  here = 0;
}

TEST(BoundDevice, EveryCallReachesItsDeviceFromAnyThread) {
  for (const int ordinal : {0, 1, 3}) {
    auto watch = std::make_shared<Watch>();
    Live(BindDevice(std::make_unique<WatchedDevice>(ordinal, watch), ordinal, std::make_unique<FakeCurrent>()));
    EXPECT_EQ(watch->astray, 0) << ordinal;
    EXPECT_EQ(watch->strict, 0) << ordinal;
    EXPECT_GT(watch->calls, 20);
  }
}

// The watch sees what it is there to see: without a binding, calls go where the thread stands.
TEST(BoundDevice, WithoutABindingCallsGoAstray) {
  auto watch = std::make_shared<Watch>();
  Live(std::make_unique<WatchedDevice>(1, watch));
  EXPECT_GT(watch->astray, 0);
  EXPECT_GT(watch->strict, 0);
}

TEST(BoundDevice, AnotherDevicesStreamCannotBeAwaited) {
  auto watch = std::make_shared<Watch>();
  const auto device = BindDevice(std::make_unique<WatchedDevice>(1, watch), 1, std::make_unique<FakeCurrent>());
  int own = 1, other = 0;
  EXPECT_TRUE(device->CanAwait(nullptr));
  EXPECT_TRUE(device->CanAwait(&own));
  EXPECT_FALSE(device->CanAwait(&other));
}

TEST(BoundDevice, AnOrdinalThatIsNotThereFailsTheCall) {
  auto watch = std::make_shared<Watch>();
  const auto device = BindDevice(std::make_unique<WatchedDevice>(9, watch), 9, std::make_unique<FakeCurrent>());
  void* data = nullptr;
  EXPECT_EQ(device->Allocate(256, &data), 101);
  EXPECT_EQ(watch->calls, 0);
  EXPECT_EQ(here, 0);
  EXPECT_EQ(mode, 0);
}

}  // namespace
}  // namespace seine::cuda
