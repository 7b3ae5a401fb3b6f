#include "service/scheduling/executor.h"

#include <time.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/thread_name.h"

namespace seine {

std::chrono::nanoseconds ProcessorTime() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

Executor::Executor(int num_threads, int capacity, Sharing& sharing, const char* name, Priority priority)
    : capacity_(static_cast<size_t>(capacity)),
      sharing_(sharing),
      most_long_(std::max(1, num_threads / 2)),
      name_(name),
      priority_(priority),
      began_(num_threads, SteadyTime::max()) {
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
  return queue_.size() > 0 && std::all_of(began_.begin(), began_.end(), [&](SteadyTime t) { return t < before; });
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
  FairTask short_task;
  short_task.run = std::move(task);
  short_task.due = due;
  return Submit(std::move(short_task));
}

bool Executor::Submit(FairTask task) {
  task.queued = std::chrono::steady_clock::now();
  if (task.due == SteadyTime()) task.due = task.queued;
  sharing_.Saw(task.tenant);
  std::optional<FairTask> dropped;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return false;
    if (queue_.size() >= capacity_) {
      ++refused_;
      dropped = queue_.DropFor(task.tenant);
      if (!dropped.has_value()) return false;
    }
    queue_.Push(std::move(task));
  }
  ready_.notify_one();
  if (dropped.has_value()) dropped->drop();
  return true;
}

bool Executor::MayRunLong(const TenantWork* tenant) const {
  if (stopping_ || !sharing_.several()) return true;
  const auto running = long_tasks_.find(tenant);
  return running == long_tasks_.end() || running->second < most_long_;
}

void Executor::Work(SteadyTime* began) {
  NameThread(name_);
  LowerPriority(priority_);
  const FairQueue::MayRun may_run_long = MayRun();
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    std::optional<FairTask> task;
    ready_.wait(lock, [&] { return (task = queue_.Pop(may_run_long)).has_value() || stopping_; });
    if (!task.has_value()) return;
    if (task->is_long) ++long_tasks_[task->tenant];
    *began = std::chrono::steady_clock::now();
    (task->tenant != nullptr ? task->tenant : &own_)->Waited((*began - task->queued).count());
    lock.unlock();
    const auto before = task->tenant != nullptr ? ProcessorTime() : std::chrono::nanoseconds::zero();
    Run(&*task);
    const auto took = task->tenant != nullptr ? ProcessorTime() - before : task->cost;
    lock.lock();
    *began = SteadyTime::max();
    queue_.Correct(task->tenant, took - task->cost);
    if (task->is_long) --long_tasks_[task->tenant];
  }
}

void Executor::Run(FairTask* task) {
  if (task->is_long) {
    LongWork work(sharing_, task->tenant);
    task->run();
  } else {
    const ShortWork work(sharing_, task->tenant);
    task->run();
  }
  task->run = nullptr;  // what it holds is released outside the lock
  task->drop = nullptr;
}

}  // namespace seine
