// Snapshots that a server writes as it ends and restores as it starts.
#ifndef SEINE_SERVICE_SNAPSHOTS_EXIT_SNAPSHOTS_H_
#define SEINE_SERVICE_SNAPSHOTS_EXIT_SNAPSHOTS_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "service/core.h"

namespace seine {

// Before the first call, once the configured indexes are made: opens the folder, if there is one, and restores what the
// last end has written, if that is asked for. A snapshot that cannot be restored is left where it is, and the log says
// why; so is one of an index that is not there. INVALID_ARGUMENT naming the setting.
absl::Status PrepareSnapshots(const SnapshotOptions& options, Core* core);

// Once no call is left: writes every family of every index, for `limit` at most. What the last end had written and this
// one has not goes. False: not all could be written; then the log says why, and what the last end had written stays.
bool WriteExitSnapshots(Core* core, absl::Duration limit);

}  // namespace seine

#endif  // SEINE_SERVICE_SNAPSHOTS_EXIT_SNAPSHOTS_H_
