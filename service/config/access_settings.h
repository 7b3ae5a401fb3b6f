// The settings of who may call: TLS, credentials, quotas and the audit log. A part of config.h's table.
#ifndef SEINE_SERVICE_CONFIG_ACCESS_SETTINGS_H_
#define SEINE_SERVICE_CONFIG_ACCESS_SETTINGS_H_

#include <vector>

#include "absl/status/status.h"
#include "service/config/config.h"

namespace seine {

std::vector<Setting> AccessSettings();

// Reads what the settings name, as a start does, and throws it away. INVALID_ARGUMENT naming the setting.
absl::Status CheckAccess(const ServerConfig& config);

}  // namespace seine

#endif  // SEINE_SERVICE_CONFIG_ACCESS_SETTINGS_H_
