// The real device: calls of the CUDA runtime.
#include <cuda_runtime.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>
#include <variant>

#include "kernels/device/bound_device.h"
#include "kernels/device/cuda_stream.h"
#include "kernels/device/device.h"
#include "kernels/device/launcher.h"
#include "kernels/device/waits.h"
#include "kernels/ops/search/search_plan.h"

namespace seine::cuda {
namespace {

constexpr int kOldestMajor = 8;  // built for 8.0 and 9.0

class CudaCurrentDevice final : public CurrentDevice {
 public:
  Device::Error Get(int* ordinal) override { return Result(cudaGetDevice(ordinal)); }
  Device::Error Set(int ordinal) override { return Result(cudaSetDevice(ordinal)); }
  // Before 12.8 the runtime does not tell, and a wrong stream loses the device.
  Device::Error OfStream([[maybe_unused]] void* theirs, [[maybe_unused]] int* ordinal) override {
#if CUDART_VERSION >= 12080
    return Result(cudaStreamGetDevice(static_cast<cudaStream_t>(theirs), ordinal));
#else
    return Device::kNoError;
#endif
  }
  Device::Error ExchangeCaptureMode(int* mode) override {
    static_assert(kRelaxed == cudaStreamCaptureModeRelaxed);
    auto exchanged = static_cast<cudaStreamCaptureMode>(*mode);
    const Device::Error error = Result(cudaThreadExchangeStreamCaptureMode(&exchanged));
    *mode = exchanged;
    return error;
  }
};

class CudaDevice final : public Device {
 public:
  CudaDevice(std::string name, int ordinal, bool graphs) : name_(std::move(name)), ordinal_(ordinal), graphs_(graphs) {}
  std::string name() const override {
    if (!graphs_) return name_ + ", graphs off";
    return failed_graphs_ == 0 ? name_ : name_ + ", graphs failed: " + std::to_string(failed_graphs_);
  }
  std::string Describe(Error error) const override { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

  Error Allocate(size_t bytes, void** out) override { return Result(cudaMalloc(out, bytes)); }
  Error Free(void* data) override { return Result(cudaFree(data)); }
  Error AllocateHost(size_t bytes, void** out) override {
    return Result(cudaHostAlloc(out, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
  }
  Error FreeHost(void* data) override { return Result(cudaFreeHost(data)); }

  Error MakeStream(Stream* out) override {
    cudaStream_t stream = nullptr;
    cudaEvent_t end = nullptr;
    *out = nullptr;
    Error error = Result(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (error != kNoError) return error;
    error = Result(cudaEventCreateWithFlags(&end, cudaEventBlockingSync | cudaEventDisableTiming));
    if (error == kNoError) {
      *out = std::make_unique<CudaStream>(stream, end).release();
    } else {
      Result(cudaStreamDestroy(stream));
    }
    return error;
  }
  Error DropStream(Stream stream) override {
    const std::unique_ptr<CudaStream> dropped(StateOf(stream));
    const Error error = Result(cudaEventDestroy(dropped->end));
    const Error ended = Result(cudaStreamDestroy(dropped->stream));
    return error != kNoError ? error : ended;
  }
  Error Finish(Stream stream) override {
    const auto done = [&](Error* error) {
      const cudaError_t now = cudaStreamQuery(Cuda(stream));
      *error = Result(now);
      return now != cudaErrorNotReady;
    };
    const auto sleep = [&] {
      const Error error = Result(cudaEventRecord(StateOf(stream)->end, Cuda(stream)));
      return error != kNoError ? error : Result(cudaEventSynchronize(StateOf(stream)->end));
    };
    return waits_.For<Error>(done, sleep);
  }
  // The legacy default stream answers by an error while another stream is captured that it would have to wait for.
  bool CanAwait(void* theirs) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const Error error = Result(cudaStreamIsCapturing(static_cast<cudaStream_t>(theirs), &status));
    return error == kNoError && status == cudaStreamCaptureStatusNone;
  }
  bool Holds(const void* theirs) override {
    cudaPointerAttributes at;
    if (Result(cudaPointerGetAttributes(&at, theirs)) != kNoError) return false;
    return (at.type == cudaMemoryTypeDevice || at.type == cudaMemoryTypeManaged) && at.device == ordinal_;
  }
  // An event that is destroyed before it has come is kept by the runtime until then.
  Error Await(void* theirs, Stream stream) override {
    cudaEvent_t event = nullptr;
    Error error = Result(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    if (error != kNoError) return error;
    error = Result(cudaEventRecord(event, static_cast<cudaStream_t>(theirs)));
    if (error == kNoError) error = Result(cudaStreamWaitEvent(Cuda(stream), event, 0));
    const Error destroyed = Result(cudaEventDestroy(event));
    return error != kNoError ? error : destroyed;
  }

  Error Copy(void* to, const void* from, size_t bytes, Stream stream) override {
    return Result(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, Cuda(stream)));
  }
  Error Zero(void* data, size_t bytes, Stream stream) override {
    return Result(cudaMemsetAsync(data, 0, bytes, Cuda(stream)));
  }
  Error Launch(const Work& work, Stream stream) override {
    return std::visit([&](const auto& args) { return Start(args, stream); }, work);
  }

 private:
  template <typename Args>
  Error Start(const Args& args, Stream stream) {
    return Result(cuda::Launch(args, Cuda(stream)));
  }
  // Searches that come again are graphs.
  Error Start(const SearchLaunch& search, Stream stream) {
    const auto enqueue = [&] { return Result(cuda::Launch(search, Cuda(stream))); };
    if (!graphs_) return enqueue();
    LaunchCache& searches = StateOf(stream)->searches;
    const int64_t failed = searches.counts().failed;
    const Error error = searches.Launch(LaunchKey(search.plan->params(), search.plan->grids(), search.args), enqueue);
    failed_graphs_ += searches.counts().failed - failed;
    return error;
  }

  const std::string name_;
  const int ordinal_;
  const bool graphs_;
  Waits waits_{Waits::SpinnersOf(static_cast<int>(std::thread::hardware_concurrency()))};
  std::atomic<int64_t> failed_graphs_{0};
};

// A machine without a driver counts as one whose driver is too old: the runtime has one error for both.
std::string WhyNone(cudaError_t error) {
  int driver = 0;
  if (error != cudaErrorInsufficientDriver || cudaDriverGetVersion(&driver) != cudaSuccess) {
    return cudaGetErrorString(error);
  }
  if (driver == 0) return "there is no NVIDIA driver";
  const auto text = [](int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 100 / 10);
  };
  return "the NVIDIA driver is of CUDA " + text(driver) + ", and this build of " + text(CUDART_VERSION);
}

}  // namespace

bool HasCuda() { return true; }

std::unique_ptr<Device> OpenDevice(std::string* why, int ordinal) {
  bool graphs = true;
  if (!ReadGraphsSetting(std::getenv("SEINE_CUDA_GRAPHS"), &graphs, why)) return nullptr;
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);  // kernels are loaded now, not when memory is short
  int count = 0;
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
  if (error == cudaSuccess && ordinal >= count) error = cudaErrorInvalidDevice;
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, ordinal);
  if (error != cudaSuccess) {
    cudaGetLastError();
    *why = "no CUDA device of ordinal " + std::to_string(ordinal) + ": " + WhyNone(error);
    return nullptr;
  }
  if (properties.major < kOldestMajor) {
    *why = std::string(properties.name) + " is older than compute capability 8.0";
    return nullptr;
  }
  return BindDevice(std::make_unique<CudaDevice>(properties.name, ordinal, graphs), ordinal,
                    std::make_unique<CudaCurrentDevice>());
}

}  // namespace seine::cuda
