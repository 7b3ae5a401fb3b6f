#include "service/config/access_settings.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "service/access/access.h"
#include "service/access/guards.h"
#include "service/access/tls_files.h"
#include "service/config/optional_text.h"

namespace seine {
namespace {

Setting UnixSetting() {
  auto set = [](const std::string& text, ServerConfig* config) -> absl::Status {
    if (text != "owner" && text != "token") {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' is none of owner|token"));
    }
    config->server.access.unix_calls = text;
    return absl::OkStatus();
  };
  return {"auth.unix", "owner|token",
          "owner: a call over a Unix socket without a token is an admin's of the server's own tenant; token: it is "
          "refused.",
          set, [](const ServerConfig& config) { return config.server.access.unix_calls; }};
}

}  // namespace

std::vector<Setting> AccessSettings() {
  return {
      OptionalText(
          "tls.cert", "FILE",
          "The server's certificate in PEM, then those between it and its authority; TLS is on where it is given. "
          "Files "
          "of TLS are read again at SIGHUP and when they change; bad ones are not taken.",
          [](auto& c) -> auto& { return c.server.tls.cert; }),
      OptionalText(
          "tls.key", "FILE", "The certificate's private key in PEM, without a passphrase.",
          [](auto& c) -> auto& { return c.server.tls.key; }),
      OptionalText(
          "tls.client_ca", "FILE", "Authorities in PEM. Every client must then show a certificate of one of them.",
          [](auto& c) -> auto& { return c.server.tls.client_ca; }),
      OptionalText(
          "auth.tokens_file", "FILE",
          "YAML list of credentials, {sha256, tenant, role} or {san, tenant, role}; role is reader, writer or admin. "
          "Every call then needs one. Read again at SIGHUP.",
          [](auto& c) -> auto& { return c.server.access.tokens_file; }),
      OptionalText(
          "auth.quotas_file", "FILE",
          "YAML of quotas by tenant: {memory, device_memory, indexes, sequences, steps_per_second, calls}. Read again "
          "at "
          "SIGHUP.",
          [](auto& c) -> auto& { return c.server.access.quotas_file; }),
      UnixSetting(),
      OptionalText(
          "audit.file", "FILE",
          "Lines of JSON are added to it: who made, deleted, forked, cut back, evicted or loaded what. Opened anew at "
          "SIGHUP.",
          [](auto& c) -> auto& { return c.server.audit_file; }),
  };
}

absl::Status CheckAccess(const ServerConfig& config) {
  const auto address = ParseAddress(config.server.listen);
  if (!address.ok()) return address.status();
  const TlsOptions& tls = config.server.tls;
  if (auto s = CheckGuards(*address, tls, config.server.access); !s.ok()) return s;
  if (tls.enabled()) {
    if (auto files = TlsFiles::Open(tls, [](const absl::Status&) {}); !files.ok()) return files.status();
  }
  if (!config.server.access.enabled()) return absl::OkStatus();
  const auto access = Access::Open(config.server.access, nullptr);
  return access.ok() ? CheckCredentials(*address, tls, **access) : access.status();
}

}  // namespace seine
