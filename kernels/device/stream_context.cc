#include "kernels/device/stream_context.h"

#include <algorithm>

namespace seine::cuda {

Device::Error Area::Reserve(size_t bytes) {
  if (bytes <= size_) return Device::kNoError;
  const size_t wanted = std::max(bytes, size_ + size_ / 2);
  void* data = nullptr;
  const Device::Error error =
      where_ == Where::kDevice ? device_->Allocate(wanted, &data) : device_->AllocateHost(wanted, &data);
  if (error != Device::kNoError) return error;
  Release();
  data_ = data;
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

StreamContext::~StreamContext() {
  if (stream != nullptr) device->DropStream(stream);
}

Device::Error StreamContext::Finish(Device::Error error) {
  const Device::Error ended = device->Finish(stream);
  return error != Device::kNoError ? error : ended;
}

Device::Error StreamContext::Await(std::vector<void*> streams) {
  std::sort(streams.begin(), streams.end());
  streams.erase(std::unique(streams.begin(), streams.end()), streams.end());
  Device::Error error = Device::kNoError;
  for (void* const theirs : streams) {
    if (error == Device::kNoError) error = device->Await(theirs, stream);
  }
  return error;
}

Device::Error StreamContext::Open() {
  Device::Error error = device->MakeStream(&stream);
  if (error != Device::kNoError) stream = nullptr;
  if (error == Device::kNoError) error = views.Reserve(kViewBytes);
  if (error == Device::kNoError) error = device_views.Reserve(kViewBytes);
  if (error == Device::kNoError) error = rows.Reserve(kRowBytes);
  return error;
}

Device::Error ViewWriter::Reserve(size_t bytes) {
  const Device::Error error = context_->views.Reserve(bytes);
  return error != Device::kNoError ? error : context_->device_views.Reserve(bytes);
}

Device::Error StreamPool::Open() {
  auto context = std::make_unique<StreamContext>(device_);
  if (const Device::Error error = context->Open(); error != Device::kNoError) return error;
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(context.get());
  contexts_.push_back(std::move(context));
  return Device::kNoError;
}

StreamPool::Handle StreamPool::Acquire() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (free_.empty() && contexts_.size() < kMost) {
    lock.unlock();
    Open();  // where it fails, one of those at work is waited for
    lock.lock();
  }
  returned_.wait(lock, [this] { return !free_.empty(); });
  StreamContext* context = free_.back();
  free_.pop_back();
  return {this, context};
}

std::pair<int64_t, int64_t> StreamPool::Copied() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::pair<int64_t, int64_t> bytes;
  for (const auto& context : contexts_) bytes.first += context->sent, bytes.second += context->received;
  return bytes;
}

void StreamPool::Return(StreamContext* context) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(context);
  }
  returned_.notify_one();
}

}  // namespace seine::cuda
