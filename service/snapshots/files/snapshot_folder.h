// The folder of a server's snapshots: which file a name means, and whose it is.
//
//   DIR/own/NAME.snapshot                 of the server's own tenant, or where it has no tenants
//   DIR/tenant-T/NAME.snapshot            of tenant T
//
// What a server keeps for itself stands there too, or under DIR/node-NODE where the server has a name:
//
//   .../own/at-exit/index-I/NAME.snapshot of families of index I, written as the server ended (exit_files.h)
//   .../own/families/index-I/F.family     of a family of index I that has moved (families/family_record.h)
//   .../lock                              held while the server runs
//
// A link to a folder or a file is that folder or file, in writing and in reading.
#ifndef SEINE_SERVICE_SNAPSHOTS_FILES_SNAPSHOT_FOLDER_H_
#define SEINE_SERVICE_SNAPSHOTS_FILES_SNAPSHOT_FOLDER_H_

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
  std::string folder{};  // empty: no snapshots
  bool at_exit = false, restore_on_start = false;
  int exit_seconds = 60;
  std::string node{};  // the server's name among those that share the folder; empty: it has none
  // Whether the server keeps something for itself there: what it writes as it ends, and which families have moved.
  bool keeps() const { return !folder.empty() && (at_exit || restore_on_start || !node.empty()); }
};
// INVALID_ARGUMENT naming the setting: what needs a folder, and has none, or the node's name.
absl::Status Validate(const SnapshotOptions& options);

// What a server has done with snapshots. Thread-safe.
struct SnapshotCounts {
  std::atomic<int64_t> written{0}, restored{0}, writes_failed{0}, restores_failed{0};
  std::atomic<int64_t> bytes_written{0}, bytes_restored{0};
  std::atomic<int64_t> records_read{0}, records_damaged{0};  // of families, at the start
  void Wrote(const absl::Status& status, int64_t bytes);
  void Restored(const absl::Status& status, int64_t bytes);
};

using Unreadable = std::vector<std::pair<std::string, absl::Status>>;  // folders

// Thread-safe: it does not change.
class SnapshotFolder {
 public:
  // Makes the folder where there is none, and removes what an earlier process has left half written in it; *removed:
  // how many files. INVALID_ARGUMENT naming snapshots.dir. FAILED_PRECONDITION: the server keeps something for itself,
  // and another does so in the same place.
  static absl::StatusOr<std::unique_ptr<SnapshotFolder>> Open(const SnapshotOptions& options, int* removed);
  ~SnapshotFolder();
  SnapshotFolder(const SnapshotFolder&) = delete;
  SnapshotFolder& operator=(const SnapshotFolder&) = delete;
  // Makes the folder of a process that has no clients: names are paths of its own files.
  static std::unique_ptr<SnapshotFolder> Anywhere();

  // The file that a tenant's name means. `make`: its folder is made where there is none. INVALID_ARGUMENT naming file;
  // UNAVAILABLE.
  absl::StatusOr<std::string> PathOf(absl::string_view tenant, const std::string& name, bool make) const;

  // What the server keeps for itself lies under it.
  const std::string& root() const { return root_; }
  // The folder of what is written of an index as the server ends, and of records of its families.
  std::string ExitFolder(absl::string_view tenant, absl::string_view index) const;
  std::string FamilyFolder(absl::string_view tenant, absl::string_view index) const;
  // Those that there are, by tenant and index.
  struct OfIndex {
    std::string tenant, index, folder;
  };
  // `unreadable`, where given, gets each folder that may hold some and cannot be read, with the reason.
  std::vector<OfIndex> ExitFolders(Unreadable* unreadable = nullptr) const;
  std::vector<OfIndex> FamilyFolders(Unreadable* unreadable = nullptr) const;

 private:
  explicit SnapshotFolder(std::string folder, absl::string_view node = "");
  absl::Status Lock();
  // A node that has a name for the first time takes over what the server had kept without one.
  void TakeOver() const;
  std::vector<OfIndex> FoldersOf(absl::string_view kind, Unreadable* unreadable) const;

  const std::string folder_;  // empty: anywhere
  const std::string root_;
  int lock_ = -1;  // a descriptor; -1: the server keeps nothing
};

inline constexpr char kSnapshotSuffix[] = ".snapshot";
// The paths of the snapshots in a folder, by name; none where there is no folder. UNAVAILABLE: it cannot be read.
absl::StatusOr<std::vector<std::string>> SnapshotsIn(const std::string& folder);
// The same of files whose names end with `suffix`.
absl::StatusOr<std::vector<std::string>> FilesIn(const std::string& folder, absl::string_view suffix);
// Makes a folder, and those above it, for the server's user alone. UNAVAILABLE.
absl::Status MakeFolder(const std::string& folder);

}  // namespace seine

#endif  // SEINE_SERVICE_SNAPSHOTS_FILES_SNAPSHOT_FOLDER_H_
