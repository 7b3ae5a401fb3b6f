// A stream context: one stream with the memory that its calls work in, kept from call to call. Contexts are made as
// callers come, up to a few; then callers wait for one.
#ifndef SEINE_KERNELS_DEVICE_STREAM_CONTEXT_H_
#define SEINE_KERNELS_DEVICE_STREAM_CONTEXT_H_

#include <atomic>
#include <cassert>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/device/device.h"

namespace seine::cuda {

// Memory that only grows. What it held is lost when it does.
class Area {
 public:
  enum class Where : uint8_t { kDevice, kHost };  // kHost: page-locked
  Area(Device* device, Where where) : device_(device), where_(where) {}
  Area(const Area&) = delete;
  ~Area() { Release(); }

  // At least `bytes`. A failure leaves it as it was: others count on the room that they have found in it.
  Device::Error Reserve(size_t bytes);
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  size_t size() const { return size_; }

 private:
  void Release();

  Device* const device_;
  const Where where_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Not thread-safe: a caller has it to itself.
class StreamContext {
 public:
  // The least that views and rows hold without growing.
  static constexpr size_t kViewBytes = size_t{64} << 10, kRowBytes = size_t{8} << 20;

  explicit StreamContext(Device* owner)
      : device(owner),
        views(owner, Area::Where::kHost),
        device_views(owner, Area::Where::kDevice),
        workspace(owner, Area::Where::kDevice),
        answers(owner, Area::Where::kHost),
        parts(owner, Area::Where::kDevice),
        results(owner, Area::Where::kDevice),
        rows(owner, Area::Where::kHost) {}
  ~StreamContext();
  Device::Error Open();
  // Waits for what was enqueued, also where enqueuing ended in `error`, for it may still be reading the context;
  // `error`, or what the waiting gives.
  Device::Error Finish(Device::Error error);

  // Work enqueued from now on begins after the work that is on these streams of callers by now.
  Device::Error Await(std::vector<void*> streams);
  // Copies of a call's arguments to the device, and of what comes back; both count.
  Device::Error Send(void* to, const void* from, size_t bytes) {
    sent += static_cast<int64_t>(bytes);
    return device->Copy(to, from, bytes, stream);
  }
  Device::Error Receive(void* to, const void* from, size_t bytes) {
    received += static_cast<int64_t>(bytes);
    return device->Copy(to, from, bytes, stream);
  }

  Device* const device;
  Device::Stream stream = nullptr;
  std::atomic<int64_t> sent{0}, received{0};  // bytes so far
  Area views;                                 // of a call's arguments, as the host writes them,
  Area device_views;                          // and where the device reads them
  Area workspace, answers;
  Area parts;    // of attention, beside a search's workspace
  Area results;  // what goes on to `answers` by one copy, where kernels read it again before
  Area rows;     // keys on their way to the encoder
};

// Lays a call's views out in the context, so that one copy brings them all to the device.
class ViewWriter {
 public:
  static constexpr size_t kAlign = 64;
  static size_t Room(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  explicit ViewWriter(StreamContext* context) : context_(context) {}
  // Room for all that will be put.
  Device::Error Reserve(size_t bytes);
  // Where the device will read values[count].
  template <typename T>
  const T* Put(const T* values, size_t count) {
    const size_t at = used_;
    assert(at + Room(count * sizeof(T)) <= context_->views.size());
    if (count > 0) memcpy(context_->views.data() + at, values, count * sizeof(T));
    used_ += Room(count * sizeof(T));
    return reinterpret_cast<const T*>(context_->device_views.data() + at);
  }
  Device::Error Send() { return context_->Send(context_->device_views.data(), context_->views.data(), used_); }

 private:
  StreamContext* const context_;
  size_t used_ = 0;
};

// Thread-safe.
class StreamPool {
 public:
  static constexpr int kMost = 8;

  explicit StreamPool(Device* device) : device_(device) {}
  // The first context, which Acquire can always fall back on.
  Device::Error Open();

  // A context for the caller alone; it goes back when the handle does.
  class Handle {
   public:
    Handle(StreamPool* pool, StreamContext* context) : pool_(pool), context_(context) {}
    Handle(const Handle&) = delete;
    ~Handle() { pool_->Return(context_); }
    StreamContext* operator->() const { return context_; }
    StreamContext* get() const { return context_; }

   private:
    StreamPool* const pool_;
    StreamContext* const context_;
  };
  Handle Acquire();
  // Bytes that the contexts have sent and received so far.
  std::pair<int64_t, int64_t> Copied();

 private:
  void Return(StreamContext* context);

  Device* const device_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<StreamContext>> contexts_;  // guarded by mutex_
  std::vector<StreamContext*> free_;                      // guarded by mutex_
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_DEVICE_STREAM_CONTEXT_H_
