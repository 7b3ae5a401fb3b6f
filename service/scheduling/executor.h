// Threads for calls that take long, behind a queue of fixed capacity: what does not fit is refused at once, so that
// load beyond the machine costs its senders an error and not everybody memory and time. Tenants wait in turns
// (fair_queue.h). Where the queue is full, who has most in it gives way. While work of several tenants comes, the long
// tasks of one take half of the threads at most (sharing.h).
//
// Thread safety: Submit from any thread. Tasks must not throw.
#ifndef SEINE_SERVICE_SCHEDULING_EXECUTOR_H_
#define SEINE_SERVICE_SCHEDULING_EXECUTOR_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "index/counts/histogram.h"
#include "kernels/priority.h"
#include "service/scheduling/fair_queue.h"
#include "service/scheduling/sharing.h"
#include "service/scheduling/tenant_work.h"

namespace seine {

// Processor time that the calling thread has taken so far.
std::chrono::nanoseconds ProcessorTime();

class Executor {
 public:
  // `sharing` outlives it. `name` (a literal, at most 15 bytes) and `priority`: of its threads. std::system_error: the
  // system has no more threads.
  Executor(int num_threads, int capacity, Sharing& sharing, const char* name, Priority priority = Priority::kUsual);
  ~Executor();  // runs what was accepted, then joins
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  using SteadyTime = std::chrono::steady_clock::time_point;
  // False if as many wait already as may; the task was not taken. A task without `due` is due now. It runs as what it
  // is, ShortWork or LongWork of its tenant.
  [[nodiscard]] bool Submit(FairTask task);
  // A short task of no tenant. Those due first begin first; `due` in the past or now: in the order in which they came.
  [[nodiscard]] bool Submit(std::function<void()> task, SteadyTime due = std::chrono::steady_clock::now());

  int capacity() const { return static_cast<int>(capacity_); }
  int waiting() const;      // tasks for a thread
  int64_t refused() const;  // tasks so far
  // How long tasks of no tenant have waited; TenantWork has the others.
  HistogramReading waits() const { return own_.waits(); }
  // Whether every thread has been at one task for at least `time`, and more wait.
  bool StuckFor(std::chrono::steady_clock::duration time) const;

 private:
  void Stop();
  void Work(SteadyTime* began);
  void Run(FairTask* task);
  bool MayRunLong(const TenantWork* tenant) const;  // needs mutex_
  FairQueue::MayRun MayRun() const {
    return [this](const TenantWork* tenant) { return MayRunLong(tenant); };
  }

  const size_t capacity_;
  Sharing& sharing_;
  const int most_long_;  // tasks of a tenant at once, while there are several
  const char* const name_;
  const Priority priority_;
  TenantWork own_;  // of no tenant
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  FairQueue queue_;                              // guarded by mutex_
  std::map<const TenantWork*, int> long_tasks_;  // under way; guarded by mutex_
  bool stopping_ = false;                        // guarded by mutex_
  int64_t refused_ = 0;                          // guarded by mutex_
  std::vector<SteadyTime> began_;                // each thread's task; max: none. Guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_SCHEDULING_EXECUTOR_H_
