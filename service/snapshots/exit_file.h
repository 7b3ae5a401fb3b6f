// The file of a family that a server writes as it ends: a snapshot, and behind it the generations that its families
// have, where any is above 0:
//
//   lines "FAMILY GENERATION", 32 hexadecimal digits of xxh3-128 over them, their bytes as 8 hexadecimal digits,
//   "SEINEGEN"
#ifndef SEINE_SERVICE_SNAPSHOTS_EXIT_FILE_H_
#define SEINE_SERVICE_SNAPSHOTS_EXIT_FILE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "index/bytes/file_ops.h"
#include "index/index.h"

namespace seine {

using Generations = std::map<std::string, uint64_t, std::less<>>;  // by family, above 0

// As SnapshotToFile (index/snapshot/snapshot_file.h). `generation_of`: of a family.
absl::StatusOr<SnapshotInfo> WriteExitFile(const Index& index, const SequenceHandle& handle, const std::string& path,
                                           const std::function<uint64_t(absl::string_view family)>& generation_of,
                                           FileOps* files = &SystemFiles());

// Restores it where `accept` agrees to every family with its generation, without sequences whose id is in use, and
// those that it gives no more (files/without_ids.h). To be called before others can see the index. Errors as
// RestoreFromFile's and accept's; ALREADY_EXISTS where none is left.
absl::StatusOr<RestoreInfo> RestoreExitFile(
    Index* index, const std::string& path,
    const std::function<absl::Status(absl::string_view family, uint64_t generation)>& accept, Generations* generations);

}  // namespace seine

#endif  // SEINE_SERVICE_SNAPSHOTS_EXIT_FILE_H_
