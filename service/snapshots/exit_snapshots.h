// Snapshots that a server writes as it ends and restores as it starts.
#ifndef SEINE_SERVICE_SNAPSHOTS_EXIT_SNAPSHOTS_H_
#define SEINE_SERVICE_SNAPSHOTS_EXIT_SNAPSHOTS_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "index/index.h"
#include "service/core.h"
#include "service/snapshots/files/snapshot_folder.h"

namespace seine {

// Before the first call, once the configured indexes are made: opens the folder, if there is one, and restores what the
// last end has written, if that is asked for. A snapshot that cannot be restored is left where it is; the log and
// Core::exit_files say why. So is one of an index that is not there. INVALID_ARGUMENT naming the setting.
absl::Status PrepareSnapshots(const SnapshotOptions& options, Core* core);

// A client has made the index: restores what the last end has written of it, where the start would have done so.
void RestoreCreated(Core* core, Index* index);

// Once no call is left: writes every family of every index, for `limit` at most. A family's older file goes once its
// newer one lasts. Where all of an index is written, files go as well that this run has restored and whose families
// were deleted since. No other file goes. False: not all could be written; then the log says why.
bool WriteExitSnapshots(Core* core, absl::Duration limit);

}  // namespace seine

#endif  // SEINE_SERVICE_SNAPSHOTS_EXIT_SNAPSHOTS_H_
