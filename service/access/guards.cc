#include "service/access/guards.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "service/access/wrong_setting.h"

namespace seine {
namespace {

std::string BeyondLoopback(const Address& address, absl::string_view missing) {
  return absl::StrCat(address.ToString(),
                      " is beyond this machine's loopback, which takes TLS and a credential: ", missing);
}

}  // namespace

absl::Status CheckGuards(const Address& address, const TlsOptions& tls, const AccessOptions& access) {
  if (auto s = CheckComplete(tls); !s.ok()) return s;
  if (!address.unix_path.empty() && tls.enabled()) {
    return WrongSetting("tls.cert", "a Unix socket takes no TLS; listen on HOST:PORT, or leave it out");
  }
  if (!access.enabled() && !access.quotas_file.empty()) {
    return WrongSetting("auth.quotas_file", "needs auth.tokens_file, which says who the tenants are");
  }
  if (!access.enabled() && access.unix_calls != "owner") {
    return WrongSetting("auth.unix", "token needs auth.tokens_file");
  }
  if (!address.beyond_loopback) return absl::OkStatus();
  if (!tls.enabled()) {
    return WrongSetting("listen", BeyondLoopback(address, access.enabled() ? "TLS is missing (tls.cert and tls.key)"
                                                                           : "both are missing (tls.cert, tls.key and "
                                                                             "auth.tokens_file)"));
  }
  if (access.enabled()) return absl::OkStatus();
  return WrongSetting("listen", BeyondLoopback(address, "a credential is missing (auth.tokens_file)"));
}

absl::Status CheckCredentials(const Address& address, const TlsOptions& tls, const Access& access) {
  if (address.beyond_loopback && access.num_credentials() == 0) {
    return WrongSetting("listen", BeyondLoopback(address, "auth.tokens_file holds no credential"));
  }
  if (access.has_certificates() && tls.client_ca.empty()) {
    return WrongSetting("auth.tokens_file", "a 'san' needs tls.client_ca, without which no client shows a certificate");
  }
  return absl::OkStatus();
}

std::string WhoMayComeIn(const Address& address, const TlsOptions& tls, const Access* access,
                         const std::string& unix_calls) {
  const bool over_unix = !address.unix_path.empty();
  std::string who = "whoever reaches the address, as admin";
  if (access != nullptr) {
    who = absl::StrCat("whoever shows one of ", access->num_credentials(), " credentials");
    if (over_unix && unix_calls == "owner") absl::StrAppend(&who, ", and the socket's owner as admin");
  } else if (over_unix) {
    who = "the socket's owner, as admin";
  }
  if (over_unix) return who;
  if (!tls.client_ca.empty())
    absl::StrAppend(&who, access != nullptr ? " and" : ", with", " a certificate of tls.client_ca");
  return absl::StrCat(who, tls.enabled() ? ", over TLS" : ", without TLS",
                      access == nullptr ? "; auth.tokens_file is off" : "");
}

}  // namespace seine
