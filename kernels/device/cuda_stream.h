// What Device::Stream points to on the real device: a stream of CUDA's and the graphs of its searches.
#ifndef SEINE_KERNELS_DEVICE_CUDA_STREAM_H_
#define SEINE_KERNELS_DEVICE_CUDA_STREAM_H_

#include <cuda_runtime_api.h>

#include "kernels/device/device.h"
#include "kernels/device/launch_cache.h"

namespace seine::cuda {

// An error that does not stick to the device is taken off the thread, so that a later launch does not report it.
inline Device::Error Result(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return static_cast<Device::Error>(error);
}

// What is being recorded is this thread's alone: other callers allocate and free as they like meanwhile.
class StreamGraphs final : public GraphCalls {
 public:
  explicit StreamGraphs(cudaStream_t stream) : stream_(stream) {}
  Error Begin() override { return Result(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal)); }
  Error End(void** graph) override {
    cudaGraph_t recorded = nullptr;
    const Error error = Result(cudaStreamEndCapture(stream_, &recorded));
    *graph = recorded;
    return error;
  }
  Error Instantiate(void* graph, void** ready) override {
    cudaGraphExec_t made = nullptr;
    const Error error = Result(cudaGraphInstantiate(&made, static_cast<cudaGraph_t>(graph), 0));
    *ready = made;
    return error;
  }
  Error Launch(void* ready) override { return Result(cudaGraphLaunch(static_cast<cudaGraphExec_t>(ready), stream_)); }
  void Drop(void* graph) override { Result(cudaGraphDestroy(static_cast<cudaGraph_t>(graph))); }
  void DropReady(void* ready) override { Result(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(ready))); }

 private:
  const cudaStream_t stream_;
};

struct CudaStream {
  explicit CudaStream(cudaStream_t of, cudaEvent_t ended) : stream(of), end(ended), calls(of), searches(&calls) {}

  const cudaStream_t stream;
  const cudaEvent_t end;  // that a caller sleeps for
  StreamGraphs calls;
  LaunchCache searches;
};

inline CudaStream* StateOf(Device::Stream stream) { return static_cast<CudaStream*>(stream); }
inline cudaStream_t Cuda(Device::Stream stream) { return StateOf(stream)->stream; }

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_DEVICE_CUDA_STREAM_H_
