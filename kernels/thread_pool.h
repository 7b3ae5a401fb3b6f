// A few threads that share loops. The caller works along, so a loop always makes progress, from any number of callers
// at once. Loops of long work (yield.h) have helpers of their own, of low priority: they never hold a processor that a
// loop of short work could have. These are started with the first such loop.
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

#include "kernels/priority.h"
#include "kernels/stop.h"

namespace seine {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // threads - 1 are started; 1: none
  ~ThreadPool();
  int size() const { return size_; }

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
  // Threads of one priority, and the loops that they help with.
  struct Helpers {
    explicit Helpers(Priority p) : priority(p) {}
    const Priority priority;
    std::condition_variable wake;
    std::deque<std::shared_ptr<Loop>> loops;  // guarded by mutex_
    std::vector<std::thread> threads;         // guarded by mutex_
  };
  Helpers& HelpersOf(const Loop& loop) { return loop.yielder != nullptr ? low_ : usual_; }
  void Start(Helpers* helpers);       // those that do not run yet. std::system_error: there is no thread
  void TryToStart(Helpers* helpers);  // needs mutex_
  void Work(Loop* loop);              // on the caller's thread
  void Help(Loop* loop);              // on one of ours
  void Ran(Loop* loop, int tasks);    // tasks have ended on this thread
  static std::shared_ptr<Loop> FindLoop(Helpers* helpers);  // to work at; nullptr: none. Needs mutex_
  void Main(Helpers* helpers);

  const int size_;
  std::mutex mutex_;
  std::condition_variable finished_;
  bool stop_ = false;  // guarded by mutex_
  Helpers usual_{Priority::kUsual}, low_{Priority::kLow};
};

}  // namespace seine

#endif  // SEINE_KERNELS_THREAD_POOL_H_
