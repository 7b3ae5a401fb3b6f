#include "service/access/tenant.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/fields/error.h"

namespace seine {
namespace {

constexpr absl::Duration kCallRetry = absl::Milliseconds(100);  // another call may have ended by then

constexpr absl::Duration kNoRetry = absl::ZeroDuration();  // only a deletion of its own makes room

absl::Status OverQuota(absl::string_view quota, int64_t most, absl::Duration retry) {
  return Overloaded("TENANT_QUOTA", absl::StrCat("the tenant's quota ", quota, " = ", most, " is used up"), retry);
}

}  // namespace

std::chrono::nanoseconds StepBucket::Take(int64_t per_second, Time now) {
  const auto rate = static_cast<double>(per_second);
  const double since = std::chrono::duration<double>(now - last_).count();
  left_ = left_ < 0 ? rate : std::min(rate, left_ + std::max(0.0, since) * rate);
  last_ = now;
  if (left_ < 1) return std::chrono::nanoseconds(static_cast<int64_t>((1 - left_) / rate * 1e9) + 1);
  left_ -= 1;
  return std::chrono::nanoseconds::zero();
}

void Tenant::Set(const Quotas& quotas) {
  budget_->SetLimit(quotas.memory_bytes, Account::kHost);
  budget_->SetLimit(quotas.device_memory_bytes, Account::kDevice);
  most_calls_.store(quotas.calls, std::memory_order_relaxed);
  steps_per_second_.store(quotas.steps_per_second, std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (quotas.steps_per_second != quotas_.steps_per_second) bucket_ = StepBucket();
  quotas_ = quotas;
}

Quotas Tenant::quotas() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return quotas_;
}

absl::Status Tenant::EnterCall() {
  const int64_t most = most_calls_.load(std::memory_order_relaxed);
  if (calls_.fetch_add(1, std::memory_order_relaxed) < most || most == 0) return absl::OkStatus();
  LeaveCall();
  return OverQuota("calls", most, kCallRetry);
}

absl::Status Tenant::TakeStep() {
  const int64_t most = steps_per_second_.load(std::memory_order_relaxed);
  if (most == 0) return absl::OkStatus();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto wait = bucket_.Take(most, std::chrono::steady_clock::now());
  if (wait == std::chrono::nanoseconds::zero()) return absl::OkStatus();
  return OverQuota("steps_per_second", most, absl::FromChrono(wait));
}

absl::Status Tenant::CheckSequences(int64_t held) const {
  const int64_t most = quotas().sequences;
  if (most == 0 || held < most) return absl::OkStatus();
  return OverQuota("sequences", most, kNoRetry);
}

absl::Status Tenant::CheckIndexes(int64_t held) const {
  const int64_t most = quotas().indexes;
  if (most == 0 || held < most) return absl::OkStatus();
  return OverQuota("indexes", most, kNoRetry);
}

std::shared_ptr<Tenant> Tenants::Get(absl::string_view name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = tenants_.find(name);
  if (found != tenants_.end()) return found->second;
  auto tenant = std::make_shared<Tenant>(std::string(name), whole_);
  if (const auto quotas = quotas_.find(name); quotas != quotas_.end()) tenant->Set(quotas->second);
  in_order_.push_back(tenant);
  tenants_.emplace(std::string(name), tenant);
  return tenant;
}

std::vector<std::shared_ptr<Tenant>> Tenants::All() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return in_order_;
}

void Tenants::Set(std::map<std::string, Quotas, std::less<>> quotas) {
  const std::lock_guard<std::mutex> lock(mutex_);
  quotas_ = std::move(quotas);
  for (const auto& [name, tenant] : tenants_) {
    const auto found = quotas_.find(name);
    tenant->Set(found == quotas_.end() ? Quotas() : found->second);
  }
}

}  // namespace seine
