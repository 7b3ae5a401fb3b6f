// The folder of a server's snapshots: which file a name means, and whose it is.
//
//   DIR/own/NAME.snapshot                 of the server's own tenant, or where it has no tenants
//   DIR/tenant-T/NAME.snapshot            of tenant T
//   DIR/.../at-exit/index-I/N.snapshot    of families of index I, written as the server ended
#ifndef SEINE_SERVICE_SNAPSHOTS_SNAPSHOT_FOLDER_H_
#define SEINE_SERVICE_SNAPSHOTS_SNAPSHOT_FOLDER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace seine {

struct SnapshotOptions {
  std::string folder;  // empty: no snapshots
  bool at_exit = false, restore_on_start = false;
  int exit_seconds = 60;
};
// INVALID_ARGUMENT naming the setting: what needs a folder, and has none.
absl::Status Validate(const SnapshotOptions& options);

// What a server has done with snapshots. Thread-safe.
struct SnapshotCounts {
  std::atomic<int64_t> written{0}, restored{0}, writes_failed{0}, restores_failed{0};
  std::atomic<int64_t> bytes_written{0}, bytes_restored{0};
  void Wrote(const absl::Status& status, int64_t bytes);
  void Restored(const absl::Status& status, int64_t bytes);
};

// Thread-safe: it does not change.
class SnapshotFolder {
 public:
  // Makes the folder where there is none, and removes what an earlier process has left half written in it; *removed:
  // how many files. INVALID_ARGUMENT naming snapshots.dir.
  static absl::StatusOr<std::unique_ptr<SnapshotFolder>> Open(const std::string& folder, int* removed);
  // Makes the folder of a process that has no clients: names are paths of its own files.
  static std::unique_ptr<SnapshotFolder> Anywhere();

  // The file that a tenant's name means. `make`: its folder is made where there is none. INVALID_ARGUMENT naming file;
  // UNAVAILABLE.
  absl::StatusOr<std::string> PathOf(absl::string_view tenant, const std::string& name, bool make) const;

  // The folder of what is written of an index as the server ends.
  std::string ExitFolder(absl::string_view tenant, absl::string_view index) const;
  // Those that there are, by tenant and index.
  struct Exit {
    std::string tenant, index, folder;
  };
  std::vector<Exit> ExitFolders() const;

 private:
  explicit SnapshotFolder(std::string folder) : folder_(std::move(folder)) {}
  std::string TenantFolder(absl::string_view tenant) const;

  const std::string folder_;  // empty: anywhere
};

// The snapshots in a folder, by name.
std::vector<std::string> SnapshotsIn(const std::string& folder);
// Makes a folder, and those above it, for the server's user alone. UNAVAILABLE.
absl::Status MakeFolder(const std::string& folder);

}  // namespace seine

#endif  // SEINE_SERVICE_SNAPSHOTS_SNAPSHOT_FOLDER_H_
