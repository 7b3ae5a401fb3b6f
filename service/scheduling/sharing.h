// How tenants share the processors of a server. Short work, a decode step or a small call, runs at once. Long work, a
// prefill or an eviction, makes way between its pieces while another tenant's short work is under way, for no longer
// than it has worked: it goes on at half its speed at least, however much short work comes.
//
// Work of no tenant (nullptr: the server asks for no credentials) makes way for nothing, and costs nothing here.
#ifndef SEINE_SERVICE_SCHEDULING_SHARING_H_
#define SEINE_SERVICE_SCHEDULING_SHARING_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "kernels/yield.h"
#include "service/scheduling/tenant_work.h"

namespace seine {

// Work that takes a processor longer is long: beside it a hand-over to another thread costs nothing.
inline constexpr std::chrono::nanoseconds kLongWork = std::chrono::milliseconds(2);

// Thread-safe. It outlives the work, and so does every TenantWork.
class Sharing {
 public:
  using Clock = std::chrono::steady_clock;

  Sharing() = default;
  Sharing(const Sharing&) = delete;
  Sharing& operator=(const Sharing&) = delete;

  // A tenant's work has come.
  void Saw(const TenantWork* tenant);
  // Whether work of several tenants has come within the last ten seconds.
  bool several() const;
  // Whether the tenant has as much short work under way as half the processors are for, while there are several
  // tenants: more of it is better queued, or made long.
  bool IsOverFairShare(const TenantWork* tenant) const;
  // Pieces of short work under way, of all tenants but this one.
  int others_short(const TenantWork* tenant) const;

 private:
  friend class ShortWork;
  friend class LongWork;
  void Begin(TenantWork* tenant);
  void End(TenantWork* tenant);
  void Await(const TenantWork* tenant, Clock::time_point until);

  std::atomic<const TenantWork*> last_seen_{nullptr};
  std::atomic<Clock::rep> mixed_{0};  // when a tenant came after another; 0: never
  std::atomic<int> short_running_{0};
  std::atomic<int> waiting_{0};  // threads in Await
  std::mutex mutex_;
  std::condition_variable ended_;
};

// A piece of short work, from here to the end of the scope.
class ShortWork {
 public:
  ShortWork(Sharing& sharing, TenantWork* tenant) : sharing_(sharing), tenant_(tenant) {
    if (tenant_ != nullptr) sharing_.Begin(tenant_);
  }
  ShortWork(const ShortWork&) = delete;
  ShortWork& operator=(const ShortWork&) = delete;
  ~ShortWork() {
    if (tenant_ != nullptr) sharing_.End(tenant_);
  }

 private:
  Sharing& sharing_;
  TenantWork* const tenant_;
};

// Long work of this thread, from here to the end of the scope.
class LongWork final : public Yielder {
 public:
  LongWork(Sharing& sharing, TenantWork* tenant)
      : sharing_(sharing), tenant_(tenant), scope_(tenant != nullptr ? this : nullptr) {
    if (tenant_ != nullptr) sharing_.Saw(tenant_);
  }
  LongWork(const LongWork&) = delete;
  LongWork& operator=(const LongWork&) = delete;

  bool held() const override { return sharing_.others_short(tenant_) > 0; }
  bool Yield() override;

 private:
  // The most that may be waited at once. A call that has worked for longer has not more to give.
  static constexpr std::chrono::nanoseconds kMostCredit = std::chrono::milliseconds(50);

  Sharing& sharing_;
  TenantWork* const tenant_;
  std::chrono::nanoseconds credit_{0};  // worked, and not waited
  Sharing::Clock::time_point resumed_ = Sharing::Clock::now();
  const YieldScope scope_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_SCHEDULING_SHARING_H_
