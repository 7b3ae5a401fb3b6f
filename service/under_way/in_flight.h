// Bytes of requests and answers that are under way: received and not yet worked on, being worked on, or answered and
// not yet read by the client. They are admitted before they are kept, like everything else, and count in the server's
// memory limit meanwhile.
//
// Large answers that are made or wait for their readers take an eighth of the limit at most, so that clients that do
// not read hold little; one alone may be as large as a message. A search's answer counts twice while it is made: the
// index holds one, the message another.
//
// Thread-safe.
#ifndef SEINE_SERVICE_UNDER_WAY_IN_FLIGHT_H_
#define SEINE_SERVICE_UNDER_WAY_IN_FLIGHT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "index/memory/memory_budget.h"

namespace seine {

class InFlight {
 public:
  static constexpr int64_t kSmall = 256 << 10;  // a quarter of the limit is for messages up to this size alone

  // `memory`: the budget that they count in; nullptr: none.
  explicit InFlight(int64_t limit_bytes, std::shared_ptr<MemoryBudget> memory = nullptr)
      : limit_(limit_bytes), memory_(std::move(memory)) {}
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  [[nodiscard]] bool TryTake(int64_t bytes) {
    const int64_t most = bytes <= kSmall ? limit_ : limit_ - limit_ / 4;
    int64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (bytes > most - used) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    if (memory_ != nullptr && !memory_->TryPass(bytes, bytes <= kSmall)) {
      used_.fetch_sub(bytes, std::memory_order_relaxed);
      return false;
    }
    NotePeak(used + bytes);
    return true;
  }
  // Takes what an answer needs that holds `held` bytes already and is to hold `wanted`, which is more.
  [[nodiscard]] bool TryGrowAnswer(int64_t held, int64_t wanted) {
    const int64_t others = answers_.fetch_add(Large(wanted) - Large(held)) - Large(held);
    const bool fits = wanted <= kSmall || others <= 0 || others + wanted <= limit_ / 8;
    if (fits && TryTake(wanted - held)) return true;
    answers_.fetch_sub(Large(wanted) - Large(held));
    return false;
  }
  // Takes bytes whatever the limit: the answer to what has been changed already.
  void Take(int64_t bytes) {
    if (memory_ != nullptr) memory_->Pass(bytes);
    NotePeak(used_.fetch_add(bytes, std::memory_order_relaxed) + bytes);
  }
  void GrowAnswer(int64_t held, int64_t wanted) {
    answers_.fetch_add(Large(wanted) - Large(held));
    Take(wanted - held);
  }
  void Release(int64_t bytes) {
    if (memory_ != nullptr) memory_->EndPass(bytes);
    used_.fetch_sub(bytes, std::memory_order_relaxed);
  }
  void ShrinkAnswer(int64_t held, int64_t wanted) {
    answers_.fetch_sub(Large(held) - Large(wanted));
    Release(held - wanted);
  }

  int64_t limit_bytes() const { return limit_; }
  int64_t used_bytes() const { return used_.load(std::memory_order_relaxed); }
  // The most that was taken at once since the last call.
  int64_t TakePeak() { return peak_.exchange(used_bytes(), std::memory_order_relaxed); }

 private:
  static int64_t Large(int64_t answer) { return answer > kSmall ? answer : 0; }
  void NotePeak(int64_t used) {
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (used > peak && !peak_.compare_exchange_weak(peak, used, std::memory_order_relaxed)) {
    }
  }
  const int64_t limit_;
  const std::shared_ptr<MemoryBudget> memory_;
  std::atomic<int64_t> used_{0}, peak_{0};
  std::atomic<int64_t> answers_{0};  // of used_, what large answers hold
};

// A call's share; given back at its end. Not thread-safe.
class InFlightShare {
 public:
  explicit InFlightShare(InFlight& of) : of_(of) {}
  InFlightShare(const InFlightShare&) = delete;
  InFlightShare& operator=(const InFlightShare&) = delete;
  ~InFlightShare() { of_.Release(bytes_); }

  // Holds `bytes` in place of what it held. False: there is no room, and it holds what it held.
  [[nodiscard]] bool TryHold(int64_t bytes) {
    if (bytes > bytes_ && !of_.TryTake(bytes - bytes_)) return false;
    if (bytes < bytes_) of_.Release(bytes_ - bytes);
    bytes_ = bytes;
    return true;
  }
  void Hold(int64_t bytes) {
    if (TryHold(bytes)) return;
    of_.Take(bytes - bytes_);
    bytes_ = bytes;
  }

 private:
  InFlight& of_;
  int64_t bytes_ = 0;
};

// The share of a call's answer, as it is made and until the client has read it. Not thread-safe.
class AnswerShare {
 public:
  explicit AnswerShare(InFlight& of) : of_(of) {}
  AnswerShare(const AnswerShare&) = delete;
  AnswerShare& operator=(const AnswerShare&) = delete;
  ~AnswerShare() { Hold(0); }

  [[nodiscard]] bool TryHold(int64_t bytes) {
    if (bytes > bytes_ && !of_.TryGrowAnswer(bytes_, bytes)) return false;
    if (bytes < bytes_) of_.ShrinkAnswer(bytes_, bytes);
    bytes_ = bytes;
    return true;
  }
  void Hold(int64_t bytes) {
    if (TryHold(bytes)) return;
    of_.GrowAnswer(bytes_, bytes);
    bytes_ = bytes;
  }

  // Makes the share that of the answer which this thread is about to make.
  class Scope {
   public:
    explicit Scope(AnswerShare* share) : outer_(std::exchange(current_, share)) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { current_ = outer_; }

   private:
    AnswerShare* const outer_;
  };
  // Admits an answer of so many bytes, before it is made. True without a scope: the answer goes to nobody's wire.
  [[nodiscard]] static bool Admit(int64_t bytes) { return current_ == nullptr || current_->TryHold(bytes); }

 private:
  static inline thread_local AnswerShare* current_ = nullptr;
  InFlight& of_;
  int64_t bytes_ = 0;
};

}  // namespace seine

#endif  // SEINE_SERVICE_UNDER_WAY_IN_FLIGHT_H_
