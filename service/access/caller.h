// Who makes the call that this thread is at. Calls are plain functions of a core (service/calls/calls.h); whose indexes
// they see comes from here, as what stops them comes from kernels/stop.h.
#ifndef SEINE_SERVICE_ACCESS_CALLER_H_
#define SEINE_SERVICE_ACCESS_CALLER_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "service/access/role.h"
#include "service/access/tenant.h"
#include "service/scheduling/tenant_work.h"

namespace seine {

// A credential as the tokens file has it. It may be taken back while calls that showed it go on.
struct Grant {
  std::string name;  // for the log: "token 5e884898", "certificate engine.example"
  std::string tenant;
  Role role = Role::kNone;
  std::atomic<bool> revoked{false};
};

// Immutable once made; shared by what a call leaves behind, such as a same-host channel.
struct Caller : std::enable_shared_from_this<Caller> {
  std::shared_ptr<Tenant> tenant;      // never nullptr
  std::shared_ptr<const Grant> grant;  // nullptr: the owner of the server's Unix socket
  std::string peer;                    // "ipv4:127.0.0.1:40022"
  Role role = Role::kAdmin;

  bool revoked() const { return grant != nullptr && grant->revoked.load(std::memory_order_relaxed); }
  const std::string& tenant_name() const { return tenant->name(); }
};

// Makes `caller` this thread's for as long as it lives. nullptr: a server that asks for no credentials, or a program
// that holds the core itself.
class CallerScope {
 public:
  explicit CallerScope(const Caller* caller) : before_(current_) { current_ = caller; }
  ~CallerScope() { current_ = before_; }
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;

  static const Caller* current() { return current_; }

 private:
  static inline thread_local const Caller* current_ = nullptr;
  const Caller* const before_;
};

// The tenant of the call that this thread is at; empty: the server's own.
inline absl::string_view CurrentTenant() {
  const Caller* const caller = CallerScope::current();
  return caller == nullptr ? absl::string_view() : absl::string_view(caller->tenant_name());
}

// The caller of a call under way, and the call's place among its tenant's; given back at the end. Empty: a server that
// asks for no credentials.
class AdmittedCaller {
 public:
  AdmittedCaller() = default;
  AdmittedCaller(const AdmittedCaller&) = delete;
  AdmittedCaller& operator=(const AdmittedCaller&) = delete;
  ~AdmittedCaller() {
    if (caller_ != nullptr) caller_->tenant->LeaveCall();
  }
  // Once. RESOURCE_EXHAUSTED: the tenant has as many calls under way as it may.
  [[nodiscard]] absl::Status Enter(std::shared_ptr<const Caller> caller) {
    if (auto s = caller->tenant->EnterCall(); !s.ok()) return s;
    caller_ = std::move(caller);
    return absl::OkStatus();
  }
  const Caller* get() const { return caller_.get(); }
  TenantWork* work() const { return caller_ != nullptr ? &caller_->tenant->work() : nullptr; }

 private:
  std::shared_ptr<const Caller> caller_;
};

// How the log names an index: INDEX, or TENANT/INDEX.
inline std::string NameInLog(absl::string_view tenant, absl::string_view index) {
  return tenant.empty() ? std::string(index) : std::string(tenant) + "/" + std::string(index);
}

}  // namespace seine

#endif  // SEINE_SERVICE_ACCESS_CALLER_H_
