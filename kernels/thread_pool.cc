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
  loop->yielder = current_stop_token != nullptr ? current_yielder : nullptr;
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
  int ran = 0;
  for (;; ++ran) {
    if (loop->yielder != nullptr) {
      loop->yielder->Yield();
      if (loop->left.exchange(false)) wake_.notify_all();  // they may help again
    }
    const int i = loop->next.fetch_add(1);
    if (i >= loop->count) break;
    if (!StopRequested()) (*loop->fn)(i);
  }
  Ran(loop, ran);
}

void ThreadPool::Help(Loop* loop) {
  const StopScope scope(loop->stop);
  int ran = 0;
  do {
    const int i = loop->next.fetch_add(1);
    if (i >= loop->count) break;
    if (!StopRequested()) (*loop->fn)(i);
    ++ran;
  } while (!loop->held());
  Ran(loop, ran);
}

void ThreadPool::Ran(Loop* loop, int tasks) {
  if (tasks == 0 || loop->done.fetch_add(tasks) + tasks != loop->count) return;
  std::lock_guard<std::mutex> lock(mutex_);
  finished_.notify_all();
}

std::shared_ptr<ThreadPool::Loop> ThreadPool::FindLoop() {
  while (!loops_.empty() && loops_.front()->taken()) loops_.pop_front();  // its caller is about to remove it
  for (const std::shared_ptr<Loop>& loop : loops_) {
    if (!loop->taken() && !loop->held()) return loop;
  }
  return nullptr;
}

void ThreadPool::Main() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    std::shared_ptr<Loop> loop;
    wake_.wait(lock, [&] { return stop_ || (loop = FindLoop()) != nullptr; });
    if (stop_) return;
    lock.unlock();
    Help(loop.get());
    loop = nullptr;
    lock.lock();
  }
}

}  // namespace seine
