// What a server knows of one tenant's work: how much of it runs, how long it waits, and what its calls usually cost.
#ifndef SEINE_SERVICE_SCHEDULING_TENANT_WORK_H_
#define SEINE_SERVICE_SCHEDULING_TENANT_WORK_H_

#include <atomic>
#include <cstdint>

#include "index/counts/histogram.h"
#include "index/counts/thread_local_counters.h"
#include "service/scheduling/call_costs.h"

namespace seine {

// Thread-safe.
class TenantWork {
 public:
  TenantWork() = default;  // std::bad_alloc
  TenantWork(const TenantWork&) = delete;
  TenantWork& operator=(const TenantWork&) = delete;

  void Waited(int64_t ns) { Histogram(&waits_, 0).Add(ns); }  // for a worker
  void Yielded(int64_t ns) { yielded_ns_.fetch_add(ns, std::memory_order_relaxed); }
  HistogramReading waits() const { return Histogram(&waits_, 0).Read(); }
  int64_t yielded_ns() const { return yielded_ns_.load(std::memory_order_relaxed); }

  std::atomic<int> short_running{0};  // pieces of short work under way (sharing.h)
  CallCosts costs;

 private:
  mutable ThreadLocalCounters waits_{Histogram::kCells};
  std::atomic<int64_t> yielded_ns_{0};
};

}  // namespace seine

#endif  // SEINE_SERVICE_SCHEDULING_TENANT_WORK_H_
