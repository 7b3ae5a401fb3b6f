// What every call of a server works on. It knows no gRPC: calls.h has the calls, server.h puts them on the wire.
#ifndef SEINE_SERVICE_CORE_H_
#define SEINE_SERVICE_CORE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "index/memory_budget.h"
#include "kernels/backend.h"
#include "service/catalog.h"
#include "service/event_log.h"
#include "service/executor.h"
#include "service/profiles.h"

namespace seine {

struct CoreOptions {
  std::string backend = "auto";  // kernels/backend.h, MakeBackend
  int threads = 0;               // of the backend; 0: one per core
  int workers = 4;               // heavy calls at once
  int queue_capacity = 256;
  int64_t memory_limit_bytes = 0;                 // 0: none
  int64_t device_memory_limit_bytes = 0;          // 0: none; of codes in a device's own memory
  int64_t max_message_bytes = int64_t{64} << 20;  // of a request or an answer
  std::shared_ptr<Profiles> profiles = std::make_shared<Profiles>();
};

// Calls under way, for a server that ends: it takes no more of them and waits for those it has. Thread-safe.
class CallsUnderWay {
 public:
  // A call begins. False: the server ends, the call is to be refused, and Leave not called.
  [[nodiscard]] bool Enter() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_) ++count_;
    return !closed_;
  }
  void Leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--count_ == 0) changed_.notify_all();
  }
  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  void WaitUntilNone(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, deadline, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t count_ = 0;    // guarded by mutex_
  bool closed_ = false;  // guarded by mutex_
};

// Thread-safe, as its parts are. Members are destroyed from the last to the first: the executor ends its calls first.
struct Core {
  Core(const CoreOptions& o, std::unique_ptr<Backend> chosen)
      : options(o),
        backend(std::move(chosen)),
        budget(std::make_shared<MemoryBudget>(o.memory_limit_bytes, o.device_memory_limit_bytes)),
        catalog(backend.get(), budget),
        executor(o.workers, o.queue_capacity) {}

  const CoreOptions options;
  const std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  std::unique_ptr<Backend> backend;
  std::string why_cpu;  // what backend "auto" lacked for another; set before calls come
  std::shared_ptr<MemoryBudget> budget;
  Catalog catalog;
  CallsUnderWay under_way;
  EventLog log;
  std::atomic<int64_t> calls{0};   // answered, a Decode step counting as one
  std::atomic<int64_t> errors{0};  // of them, with a status that is not OK
  Executor executor;
};

}  // namespace seine

#endif  // SEINE_SERVICE_CORE_H_
