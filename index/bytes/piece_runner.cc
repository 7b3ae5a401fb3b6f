#include "index/bytes/piece_runner.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "index/bytes/pace.h"
#include "kernels/stop.h"  // and yield.h
#include "kernels/thread_name.h"

namespace seine {

namespace {

using Clock = std::chrono::steady_clock;

// Beside steps on all processors so many pieces take .2 s in the gaps; beside programs that fill them, 3 s and more.
constexpr int64_t kLook = 64;
constexpr std::chrono::seconds kTooLong(1);
// A piece takes some .1 ms of a processor; 5 where a huge page has to be found first. One may have been held up.
constexpr int64_t kLongPiece = 2'000'000;
constexpr int kLongPieces = 4;

}  // namespace

// A thread that runs what it is given, one after another.
class PieceRunner::Helper {
 public:
  explicit Helper(Priority priority)
      : thread_([this, priority] {
          NameThread("seine-restore");
          LowerPriority(priority);
          Work();
        }) {}

  ~Helper() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Returns once it is done; throws what it throws.
  void Run(const std::function<void()>& work) {
    std::exception_ptr thrown;
    const std::function<void()> there = [&, stop = current_stop_token, yielder = current_yielder] {
      const StopScope stop_scope(stop);
      const YieldScope yield_scope(yielder);
      try {
        work();
      } catch (...) {
        thrown = std::current_exception();
      }
    };
    std::unique_lock<std::mutex> lock(mutex_);
    work_ = &there;
    changed_.notify_all();
    changed_.wait(lock, [this] { return work_ == nullptr; });
    if (thrown != nullptr) std::rethrow_exception(thrown);
  }

 private:
  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ended_ || work_ != nullptr; });
      if (work_ == nullptr) return;
      lock.unlock();
      (*work_)();
      lock.lock();
      work_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* work_ = nullptr;
  bool ended_ = false;
  std::thread thread_;  // last: it uses the others
};

PieceRunner::PieceRunner(Priority beside_steps, std::function<void()> make_short)
    : beside_steps_(beside_steps), make_short_(std::move(make_short)) {}
PieceRunner::~PieceRunner() = default;

bool PieceRunner::Starves() {
  const Clock::time_point now = Clock::now();
  const bool starves = beside_steps_ == Priority::kGaps && now - began_ > kTooLong;
  if (++pieces_ == kLook) pieces_ = 0, began_ = now;
  return starves;
}

void PieceRunner::NotePiece(int64_t took) {
  if (took < kLongPiece || !make_short_ || ++long_pieces_ < kLongPieces) return;
  make_short_();
  make_short_ = nullptr;
}

absl::Status PieceRunner::Run(const Piece& piece) {
  absl::StatusOr<bool> more = true;
  while (more.ok() && *more) {
    if (!BesideSteps()) {
      pieces_ = 0;
      more = piece();
      continue;
    }
    try {
      if (helper_ == nullptr) helper_ = std::make_unique<Helper>(beside_steps_);
    } catch (const std::system_error&) {
      return absl::ResourceExhaustedError("no thread can be started");
    }
    if (pieces_ == 0) began_ = Clock::now();
    bool starves = false;
    helper_->Run([&] {
      Pace pace(beside_steps_ == Priority::kGaps ? kRestorePauses : 0);
      do {
        more = piece();
        NotePiece(pace.Pause());
        starves = Starves();
      } while (more.ok() && *more && !starves && BesideSteps());
    });
    if (!starves) continue;
    beside_steps_ = Priority::kLowest;
    helper_ = nullptr;
  }
  return more.status();
}

}  // namespace seine
