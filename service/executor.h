// Threads for calls that take long, behind a queue of fixed capacity: what does not fit is refused at once, so that
// load beyond the machine costs its senders an error and not everybody memory and time.
//
// Thread safety: Submit from any thread. Tasks must not throw.
#ifndef SEINE_SERVICE_EXECUTOR_H_
#define SEINE_SERVICE_EXECUTOR_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace seine {

class Executor {
 public:
  Executor(int num_threads, int capacity);  // std::system_error: the system has no more threads
  ~Executor();                              // runs what was accepted, then joins
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  using SteadyTime = std::chrono::steady_clock::time_point;
  // False if `capacity` tasks wait already; the task was not taken. Those due first begin first; `due` in the past or
  // now: in the order in which they came.
  [[nodiscard]] bool Submit(std::function<void()> task, SteadyTime due = std::chrono::steady_clock::now());

  int capacity() const { return static_cast<int>(capacity_); }
  int waiting() const;      // tasks for a thread
  int64_t refused() const;  // tasks so far
  // Whether every thread has been at one task for at least `time`, and more wait.
  bool StuckFor(std::chrono::steady_clock::duration time) const;

 private:
  void Stop();
  void Work(SteadyTime* began);

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::multimap<SteadyTime, std::function<void()>> queue_;  // by when they are due; guarded by mutex_
  bool stopping_ = false;                                   // guarded by mutex_
  int64_t refused_ = 0;                                     // guarded by mutex_
  std::vector<SteadyTime> began_;                           // each thread's task; max: none. Guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_EXECUTOR_H_
