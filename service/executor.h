// Threads for calls that take long, behind a queue of fixed capacity: what does not fit is refused at once, so that
// load beyond the machine costs its senders an error and not everybody memory and time.
//
// Thread safety: Submit from any thread. Tasks must not throw.
#ifndef SEINE_SERVICE_EXECUTOR_H_
#define SEINE_SERVICE_EXECUTOR_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace seine {

class Executor {
 public:
  Executor(int num_threads, int capacity);
  ~Executor();  // runs what was accepted, then joins
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // False if `capacity` tasks wait already; the task was not taken.
  [[nodiscard]] bool Submit(std::function<void()> task);

  int capacity() const { return capacity_; }

 private:
  void Work();

  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_EXECUTOR_H_
