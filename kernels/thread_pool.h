// A few threads that share loops. The caller works along, so a loop always makes progress, from any number of callers
// at once.
#ifndef SEINE_KERNELS_THREAD_POOL_H_
#define SEINE_KERNELS_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/stop.h"

namespace seine {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // threads - 1 are started; 1: none
  ~ThreadPool();
  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // fn(i) for i in [0, count), each once, and returns when all have run. Thread-safe. fn must not throw or call Run.
  // The caller's StopToken is current wherever fn runs. Once it has stopped, what is not begun is left out, and
  // StopRequested() says so to the caller. Others do not help while the caller's Yielder is held: the caller goes on
  // alone once it has waited.
  void Run(int count, const std::function<void(int)>& fn);

 private:
  struct Loop {
    const std::function<void(int)>* fn;
    int count;
    const StopToken* stop;  // the caller's
    Yielder* yielder;       // the caller's; nullptr: it makes way for nothing
    std::atomic<int> next{0}, done{0};
    std::atomic<bool> left{false};  // a helper has left it alone, for it was held

    bool taken() const { return next.load() >= count; }
    // Asked while the caller cannot return: under mutex_, or before a task that ran is told of.
    bool held() {
      if (yielder == nullptr || !yielder->held()) return false;
      left.store(true);
      return true;
    }
  };
  void Work(Loop* loop);             // on the caller's thread
  void Help(Loop* loop);             // on one of ours
  void Ran(Loop* loop, int tasks);   // tasks have ended on this thread
  std::shared_ptr<Loop> FindLoop();  // that a helper may work at; nullptr: none. Needs mutex_
  void Main();

  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  std::deque<std::shared_ptr<Loop>> loops_;  // guarded by mutex_
  bool stop_ = false;                        // guarded by mutex_
  std::vector<std::thread> workers_;
};

}  // namespace seine

#endif  // SEINE_KERNELS_THREAD_POOL_H_
