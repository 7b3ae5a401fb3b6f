// Tasks of several tenants that wait for a thread, in the order of deficit round robin (docs/references.md#drr):
// the tenants take turns, each for a quantum of cost; what a task costs beyond that is saved up for over several turns.
// So a tenant gets its share of the time, whatever its tasks cost and however many wait. Among one tenant's tasks those
// due first come first.
//
// It knows no threads and no clock. Not thread-safe.
#ifndef SEINE_SERVICE_SCHEDULING_FAIR_QUEUE_H_
#define SEINE_SERVICE_SCHEDULING_FAIR_QUEUE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>

#include "service/scheduling/tenant_work.h"

namespace seine {

struct FairTask {
  using SteadyTime = std::chrono::steady_clock::time_point;

  std::function<void()> run;
  // Called in place of run where the task is pushed out for another tenant's; empty: it never is.
  std::function<void()> drop;
  TenantWork* tenant = nullptr;      // nullptr: of none; these are one tenant among the others
  std::chrono::nanoseconds cost{0};  // expected time of a processor
  bool is_long = false;
  SteadyTime due, queued;
};

class FairQueue {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  using MayRun = std::function<bool(const TenantWork* tenant)>;

  static constexpr Nanoseconds kQuantum = std::chrono::milliseconds(1);
  // A tenant whose tasks have cost more than they were expected to owes so much at most.
  static constexpr Nanoseconds kMostDebt = std::chrono::seconds(1);

  void Push(FairTask task);
  // The next task, long ones only where `may_run_long(tenant)`; none: there is no such task.
  std::optional<FairTask> Pop(const MayRun& may_run_long);
  // A task has cost so much more (or, negative, less) than was expected. It counts while others wait.
  void Correct(const TenantWork* tenant, Nanoseconds more);
  // Takes the last task that may be dropped out of the longest queue, if that is longer than the tenant's own by two at
  // least.
  std::optional<FairTask> DropFor(const TenantWork* tenant);

  size_t size() const { return size_; }

 private:
  using Tasks = std::multimap<FairTask::SteadyTime, FairTask>;  // by when they are due
  struct Flow {
    Tasks short_tasks, long_tasks;
    Nanoseconds deficit{0};  // what may be spent; negative: owed
    bool in_round = false;

    size_t size() const { return short_tasks.size() + long_tasks.size(); }
    Tasks* Next(bool long_too);  // that holds the next task; nullptr: none
  };
  bool IsAlone(const TenantWork* tenant) const {
    return round_.empty() || (round_.size() == 1 && round_.front().first == tenant);
  }
  FairTask Take(Flow* flow, Tasks* from);
  bool SkipTurns(const MayRun& may_run_long);
  void Leave(Flow* flow);  // its last task has gone

  std::map<const TenantWork*, Flow> flows_;               // of all tenants that ever came: few, for a file lists them
  std::list<std::pair<const TenantWork*, Flow*>> round_;  // those with tasks; the first is at its turn
  bool has_quantum_ = false;                              // the first has got its quantum of this turn
  size_t size_ = 0;
};

}  // namespace seine

#endif  // SEINE_SERVICE_SCHEDULING_FAIR_QUEUE_H_
