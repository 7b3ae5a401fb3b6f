#include "service/snapshots/files/snapshot_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "index/bytes/file_ops.h"
#include "index/bytes/files.h"
#include "service/access/wrong_setting.h"
#include "service/fields/error.h"
#include "service/fields/names.h"

namespace seine {
namespace {

namespace fs = std::filesystem;

constexpr char kOwn[] = "own", kTenant[] = "tenant-", kIndex[] = "index-", kNode[] = "node-";
constexpr char kExit[] = "at-exit", kFamilies[] = "families", kLock[] = "/lock";

absl::Status CannotRead(const std::error_code& error) {
  return absl::UnavailableError(absl::StrCat("the folder cannot be read: ", error.message()));
}

// What is in a folder; nothing where there is none. `unreadable`, where given, gets it if it cannot be read.
std::vector<fs::directory_entry> EntriesOf(const fs::path& folder, Unreadable* unreadable) {
  std::vector<fs::directory_entry> found;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) found.push_back(*entry);
  if (error && error != std::errc::no_such_file_or_directory && unreadable != nullptr) {
    unreadable->emplace_back(folder.string(), CannotRead(error));
  }
  return found;
}

// The folders in one, by name, with those that a link leads to.
std::vector<fs::path> FoldersIn(const fs::path& folder, Unreadable* unreadable = nullptr) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : EntriesOf(folder, unreadable)) {
    std::error_code error;
    if (entry.is_directory(error)) found.push_back(entry.path());
    if (error && unreadable != nullptr) unreadable->emplace_back(entry.path().string(), CannotRead(error));
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Whether a folder of that name may be one of the server's; others, such as a link's, are none of its business.
bool IsOwn(const std::string& name) {
  for (const char* own : {kOwn, kExit, kFamilies}) {
    if (name == own) return true;
  }
  return absl::StartsWith(name, kTenant) || absl::StartsWith(name, kIndex) || absl::StartsWith(name, kNode);
}

int RemovePartialUnder(const fs::path& folder, int depth) {
  int removed = RemovePartialFiles(folder.string());
  for (const fs::path& inner : depth > 0 ? FoldersIn(folder) : std::vector<fs::path>()) {
    if (IsOwn(inner.filename().string())) removed += RemovePartialUnder(inner, depth - 1);
  }
  return removed;
}

std::string TenantFolder(const std::string& root, absl::string_view tenant) {
  return tenant.empty() ? absl::StrCat(root, "/", kOwn) : absl::StrCat(root, "/", kTenant, tenant);
}

}  // namespace

absl::Status Validate(const SnapshotOptions& options) {
  if (!options.node.empty()) {
    if (absl::Status s = CheckName(options.node, "snapshots.node"); !s.ok()) {
      return absl::InvalidArgumentError(s.message());
    }
  }
  if (!options.folder.empty()) return absl::OkStatus();
  if (!options.node.empty()) return WrongSetting("snapshots.node", "needs snapshots.dir");
  if (options.at_exit) return WrongSetting("snapshots.at_exit", "needs snapshots.dir");
  if (options.restore_on_start) return WrongSetting("snapshots.restore_on_start", "needs snapshots.dir");
  return absl::OkStatus();
}

void SnapshotCounts::Wrote(const absl::Status& status, int64_t bytes) {
  written.fetch_add(1, std::memory_order_relaxed);
  if (!status.ok()) writes_failed.fetch_add(1, std::memory_order_relaxed);
  if (status.ok()) bytes_written.fetch_add(bytes, std::memory_order_relaxed);
}

void SnapshotCounts::Restored(const absl::Status& status, int64_t bytes) {
  restored.fetch_add(1, std::memory_order_relaxed);
  if (!status.ok()) restores_failed.fetch_add(1, std::memory_order_relaxed);
  if (status.ok()) bytes_restored.fetch_add(bytes, std::memory_order_relaxed);
}

absl::Status MakeFolder(const std::string& folder) {
  const fs::path path(folder);
  if (path.has_parent_path() && path.parent_path() != path) {
    std::error_code error;
    if (!fs::is_directory(path.parent_path(), error)) {
      if (absl::Status s = MakeFolder(path.parent_path().string()); !s.ok()) return s;
    }
  }
  std::error_code error;
  if (mkdir(folder.c_str(), 0700) == 0 || (errno == EEXIST && fs::is_directory(path, error))) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the folder of snapshots cannot be made: ", strerror(errno)));
}

SnapshotFolder::SnapshotFolder(std::string folder, absl::string_view node)
    : folder_(std::move(folder)), root_(node.empty() ? folder_ : absl::StrCat(folder_, "/", kNode, node)) {}

SnapshotFolder::~SnapshotFolder() {
  if (lock_ >= 0) close(lock_);
}

