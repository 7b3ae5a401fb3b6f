// A layer held by a call, which gives up where it is stopped while it waits (kernels/stop.h).
#ifndef SEINE_INDEX_SEQUENCE_LAYER_LOCK_H_
#define SEINE_INDEX_SEQUENCE_LAYER_LOCK_H_

#include <mutex>
#include <shared_mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "index/fair_mutex.h"
#include "index/sequence/layer.h"
#include "index/stop_status.h"

namespace seine {

// Shared.
class ReadLock {
 public:
  // Waits in turn; StopStatus() where the call is stopped first.
  static absl::StatusOr<ReadLock> Of(const Layer& layer) {
    if (!layer.mutex().LockSharedUnlessStopped()) return StopStatus();
    return ReadLock(std::shared_lock<FairMutex>(layer.mutex(), std::adopt_lock));
  }

 private:
  explicit ReadLock(std::shared_lock<FairMutex> lock) : lock_(std::move(lock)) {}
  std::shared_lock<FairMutex> lock_;
};

// Exclusive. What has changed is published when it ends.
class WriteLock {
 public:
  static absl::StatusOr<WriteLock> Of(Layer* layer) {
    if (!layer->mutex().LockUnlessStopped()) return StopStatus();
    return WriteLock(layer, std::unique_lock<FairMutex>(layer->mutex(), std::adopt_lock));
  }
  WriteLock(WriteLock&&) = default;
  WriteLock& operator=(WriteLock&&) = delete;
  ~WriteLock() { Unlock(); }
  void Unlock() {
    if (!lock_.owns_lock()) return;
    layer_->Publish();
    lock_.unlock();
  }

 private:
  WriteLock(Layer* layer, std::unique_lock<FairMutex> lock) : layer_(layer), lock_(std::move(lock)) {}
  Layer* layer_;
  std::unique_lock<FairMutex> lock_;
};

}  // namespace seine

#endif  // SEINE_INDEX_SEQUENCE_LAYER_LOCK_H_
