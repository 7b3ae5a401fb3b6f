#include "service/access/access.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "index/memory/memory_budget.h"
#include "service/fields/error.h"

namespace seine {
namespace {

absl::Status InSetting(absl::string_view setting, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(setting, ": ", status.message()));
}

// The token of "Bearer TOKEN"; empty: the text is of another form.
absl::string_view TokenOf(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  return absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
}

}  // namespace

absl::Status Unauthenticated() {
  return Explain(
      absl::UnauthenticatedError("a valid credential is needed: metadata 'authorization: Bearer TOKEN', or a "
                                 "client certificate that the server knows"),
      "");
}

absl::Status NotAllowed() {
  return Explain(absl::PermissionDeniedError("the credential's role does not allow this call"), "");
}

absl::StatusOr<std::unique_ptr<Access>> Access::Open(const AccessOptions& options,
                                                     const std::shared_ptr<MemoryBudget>& whole) {
  std::unique_ptr<Access> access(new Access(options, whole));
  if (auto s = access->Reload(); !s.ok()) return s;
  return access;
}

absl::Status Access::Reload() {
  const std::shared_ptr<const Credentials> before = credentials();
  auto next = Credentials::Load(options_.tokens_file, before.get());
  if (!next.ok()) return InSetting("auth.tokens_file", next.status());
  QuotasByTenant quotas;
  if (!options_.quotas_file.empty()) {
    auto read = LoadQuotas(options_.quotas_file);
    if (!read.ok()) return InSetting("auth.quotas_file", read.status());
    quotas = *std::move(read);
  }
  tenants_.Set(std::move(quotas));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    credentials_ = *next;
  }
  if (before != nullptr) before->RevokeWhatIsNotIn(**next);
  return absl::OkStatus();
}

std::shared_ptr<const Credentials> Access::credentials() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return credentials_;
}

size_t Access::num_credentials() const { return credentials()->size(); }
bool Access::has_certificates() const { return credentials()->has_certificates(); }

absl::StatusOr<std::shared_ptr<const Caller>> Access::Identify(Presented presented) {
  const std::shared_ptr<const Credentials> known = credentials();
  std::shared_ptr<const Grant> grant;
  if (!presented.authorization.empty()) {
    if (presented.authorization.size() > 1) return Unauthenticated();  // which of them would count?
    grant = known->OfToken(TokenOf(presented.authorization.front()));
    if (grant == nullptr) return Unauthenticated();
  }
  for (size_t i = 0; grant == nullptr && i < presented.sans.size(); ++i)
    grant = known->OfCertificate(presented.sans[i]);
  const bool owner = presented.over_unix && options_.unix_calls == "owner";
  if (grant == nullptr && !owner) return Unauthenticated();
  auto caller = std::make_shared<Caller>();
  caller->tenant = tenants_.Get(grant == nullptr ? absl::string_view() : grant->tenant);
  caller->role = grant == nullptr ? Role::kAdmin : grant->role;
  caller->grant = std::move(grant);
  caller->peer = std::move(presented.peer);
  return caller;
}

}  // namespace seine