absl::StatusOr<std::unique_ptr<SnapshotFolder>> SnapshotFolder::Open(const SnapshotOptions& options, int* removed) {
  constexpr int kDepth = 4;  // node, tenant, at-exit, index
  const std::string& folder = options.folder;
  absl::Status made = MakeFolder(folder);
  if (made.ok() && access(folder.c_str(), R_OK | W_OK | X_OK) != 0) made = absl::UnavailableError(strerror(errno));
  if (!made.ok()) return WrongSetting("snapshots.dir", absl::StrCat(folder, ": ", made.message()));
  std::unique_ptr<SnapshotFolder> opened(new SnapshotFolder(folder, options.node));
  if (options.keeps()) {
    if (absl::Status s = opened->Lock(); !s.ok()) return s;
    if (!options.node.empty()) opened->TakeOver();
  }
  *removed = RemovePartialUnder(folder, kDepth);
  return opened;
}

absl::Status SnapshotFolder::Lock() {
  if (absl::Status s = MakeFolder(root_); !s.ok()) return WrongSetting("snapshots.dir", s.message());
  SystemFiles().SyncFolder(folder_);  // what is written through under it lasts
  lock_ = open(absl::StrCat(root_, kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0) return WrongSetting("snapshots.dir", absl::StrCat(root_, kLock, ": ", strerror(errno)));
  if (flock(lock_, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(OneLine(absl::StrCat("snapshots.node: another server keeps its families in ",
                                                            root_, "; give each that shares it a name of its own")));
}

void SnapshotFolder::TakeOver() const {
  SnapshotFolder before(folder_);
  if (!before.Lock().ok()) return;  // a server without a name uses it
  for (const char* kind : {kExit, kFamilies}) {
    for (const OfIndex& each : before.FoldersOf(kind, nullptr)) {
      const fs::path from(each.folder), to = fs::path(root_) / from.lexically_relative(folder_);
      std::error_code error;
      if (fs::exists(to, error) || !MakeFolder(to.parent_path().string()).ok()) continue;
      if (fs::is_symlink(from, error)) {  // it may lead on from where it stands
        fs::create_directory_symlink(fs::canonical(from, error), to, error);
        if (!error) fs::remove(from, error);
      } else {
        fs::rename(from, to, error);
      }
      for (const fs::path& changed : {to, from}) SystemFiles().SyncFolder(changed.parent_path().string());
    }
  }
}

std::unique_ptr<SnapshotFolder> SnapshotFolder::Anywhere() {
  return std::unique_ptr<SnapshotFolder>(new SnapshotFolder(""));
}

// No name leads out of the folder: it has no slash, and a suffix is added to it.
absl::StatusOr<std::string> SnapshotFolder::PathOf(absl::string_view tenant, const std::string& name, bool make) const {
  if (folder_.empty() && !name.empty()) return name;
  if (absl::Status s = CheckName(name, "file"); !s.ok()) return s;
  const std::string folder = TenantFolder(folder_, tenant);
  if (make) {
    if (absl::Status s = MakeFolder(folder); !s.ok()) return s;
  }
  return absl::StrCat(folder, "/", name, kSnapshotSuffix);
}

std::string SnapshotFolder::ExitFolder(absl::string_view tenant, absl::string_view index) const {
  return absl::StrCat(TenantFolder(root_, tenant), "/", kExit, "/", kIndex, index);
}

std::string SnapshotFolder::FamilyFolder(absl::string_view tenant, absl::string_view index) const {
  return absl::StrCat(TenantFolder(root_, tenant), "/", kFamilies, "/", kIndex, index);
}

std::vector<SnapshotFolder::OfIndex> SnapshotFolder::ExitFolders(Unreadable* unreadable) const {
  return FoldersOf(kExit, unreadable);
}
std::vector<SnapshotFolder::OfIndex> SnapshotFolder::FamilyFolders(Unreadable* unreadable) const {
  return FoldersOf(kFamilies, unreadable);
}

std::vector<SnapshotFolder::OfIndex> SnapshotFolder::FoldersOf(absl::string_view kind, Unreadable* unreadable) const {
  std::vector<OfIndex> found;
  for (const fs::path& tenant : FoldersIn(root_, unreadable)) {
    const std::string name = tenant.filename().string();
    if (name != kOwn && !absl::StartsWith(name, kTenant)) continue;
    for (const fs::path& index : FoldersIn(tenant / std::string(kind), unreadable)) {
      const std::string index_name = index.filename().string();
      if (!absl::StartsWith(index_name, kIndex)) continue;
      found.push_back({name == kOwn ? "" : std::string(absl::StripPrefix(name, kTenant)),
                       std::string(absl::StripPrefix(index_name, kIndex)), index.string()});
    }
  }
  return found;
}

absl::StatusOr<std::vector<std::string>> SnapshotsIn(const std::string& folder) {
  return FilesIn(folder, kSnapshotSuffix);
}

absl::StatusOr<std::vector<std::string>> FilesIn(const std::string& folder, absl::string_view suffix) {
  std::vector<std::string> found;
  Unreadable unreadable;
  for (const fs::directory_entry& entry : EntriesOf(folder, &unreadable)) {
    if (absl::EndsWith(entry.path().string(), suffix)) found.push_back(entry.path().string());
  }
  if (!unreadable.empty()) return unreadable.front().second;
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace seine
