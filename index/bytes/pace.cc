#include "index/bytes/pace.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <system_error>
#include <thread>

#include "kernels/priority.h"
#include "kernels/stop.h"  // and yield.h
#include "kernels/thread_name.h"

namespace seine {

namespace {

constexpr int64_t kRecent = 50'000'000;    // ns; a model that is slow asks each layer after some milliseconds
constexpr int64_t kShort = 20'000;         // ns; a shorter piece is none, for no sleep is shorter than that
constexpr int64_t kMostPause = 5'000'000;  // ns; a piece that takes long must not end the work

std::atomic<int64_t> last_step{-kRecent};  // by the coarse clock, ns

enum class Owner : uint8_t { kCaller, kWork, kLoweredWork };
thread_local constinit Owner owner = Owner::kCaller;

void LowerOwnThread() {
  if (owner != Owner::kWork) return;
  owner = Owner::kLoweredWork;
  LowerPriority(Priority::kLowest);
}

int64_t Now(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

}  // namespace

bool BesideSteps() { return Now(CLOCK_MONOTONIC_COARSE) - last_step.load(std::memory_order_relaxed) < kRecent; }

void NoteStep() {
  const int64_t now = Now(CLOCK_MONOTONIC_COARSE);
  if (last_step.load(std::memory_order_relaxed) != now) last_step.store(now, std::memory_order_relaxed);
}

OwnThread::OwnThread() { owner = Owner::kWork; }
OwnThread::~OwnThread() { owner = Owner::kCaller; }

absl::Status RunOnOwnThread(const char* name, const std::function<absl::Status()>& work) {
  absl::Status status;
  std::exception_ptr thrown;
  const auto run = [&, stop = current_stop_token, yielder = current_yielder] {
    const StopScope stop_scope(stop);
    const YieldScope yield_scope(yielder);
    const OwnThread own;
    NameThread(name);
    try {
      status = work();
    } catch (...) {
      thrown = std::current_exception();
    }
  };
  try {
    std::thread(run).join();
  } catch (const std::system_error&) {
    return absl::ResourceExhaustedError("no thread can be started");
  }
  if (thrown != nullptr) std::rethrow_exception(thrown);
  return status;
}

Pace::Pace(int pauses) : pauses_(pauses), resumed_(Now(CLOCK_THREAD_CPUTIME_ID)) {}

int64_t Pace::Pause() {
  const int64_t now = Now(CLOCK_THREAD_CPUTIME_ID), worked = now - resumed_;
  if (worked < kShort) return worked;
  resumed_ = now;
  if (!BesideSteps()) return worked;
  LowerOwnThread();
  if (pauses_ > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(kMostPause, pauses_ * worked)));
  return worked;
}

}  // namespace seine
