// The real device: calls of the CUDA runtime.
#include <cuda_runtime.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "kernels/codecs/encode_launch.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device.h"
#include "kernels/ops/data/data_launch.h"
#include "kernels/ops/low_rank/low_rank_launch.h"
#include "kernels/ops/score_keys/evict_launch.h"
#include "kernels/ops/search/search_launch.h"

namespace seine::cuda {
namespace {

constexpr int kOldestMajor = 8;  // built for 8.0 and 9.0

class CudaDevice final : public Device {
 public:
  CudaDevice(std::string name, bool graphs) : name_(std::move(name)), graphs_(graphs) {}
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
    const Error error = Result(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    *out = error == kNoError ? std::make_unique<CudaStream>(stream).release() : nullptr;
    return error;
  }
  Error DropStream(Stream stream) override {
    const std::unique_ptr<CudaStream> dropped(StateOf(stream));
    return Result(cudaStreamDestroy(dropped->stream));
  }
  Error Finish(Stream stream) override { return Result(cudaStreamSynchronize(Cuda(stream))); }

  Error Copy(void* to, const void* from, size_t bytes, Stream stream) override {
    return Result(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, Cuda(stream)));
  }
  Error Zero(void* data, size_t bytes, Stream stream) override {
    return Result(cudaMemsetAsync(data, 0, bytes, Cuda(stream)));
  }
  Error Encode(const EncodeArgs& args, Stream stream) override { return Result(LaunchEncode(args, Cuda(stream))); }
  Error Search(const SearchPlan& plan, const SearchArgs& args, Stream stream) override {
    const auto enqueue = [&] { return Result(LaunchSearch(plan, args, Cuda(stream))); };
    if (!graphs_) return enqueue();
    LaunchCache& searches = StateOf(stream)->searches;
    const int64_t failed = searches.counts().failed;
    const Error error = searches.Launch(LaunchKey(plan.params(), plan.grids(), args), enqueue);
    failed_graphs_ += searches.counts().failed - failed;
    return error;
  }
  Error Count(const CountArgs& args, Stream stream) override { return Result(LaunchCount(args, Cuda(stream))); }
  Error Gather(const GatherArgs& args, Stream stream) override { return Result(LaunchGather(args, Cuda(stream))); }
  Error Sum(const SumArgs& args, Stream stream) override { return Result(LaunchSum(args, Cuda(stream))); }
  Error Score(const ScoreArgs& args, Stream stream) override { return Result(LaunchScore(args, Cuda(stream))); }
  Error Select(const SelectArgs& args, Stream stream) override { return Result(LaunchSelect(args, Cuda(stream))); }
  Error Project(const ProjectArgs& args, Stream stream) override { return Result(LaunchProject(args, Cuda(stream))); }
  Error Rebuild(const RebuildArgs& args, Stream stream) override { return Result(LaunchRebuild(args, Cuda(stream))); }
  Error Learn(const LearnArgs& args, Stream stream) override { return Result(LaunchLearn(args, Cuda(stream))); }

 private:
  const std::string name_;
  const bool graphs_;
  std::atomic<int64_t> failed_graphs_{0};
};

}  // namespace

std::unique_ptr<Device> OpenDevice(std::string* why) {
  bool graphs = true;
  if (!ReadGraphsSetting(std::getenv("SEINE_CUDA_GRAPHS"), &graphs, why)) return nullptr;
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);  // kernels are loaded now, not when memory is short
  int count = 0;
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, 0);
  if (error != cudaSuccess) {
    cudaGetLastError();
    *why = std::string("no CUDA device: ") + cudaGetErrorString(error);
    return nullptr;
  }
  if (properties.major < kOldestMajor) {
    *why = std::string(properties.name) + " is older than compute capability 8.0";
    return nullptr;
  }
  return std::make_unique<CudaDevice>(properties.name, graphs);
}

}  // namespace seine::cuda
