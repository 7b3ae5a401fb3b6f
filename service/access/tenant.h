// A tenant: for whom a server holds indexes, and how much of the server it may take. Names of indexes and ids of
// sequences live within a tenant. The tenant without a name is the server's own: it has the indexes of the
// configuration, and everything where the server asks for no credentials.
//
// Thread safety: every method may be called from any thread.
#ifndef SEINE_SERVICE_ACCESS_TENANT_H_
#define SEINE_SERVICE_ACCESS_TENANT_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "index/memory/memory_budget.h"
#include "service/scheduling/tenant_work.h"

namespace seine {

// 0: no quota.
struct Quotas {
  int64_t memory_bytes = 0;         // codes and stored keys and values, in the host's memory
  int64_t device_memory_bytes = 0;  // codes in a device's own memory
  int64_t indexes = 0;
  int64_t sequences = 0;         // of all its indexes
  int64_t steps_per_second = 0;  // Decode steps and calls of RetrievalService; a second's worth may come at once
  int64_t calls = 0;             // under way; an open stream or channel is one
};

// Allows so many steps a second, and as many at once as a second brings. Not thread-safe.
class StepBucket {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Zero: the step is taken. Else how long until one may be.
  std::chrono::nanoseconds Take(int64_t per_second, Time now);

 private:
  double left_ = -1;  // steps; negative: it is full
  Time last_;
};

class Tenant {
 public:
  // `whole`: the server's budget, of which the tenant's is a part.
  Tenant(std::string name, const std::shared_ptr<MemoryBudget>& whole)
      : name_(std::move(name)), budget_(std::make_shared<MemoryBudget>(0, 0, whole)) {}
  Tenant(const Tenant&) = delete;
  Tenant& operator=(const Tenant&) = delete;

  const std::string& name() const { return name_; }
  const std::shared_ptr<MemoryBudget>& budget() const { return budget_; }
  TenantWork& work() { return work_; }

  void Set(const Quotas& quotas);
  Quotas quotas() const;

  // Each RESOURCE_EXHAUSTED names its quota. A call that has entered leaves once.
  [[nodiscard]] absl::Status EnterCall();
  void LeaveCall() { calls_.fetch_sub(1, std::memory_order_relaxed); }
  int64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  absl::Status TakeStep();
  // Whether it may have another beside `held`.
  absl::Status CheckSequences(int64_t held) const;
  absl::Status CheckIndexes(int64_t held) const;
  // Held while a sequence is counted and made, so that two at once do not pass the quota.
  std::mutex& making_sequence() { return making_sequence_; }

 private:
  const std::string name_;
  const std::shared_ptr<MemoryBudget> budget_;
  TenantWork work_;
  std::atomic<int64_t> calls_{0}, most_calls_{0}, steps_per_second_{0};
  std::mutex making_sequence_;
  mutable std::mutex mutex_;
  Quotas quotas_;      // guarded by mutex_
  StepBucket bucket_;  // guarded by mutex_
};

// The tenants that have called, and the quotas of all.
class Tenants {
 public:
  explicit Tenants(std::shared_ptr<MemoryBudget> whole) : whole_(std::move(whole)) {}

  // The tenant of that name, made where there was none. It lives as long as the server.
  std::shared_ptr<Tenant> Get(absl::string_view name);
  std::vector<std::shared_ptr<Tenant>> All() const;  // as they have come
  // Quotas by tenant, from now on; tenants that are not named have none.
  void Set(std::map<std::string, Quotas, std::less<>> quotas);

 private:
  const std::shared_ptr<MemoryBudget> whole_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Tenant>, std::less<>> tenants_;  // guarded by mutex_
  std::vector<std::shared_ptr<Tenant>> in_order_;                        // guarded by mutex_
  std::map<std::string, Quotas, std::less<>> quotas_;                    // guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_ACCESS_TENANT_H_
