#include "kernels/cuda/stream_context.h"

#include <algorithm>

namespace seine::cuda {

Device::Error Area::Reserve(size_t bytes) {
  if (bytes <= size_) return Device::kNoError;
  const size_t wanted = std::max(bytes, size_ + size_ / 2);
  Release();
  const Device::Error error =
      where_ == Where::kDevice ? device_->Allocate(wanted, &data_) : device_->AllocateHost(wanted, &data_);
  if (error != Device::kNoError) {
    data_ = nullptr;
    return error;
  }
  size_ = wanted;
  return Device::kNoError;
}

// What a lost device does not take back stays with it.
void Area::Release() {
  if (data_ == nullptr) return;
  where_ == Where::kDevice ? device_->Free(data_) : device_->FreeHost(data_);
  data_ = nullptr;
  size_ = 0;
}

Lane::~Lane() {
  if (stream != nullptr) device->DropStream(stream);
}

Device::Error Lane::Finish(Device::Error error) {
  const Device::Error ended = device->Finish(stream);
  return error != Device::kNoError ? error : ended;
}

Device::Error Lane::Open() {
  Device::Error error = device->MakeStream(&stream);
  if (error != Device::kNoError) stream = nullptr;
  if (error == Device::kNoError) error = views.Reserve(kViewBytes);
  if (error == Device::kNoError) error = device_views.Reserve(kViewBytes);
  if (error == Device::kNoError) error = rows.Reserve(kRowBytes);
  return error;
}

Device::Error ViewWriter::Reserve(size_t bytes) {
  const Device::Error error = lane_->views.Reserve(bytes);
  return error != Device::kNoError ? error : lane_->device_views.Reserve(bytes);
}

Device::Error LanePool::Open() {
  auto lane = std::make_unique<Lane>(device_);
  if (const Device::Error error = lane->Open(); error != Device::kNoError) return error;
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(lane.get());
  lanes_.push_back(std::move(lane));
  return Device::kNoError;
}

LanePool::Handle LanePool::Acquire() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (free_.empty() && lanes_.size() < kMost) {
    lock.unlock();
    Open();  // where it fails, one of those at work is waited for
    lock.lock();
  }
  returned_.wait(lock, [this] { return !free_.empty(); });
  Lane* lane = free_.back();
  free_.pop_back();
  return {this, lane};
}

void LanePool::Return(Lane* lane) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(lane);
  }
  returned_.notify_one();
}

}  // namespace seine::cuda
