#include "service/config/reload.h"

#include <spdlog/spdlog.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "service/access/access.h"
#include "service/access/audit_log.h"
#include "service/access/tls_files.h"
#include "service/log.h"
#include "service/profiles.h"

namespace seine {
namespace {

std::vector<std::string> NamesOf(const ServerConfig& config) {
  std::vector<std::string> names;
  for (const IndexEntry& entry : config.entries) names.push_back(entry.spec.name());
  return names;
}

// Reads what says who may call: paths are those of the start, what stands in the files may be new.
void ReloadAccess(Core* core, std::vector<std::string>* taken) {
  const auto note = [taken](const char* what, const absl::Status& status) {
    if (status.ok()) {
      taken->emplace_back(what);
    } else {
      spdlog::error("SIGHUP: {}; what was read before counts", std::string(status.message()));
    }
  };
  if (core->tls != nullptr) note("files of TLS", core->tls->Reload());
  if (core->access != nullptr) note("credentials and quotas", core->access->Reload());
  if (core->audit != nullptr) note("the audit file is opened anew", core->audit->Reopen());
}

}  // namespace

void Reload(const absl::StatusOr<ServerConfig>& again, ServerConfig* current, Core* core) {
  if (!again.ok()) {
    spdlog::error("SIGHUP: nothing is reloaded: {}", std::string(again.status().message()));
    return;
  }
  std::vector<std::string> taken, left;
  for (const Setting& setting : Settings()) {
    const std::string before = setting.get(*current), now = setting.get(*again);
    if (before == now) continue;
    (setting.key == "log.level" ? taken : left).push_back(absl::StrCat(setting.key, " ", before, " -> ", now));
  }
  if (NamesOf(*again) != NamesOf(*current)) left.emplace_back("indexes");
  ReloadAccess(core, &taken);
  current->log_level = again->log_level;
  core->options.profiles->Forget();
  const std::vector<std::string> profiles = core->options.profiles->Names();
  taken.push_back(profiles.empty() ? "no profiles" : absl::StrCat("profiles ", absl::StrJoin(profiles, ", ")));
  SetLogLevel("info");  // whatever it was and will be, this is said
  spdlog::info("SIGHUP: reloaded: {}", absl::StrJoin(taken, "; "));
  SetLogLevel(current->log_level);
  if (!left.empty()) spdlog::warn("SIGHUP: takes a new start: {}", absl::StrJoin(left, "; "));
  WarnOfProfiles(*core->options.profiles);
}

void WarnOfProfiles(const Profiles& profiles) {
  const Profiles::Listing listing = profiles.List();
  for (const std::string& file : listing.passed_over) spdlog::warn("server.profiles: passed over {}", file);
  for (const std::string& file : listing.without_checksum) {
    spdlog::warn("server.profiles: {} has no checksum: damage to it goes unseen; one that is measured anew has", file);
  }
}

}  // namespace seine
