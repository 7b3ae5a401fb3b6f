#include "kernels/thread_pool.h"

#include <algorithm>

namespace seine {

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Main(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::Run(int count, const std::function<void(int)>& fn) {
  if (workers_.empty() || count <= 1) {
    for (int i = 0; i < count && !StopRequested(); ++i) fn(i);
    return;
  }
  auto loop = std::make_shared<Loop>();
  loop->fn = &fn;
  loop->count = count;
  loop->stop = current_stop_token;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    loops_.push_back(loop);
  }
  wake_.notify_all();
  Work(loop.get());
  std::unique_lock<std::mutex> lock(mutex_);
  loops_.erase(std::remove(loops_.begin(), loops_.end(), loop), loops_.end());
  finished_.wait(lock, [&] { return loop->done.load() == count; });
}

void ThreadPool::Work(Loop* loop) {
  const StopScope scope(loop->stop);
  int ran = 0;
  for (int i; (i = loop->next.fetch_add(1)) < loop->count; ++ran) {
    if (!StopRequested()) (*loop->fn)(i);
  }
  if (ran > 0 && loop->done.fetch_add(ran) + ran == loop->count) {
    std::lock_guard<std::mutex> lock(mutex_);
    finished_.notify_all();
  }
}

void ThreadPool::Main() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || !loops_.empty(); });
    if (stop_) return;
    const std::shared_ptr<Loop> loop = loops_.front();
    if (loop->next.load() >= loop->count) {  // nothing left to take: its caller is about to remove it
      loops_.pop_front();
      continue;
    }
    lock.unlock();
    Work(loop.get());
    lock.lock();
  }
}

}  // namespace seine
