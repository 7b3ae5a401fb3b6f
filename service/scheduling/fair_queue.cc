#include "service/scheduling/fair_queue.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace seine {
namespace {

// Turns until a tenant with this deficit may spend `cost`; at least one.
int64_t TurnsUntil(FairQueue::Nanoseconds deficit, FairQueue::Nanoseconds cost) {
  const int64_t quantum = FairQueue::kQuantum.count();
  return std::max<int64_t>(1, ((cost - deficit).count() + quantum - 1) / quantum);
}

}  // namespace

FairQueue::Tasks* FairQueue::Flow::Next(bool long_too) {
  if (!long_too || long_tasks.empty()) return short_tasks.empty() ? nullptr : &short_tasks;
  if (short_tasks.empty()) return &long_tasks;
  return long_tasks.begin()->first < short_tasks.begin()->first ? &long_tasks : &short_tasks;
}

void FairQueue::Push(FairTask task) {
  Flow& flow = flows_[task.tenant];
  if (!flow.in_round) round_.emplace_back(task.tenant, &flow);
  flow.in_round = true;
  Tasks& tasks = task.is_long ? flow.long_tasks : flow.short_tasks;
  const FairTask::SteadyTime due = task.due;
  tasks.emplace(due, std::move(task));
  ++size_;
}

std::optional<FairTask> FairQueue::Pop(const MayRun& may_run_long) {
  for (size_t passed = 0; !round_.empty();) {
    const auto [tenant, flow] = round_.front();
    if (Tasks* const tasks = flow->Next(may_run_long(tenant)); tasks != nullptr) {
      const Nanoseconds cost = tasks->begin()->second.cost;
      if (round_.size() == 1) flow->deficit = cost;  // nobody is kept waiting, nothing is owed
      if (!std::exchange(has_quantum_, true)) flow->deficit += kQuantum;
      if (cost <= flow->deficit) return Take(flow, tasks);
    }
    round_.splice(round_.end(), round_, round_.begin());
    has_quantum_ = false;
    if (++passed < round_.size()) continue;
    if (!SkipTurns(may_run_long)) break;
    passed = 0;
  }
  return std::nullopt;
}

// Turns in which no tenant could run its task, all at once; false: none has a task.
bool FairQueue::SkipTurns(const MayRun& may_run_long) {
  int64_t turns = std::numeric_limits<int64_t>::max();
  for (const auto& [tenant, flow] : round_) {
    Tasks* const tasks = flow->Next(may_run_long(tenant));
    if (tasks != nullptr) turns = std::min(turns, TurnsUntil(flow->deficit, tasks->begin()->second.cost) - 1);
  }
  if (turns == std::numeric_limits<int64_t>::max()) return false;
  for (const auto& [tenant, flow] : round_) {
    if (flow->Next(may_run_long(tenant)) != nullptr) flow->deficit += turns * kQuantum;
  }
  return true;
}

FairTask FairQueue::Take(Flow* flow, Tasks* from) {
  FairTask task = std::move(from->begin()->second);
  from->erase(from->begin());
  --size_;
  flow->deficit -= task.cost;
  if (flow->size() == 0) Leave(flow);
  return task;
}

// Its turn ends. What was saved up is for tasks that waited. What is owed stays.
void FairQueue::Leave(Flow* flow) {
  if (round_.front().second == flow) has_quantum_ = false;
  round_.remove_if([flow](const auto& one) { return one.second == flow; });
  flow->in_round = false;
  flow->deficit = std::min(flow->deficit, Nanoseconds::zero());
}

void FairQueue::Correct(const TenantWork* tenant, Nanoseconds more) {
  if (IsAlone(tenant)) return;
  Flow& flow = flows_[tenant];
  flow.deficit = std::max(flow.deficit - more, std::min(flow.deficit, -kMostDebt));
  if (!flow.in_round) flow.deficit = std::min(flow.deficit, Nanoseconds::zero());
}

std::optional<FairTask> FairQueue::DropFor(const TenantWork* tenant) {
  const auto longest = std::max_element(
      round_.begin(), round_.end(), [](const auto& a, const auto& b) { return a.second->size() < b.second->size(); });
  if (longest == round_.end() || longest->first == tenant) return std::nullopt;
  Flow* const flow = longest->second;
  if (flow->size() < flows_[tenant].size() + 2) return std::nullopt;
  for (Tasks* const tasks : {&flow->long_tasks, &flow->short_tasks}) {
    const auto last = std::find_if(tasks->rbegin(), tasks->rend(), [](const auto& t) { return t.second.drop; });
    if (last == tasks->rend()) continue;
    FairTask dropped = std::move(last->second);
    tasks->erase(std::next(last).base());
    --size_;
    if (flow->size() == 0) Leave(flow);
    return dropped;
  }
  return std::nullopt;
}

}  // namespace seine
