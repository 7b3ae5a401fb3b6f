// What a running server takes over from settings that were read again: log.level, the folder of profiles as it is now,
// and what now stands in the files of TLS, credentials and quotas. Everything else is as it was at the start.
#ifndef SEINE_SERVICE_CONFIG_RELOAD_H_
#define SEINE_SERVICE_CONFIG_RELOAD_H_

#include "absl/status/statusor.h"
#include "service/config/config.h"
#include "service/core.h"
#include "service/profiles.h"

namespace seine {

// Says in the log what was taken over, and what is set otherwise now but needs a new start. `again`: the settings as
// they are read now, not resolved; an error is logged, and nothing changes. `current` follows what was taken over.
void Reload(const absl::StatusOr<ServerConfig>& again, ServerConfig* current, Core* core);

// Warns of each of the folder's files that looks like a profile but is none, and of each profile without a checksum.
void WarnOfProfiles(const Profiles& profiles);

}  // namespace seine

#endif  // SEINE_SERVICE_CONFIG_RELOAD_H_
