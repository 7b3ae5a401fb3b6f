// Memory of a device that a caller of an index has.
#ifndef SEINE_TESTS_INDEX_DEVICE_MEMORY_H_
#define SEINE_TESTS_INDEX_DEVICE_MEMORY_H_

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/backend.h"

namespace seine::testing {

class DeviceMemory {
 public:
  DeviceMemory(Backend* backend, const void* data, size_t bytes)
      : backend_(backend),
        host_(backend->Allocate(bytes, MemorySpace::kStore)),
        device_(backend->Allocate(bytes, MemorySpace::kCodes)) {
    std::memcpy(host_.data(), data, bytes);
    const CopyTask up = {device_.data(), host_.data(), bytes};
    EXPECT_EQ(backend_->Copy(&up, 1), Outcome::kDone);
  }
  float* floats() const { return reinterpret_cast<float*>(device_.data()); }
  const void* data() const { return device_.data(); }
  std::vector<float> Read() const {
    const CopyTask down = {host_.data(), device_.data(), host_.size()};
    EXPECT_EQ(backend_->Copy(&down, 1), Outcome::kDone);
    std::vector<float> floats(host_.size() / sizeof(float));
    std::memcpy(floats.data(), host_.data(), host_.size());
    return floats;
  }

 private:
  Backend* const backend_;
  Buffer host_, device_;
};

}  // namespace seine::testing

#endif  // SEINE_TESTS_INDEX_DEVICE_MEMORY_H_
