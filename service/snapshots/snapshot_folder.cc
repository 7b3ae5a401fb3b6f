#include "service/snapshots/snapshot_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "index/snapshot/snapshot_file.h"
#include "service/access/wrong_setting.h"
#include "service/calls/error.h"
#include "service/calls/validate.h"

namespace seine {
namespace {

namespace fs = std::filesystem;

constexpr char kSuffix[] = ".snapshot", kOwn[] = "own", kTenant[] = "tenant-", kIndex[] = "index-", kExit[] = "at-exit";

// The folders in one; none where it cannot be read.
std::vector<fs::path> FoldersIn(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored) && !entry->is_symlink(ignored)) found.push_back(entry->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

int RemovePartialUnder(const fs::path& folder, int depth) {
  int removed = RemovePartialFiles(folder.string());
  for (const fs::path& inner : depth > 0 ? FoldersIn(folder) : std::vector<fs::path>()) {
    removed += RemovePartialUnder(inner, depth - 1);
  }
  return removed;
}

}  // namespace

absl::Status Validate(const SnapshotOptions& options) {
  if (!options.folder.empty()) return absl::OkStatus();
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

absl::StatusOr<std::unique_ptr<SnapshotFolder>> SnapshotFolder::Open(const std::string& folder, int* removed) {
  constexpr int kDepth = 3;  // tenant, at-exit, index
  absl::Status made = MakeFolder(folder);
  if (made.ok() && access(folder.c_str(), R_OK | W_OK | X_OK) != 0) made = absl::UnavailableError(strerror(errno));
  if (!made.ok()) return WrongSetting("snapshots.dir", absl::StrCat(folder, ": ", made.message()));
  *removed = RemovePartialUnder(folder, kDepth);
  return std::unique_ptr<SnapshotFolder>(new SnapshotFolder(folder));
}

std::unique_ptr<SnapshotFolder> SnapshotFolder::Anywhere() {
  return std::unique_ptr<SnapshotFolder>(new SnapshotFolder(""));
}

std::string SnapshotFolder::TenantFolder(absl::string_view tenant) const {
  return tenant.empty() ? absl::StrCat(folder_, "/", kOwn) : absl::StrCat(folder_, "/", kTenant, tenant);
}

// No name leads out of the folder: it has no slash, and a suffix is added to it.
absl::StatusOr<std::string> SnapshotFolder::PathOf(absl::string_view tenant, const std::string& name, bool make) const {
  if (folder_.empty() && !name.empty()) return name;
  if (absl::Status s = CheckName(name, "file"); !s.ok()) return s;
  const std::string folder = TenantFolder(tenant);
  if (make) {
    if (absl::Status s = MakeFolder(folder); !s.ok()) return s;
  }
  return absl::StrCat(folder, "/", name, kSuffix);
}

std::string SnapshotFolder::ExitFolder(absl::string_view tenant, absl::string_view index) const {
  return absl::StrCat(TenantFolder(tenant), "/", kExit, "/", kIndex, index);
}

std::vector<SnapshotFolder::Exit> SnapshotFolder::ExitFolders() const {
  std::vector<Exit> found;
  for (const fs::path& tenant : FoldersIn(folder_)) {
    const std::string name = tenant.filename().string();
    if (name != kOwn && !absl::StartsWith(name, kTenant)) continue;
    for (const fs::path& index : FoldersIn(tenant / kExit)) {
      const std::string index_name = index.filename().string();
      if (!absl::StartsWith(index_name, kIndex)) continue;
      found.push_back({name == kOwn ? "" : std::string(absl::StripPrefix(name, kTenant)),
                       std::string(absl::StripPrefix(index_name, kIndex)), index.string()});
    }
  }
  return found;
}

std::vector<std::string> SnapshotsIn(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (absl::EndsWith(entry->path().string(), kSuffix)) found.push_back(entry->path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace seine
