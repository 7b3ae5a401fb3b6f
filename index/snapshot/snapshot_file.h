// Snapshots in files. Errors tell no path, as those of bytes/files.h.
#ifndef SEINE_INDEX_SNAPSHOT_SNAPSHOT_FILE_H_
#define SEINE_INDEX_SNAPSHOT_SNAPSHOT_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "index/bytes/files.h"
#include "index/index.h"

namespace seine {

// Index::Snapshot and Restore, to and from a file.
absl::StatusOr<SnapshotInfo> SnapshotToFile(const Index& index, const SequenceHandle& handle, SnapshotScope scope,
                                            const std::string& path, FileOps* files = nullptr,
                                            WrittenBase* base = nullptr);
absl::StatusOr<RestoreInfo> RestoreFromFile(Index* index, const RestoreParams& restore, const std::string& path);

}  // namespace seine

#endif  // SEINE_INDEX_SNAPSHOT_SNAPSHOT_FILE_H_
