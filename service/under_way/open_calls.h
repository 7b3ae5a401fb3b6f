// The calls that a server has open, so that it can end those that wait for their clients when it ends, cut off clients
// that do not read, and stop what goes on for too long.
//
// Thread-safe.
#ifndef SEINE_SERVICE_UNDER_WAY_OPEN_CALLS_H_
#define SEINE_SERVICE_UNDER_WAY_OPEN_CALLS_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>

#include "kernels/stop.h"

namespace seine {

using SteadyTime = std::chrono::steady_clock::time_point;

// The methods are called under the set's lock: they must not wait, nor add or remove a call.
class OpenCall {
 public:
  // The server ends: the call ends now if it waits for its client, else after what it is doing.
  virtual void Drain() = 0;
  // What it is doing is to end now; what is written is not waited for.
  virtual void Stop(StopReason reason) = 0;
  // Cuts the call off where the client has not read what was written before `before`.
  virtual void CutUnread(SteadyTime before) = 0;
  // Ends the call where it has waited for a message since before `before`: memory is short, and part of one may be
  // there.
  virtual void CutUnsent(SteadyTime before) = 0;
  virtual const char* method() const = 0;

 protected:
  ~OpenCall() = default;
};

class OpenCalls {
 public:
  // False once draining has begun: the call must end at once, and was not added.
  [[nodiscard]] bool Add(OpenCall* call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !draining_ && calls_.insert(call).second;
  }
  void Remove(OpenCall* call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls_.erase(call);
    if (calls_.empty()) none_.notify_all();
  }
  // How many are left at `deadline`.
  size_t WaitUntilNone(SteadyTime deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    none_.wait_until(lock, deadline, [this] { return calls_.empty(); });
    return calls_.size();
  }
  void Drain() {
    const std::lock_guard<std::mutex> lock(mutex_);
    draining_ = true;
    for (OpenCall* call : calls_) call->Drain();
  }
  void Stop(StopReason reason) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (OpenCall* call : calls_) call->Stop(reason);
  }
  void CutUnread(SteadyTime before) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (OpenCall* call : calls_) call->CutUnread(before);
  }
  void CutUnsent(SteadyTime before) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (OpenCall* call : calls_) call->CutUnsent(before);
  }
  // How many there are of each method.
  std::map<std::string, int> Count() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return CountLocked();
  }
  // The same, for whoever ends a server that is stuck and must not wait for it. Absent: a thread has kept the calls
  // locked for a tenth of a second.
  std::optional<std::map<std::string, int>> CountUnlessStuck() const {
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    for (int i = 0; i < 20 && !lock.owns_lock(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      lock.try_lock();
    }
    if (!lock.owns_lock()) return std::nullopt;
    return CountLocked();
  }

 private:
  std::map<std::string, int> CountLocked() const {  // needs mutex_
    std::map<std::string, int> counts;
    for (const OpenCall* call : calls_) ++counts[call->method()];
    return counts;
  }

  mutable std::mutex mutex_;
  std::condition_variable none_;
  bool draining_ = false;                // guarded by mutex_
  std::unordered_set<OpenCall*> calls_;  // guarded by mutex_
};

// How many objects of calls there are, so that their queue is not shut down before the last. Thread-safe.
class AliveCount {
 public:
  class One {  // a member of each
   public:
    explicit One(AliveCount& of) : of_(of) {
      const std::lock_guard<std::mutex> lock(of_.mutex_);
      ++of_.count_;
    }
    ~One() {
      const std::lock_guard<std::mutex> lock(of_.mutex_);
      if (--of_.count_ == 0) of_.none_.notify_all();
    }
    One(const One&) = delete;
    One& operator=(const One&) = delete;

   private:
    AliveCount& of_;
  };
  void WaitUntilNone() {
    std::unique_lock<std::mutex> lock(mutex_);
    none_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  int64_t count_ = 0;  // guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_UNDER_WAY_OPEN_CALLS_H_
