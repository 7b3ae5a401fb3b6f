#include "service/executor.h"

#include <algorithm>
#include <utility>

namespace seine {

Executor::Executor(int num_threads, int capacity)
    : capacity_(static_cast<size_t>(capacity)), began_(num_threads, SteadyTime::max()) {
  try {
    for (SteadyTime& began : began_) threads_.emplace_back([this, &began] { Work(&began); });
  } catch (...) {  // no more threads: those that run end first
    Stop();
    throw;
  }
}

Executor::~Executor() { Stop(); }

void Executor::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_all();
  for (auto& thread : threads_) thread.join();
}

bool Executor::StuckFor(std::chrono::steady_clock::duration time) const {
  const SteadyTime before = std::chrono::steady_clock::now() - time;
  const std::lock_guard<std::mutex> lock(mutex_);
  return !queue_.empty() && std::all_of(began_.begin(), began_.end(), [&](SteadyTime t) { return t < before; });
}

int Executor::waiting() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(queue_.size());
}

int64_t Executor::refused() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return refused_;
}

bool Executor::Submit(std::function<void()> task, SteadyTime due) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return false;
    if (queue_.size() >= capacity_) {
      ++refused_;
      return false;
    }
    queue_.emplace(due, std::move(task));
  }
  ready_.notify_one();
  return true;
}

void Executor::Work(SteadyTime* began) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    ready_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::function<void()> task = std::move(queue_.begin()->second);
    queue_.erase(queue_.begin());
    *began = std::chrono::steady_clock::now();
    lock.unlock();
    task();
    task = nullptr;  // what it holds is released outside the lock
    lock.lock();
    *began = SteadyTime::max();
  }
}

}  // namespace seine
