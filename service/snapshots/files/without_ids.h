// Sequences that a file gives no more: FILE.without has their ids.
//
// A start has passed FILE over, for it was damaged or memory was short, and has found older states of these sequences
// in other files. A client has deleted them. Should FILE be restored another time, they stay deleted. But FILE may be
// of other settings than the index then had, and its sequences are others. So each id stands with the settings.
#ifndef SEINE_SERVICE_SNAPSHOTS_FILES_WITHOUT_IDS_H_
#define SEINE_SERVICE_SNAPSHOTS_FILES_WITHOUT_IDS_H_

#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "index/bytes/file_ops.h"

namespace seine {

using DeletedId = std::pair<std::string, std::string>;  // the checksum of RestoreInfo::settings, and the id

// None where there is no such file. DATA_LOSS: it is damaged. UNAVAILABLE: it cannot be read.
absl::StatusOr<std::set<DeletedId>> ReadWithoutIds(const std::string& path);
// Adds to those that are there. Once it returns OK, they last; but where those that are there are damaged, nothing is
// done: then the file gives nothing at all.
absl::Status AddWithoutIds(const std::string& path, std::set<DeletedId> ids, FileOps* files);
// The file is gone, or has another name.
void RemoveWithoutIds(const std::string& path, FileOps* files);

}  // namespace seine

#endif  // SEINE_SERVICE_SNAPSHOTS_FILES_WITHOUT_IDS_H_
