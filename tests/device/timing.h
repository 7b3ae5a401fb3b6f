// What the timings share: marks on a stream, medians, and a kernel's line of the report.
#ifndef SEINE_TESTS_DEVICE_TIMING_H_
#define SEINE_TESTS_DEVICE_TIMING_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/traffic.h"
#include "tests/device/suite.h"

namespace seine::device {

inline constexpr int kHeads = 8, kDim = 128;

inline double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}

// A stretch of a stream between two marks.
class Marks {
 public:
  explicit Marks(cudaStream_t stream) : stream_(stream) {}
  Marks(const Marks&) = delete;
  ~Marks() {
    for (cudaEvent_t e : events_) cudaEventDestroy(e);
  }
  void Mark() {
    events_.emplace_back();
    cudaEventCreate(&events_.back());
    cudaEventRecord(events_.back(), stream_);
  }
  // Microseconds between mark i and the next, after the stream has ended.
  double Between(size_t i) const {
    float ms = 0;
    cudaEventElapsedTime(&ms, events_[i], events_[i + 1]);
    return static_cast<double>(ms) * 1e3;
  }
  size_t size() const { return events_.size(); }

 private:
  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
};

// A kernel's counted bytes, its median time, and the share of the bandwidths that it reaches.
inline Json LineOf(const cuda::StepTraffic& t, const std::vector<double>& us, double copy_gb_s, double link_gb_s) {
  const double least = t.device_bytes / (copy_gb_s * 1e3) + t.link_bytes / (link_gb_s * 1e3), median = Median(us);
  return {{"step", t.step},
          {"device_bytes", t.device_bytes},
          {"link_bytes", t.link_bytes},
          {"us", median},
          {"share_of_bandwidth", least / median}};
}

// Kernels of eviction and of subspaces on a layer of 8 heads (layer_timings.cu). keys: fp16, page-locked.
Json TimeEvict(Backend* gpu, cuda::Device* device, const Buffer& keys, double copy_gb_s);
Json TimeLowRank(Backend* gpu, cuda::Device* device, double copy_gb_s, double link_gb_s);

}  // namespace seine::device

#endif  // SEINE_TESTS_DEVICE_TIMING_H_
