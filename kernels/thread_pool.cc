#include "kernels/thread_pool.h"

#include <algorithm>
#include <system_error>

#include "kernels/thread_name.h"

namespace seine {

ThreadPool::ThreadPool(int threads) : size_(std::max(1, threads)) { Start(&usual_); }

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  for (Helpers* const helpers : {&usual_, &low_}) {
    helpers->wake.notify_all();
    for (std::thread& t : helpers->threads) t.join();
  }
}

void ThreadPool::Start(Helpers* helpers) {
  while (static_cast<int>(helpers->threads.size()) < size_ - 1) {
    helpers->threads.emplace_back([this, helpers] { Main(helpers); });
  }
}

void ThreadPool::TryToStart(Helpers* helpers) {
  try {
    Start(helpers);
  } catch (const std::system_error&) {  // there is no thread: the caller works with those that run, or alone
  }
}

void ThreadPool::Run(int count, const std::function<void(int)>& fn) {
  if (size_ == 1 || count <= 1) {
    for (int i = 0; i < count && !StopRequested(); ++i) fn(i);
    return;
  }
  auto loop = std::make_shared<Loop>();
  loop->fn = &fn;
  loop->count = count;
  loop->stop = current_stop_token;
  loop->yielder = current_stop_token != nullptr ? current_yielder : nullptr;
  Helpers& helpers = HelpersOf(*loop);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    TryToStart(&helpers);
    helpers.loops.push_back(loop);
  }
  helpers.wake.notify_all();
  Work(loop.get());
  std::unique_lock<std::mutex> lock(mutex_);
  helpers.loops.erase(std::remove(helpers.loops.begin(), helpers.loops.end(), loop), helpers.loops.end());
  finished_.wait(lock, [&] { return loop->done.load() == count; });
}

void ThreadPool::Work(Loop* loop) {
  int ran = 0;
  for (;; ++ran) {
    if (loop->yielder != nullptr) {
      loop->yielder->Yield();
      if (loop->left.exchange(false)) HelpersOf(*loop).wake.notify_all();  // they may help again
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
    if (loop->yielder != nullptr) std::this_thread::yield();
  } while (!loop->held());
  Ran(loop, ran);
}

void ThreadPool::Ran(Loop* loop, int tasks) {
  if (tasks == 0 || loop->done.fetch_add(tasks) + tasks != loop->count) return;
  std::lock_guard<std::mutex> lock(mutex_);
  finished_.notify_all();
}

std::shared_ptr<ThreadPool::Loop> ThreadPool::FindLoop(Helpers* helpers) {
  auto& loops = helpers->loops;
  while (!loops.empty() && loops.front()->taken()) loops.pop_front();  // its caller is about to remove it
  for (const std::shared_ptr<Loop>& loop : loops) {
    if (!loop->taken() && !loop->held()) return loop;
  }
  return nullptr;
}

void ThreadPool::Main(Helpers* helpers) {
  NameThread(helpers->priority == Priority::kLow ? "seine-pool-low" : "seine-pool");
  LowerPriority(helpers->priority);
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    std::shared_ptr<Loop> loop;
    helpers->wake.wait(lock, [&] { return stop_ || (loop = FindLoop(helpers)) != nullptr; });
    if (stop_) return;
    lock.unlock();
    Help(loop.get());
    loop = nullptr;
    lock.lock();
  }
}

}  // namespace seine
