// Open streams, so that a server that shuts down can end the idle ones instead of waiting for their clients.
#ifndef SEINE_SERVICE_STREAMS_H_
#define SEINE_SERVICE_STREAMS_H_

#include <mutex>
#include <unordered_set>

namespace seine {

class Stream {
 public:
  virtual ~Stream() = default;
  // Ends the stream now if it waits for its client, else after what it is doing. Called once, under the set's lock.
  virtual void Drain() = 0;
};

// Thread-safe. A stream removes itself before it is destroyed.
class StreamSet {
 public:
  // False once draining has begun: the stream must end at once, and was not added.
  [[nodiscard]] bool Add(Stream* stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    return !draining_ && streams_.insert(stream).second;
  }
  void Remove(Stream* stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    streams_.erase(stream);
  }
  void Drain() {
    std::lock_guard<std::mutex> lock(mutex_);
    draining_ = true;
    for (Stream* stream : streams_) stream->Drain();
  }

 private:
  std::mutex mutex_;
  bool draining_ = false;                // guarded by mutex_
  std::unordered_set<Stream*> streams_;  // guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_STREAMS_H_
