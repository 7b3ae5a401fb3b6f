#include "service/snapshots/exit_snapshots.h"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "index/snapshot/snapshot_file.h"
#include "kernels/stop.h"
#include "service/access/tenant.h"

namespace seine {
namespace {

std::string Named(absl::string_view tenant, absl::string_view index) {
  return tenant.empty() ? std::string(index) : absl::StrCat(tenant, "/", index);
}

// One family. A failure is counted and told, and others go on.
bool WriteOne(Core* core, const Index& index, const SequenceHandle& handle, const std::string& path) {
  absl::StatusOr<SnapshotInfo> info = absl::ResourceExhaustedError("out of memory");
  try {
    info = SnapshotToFile(index, handle, SnapshotScope::kFamily, path);
  } catch (const std::bad_alloc&) {
  }
  core->snapshot_counts.Wrote(info.status(), info.ok() ? info->bytes : 0);
  if (!info.ok()) core->log.Failed(absl::StrCat("snapshot at the end: ", path), info.status());
  return info.ok();
}

bool WriteIndex(Core* core, const Index& index) {
  const std::string folder = core->snapshots->ExitFolder(index.config().tenant, index.config().name);
  const std::vector<SequenceHandle> families = index.Families();
  if (!families.empty()) {
    if (absl::Status s = MakeFolder(folder); !s.ok()) {
      core->log.Failed(absl::StrCat("snapshot at the end: ", folder), s);
      return false;
    }
  }
  std::set<std::string> written;
  bool all = true;
  for (const SequenceHandle& handle : families) {
    const std::string path = absl::StrCat(folder, "/", handle.generation, ".snapshot");
    all = WriteOne(core, index, handle, path) && all;
    written.insert(path);
  }
  for (const std::string& path : all ? SnapshotsIn(folder) : std::vector<std::string>()) {
    if (!written.contains(path)) unlink(path.c_str());
  }
  return all;
}

void RestoreOne(Core* core, Index* index, const std::string& path) {
  absl::StatusOr<RestoreInfo> info = absl::ResourceExhaustedError("out of memory");
  try {
    info = RestoreFromFile(index, {}, path);
  } catch (const std::bad_alloc&) {
  }
  core->snapshot_counts.Restored(info.status(), info.ok() ? info->bytes : 0);
  if (!info.ok()) core->log.Failed(absl::StrCat("snapshot passed over: ", path), info.status());
}

}  // namespace

absl::Status PrepareSnapshots(const SnapshotOptions& options, Core* core) {
  if (absl::Status s = Validate(options); !s.ok()) return s;
  if (options.folder.empty()) return absl::OkStatus();
  int removed = 0;
  auto folder = SnapshotFolder::Open(options.folder, &removed);
  if (!folder.ok()) return folder.status();
  core->snapshots = *std::move(folder);
  core->log.Snapshots("half-written files of an earlier process removed", removed);
  if (!options.restore_on_start) return absl::OkStatus();
  for (const SnapshotFolder::Exit& exit : core->snapshots->ExitFolders()) {
    const std::shared_ptr<Index> index = core->catalog.Find(exit.tenant, exit.index);
    if (index == nullptr) {
      core->log.Failed(absl::StrCat("snapshots passed over: ", exit.folder),
                       absl::NotFoundError(absl::StrCat("there is no index ", Named(exit.tenant, exit.index))));
      continue;
    }
    for (const std::string& path : SnapshotsIn(exit.folder)) RestoreOne(core, index.get(), path);
    core->log.Snapshots(absl::StrCat("sequences of index ", Named(exit.tenant, exit.index), " restored"),
                        index->stats().num_sequences);
  }
  return absl::OkStatus();
}

bool WriteExitSnapshots(Core* core, absl::Duration limit) {
  const StopToken token(StopToken::Clock::now() + absl::ToChronoNanoseconds(limit));
  const StopScope scope(&token);
  const SnapshotCounts& counts = core->snapshot_counts;
  const int64_t before = counts.written - counts.writes_failed;
  bool all = true;
  for (const auto& index : core->catalog.List()) all = WriteIndex(core, *index) && all;
  core->log.Snapshots("families written at the end", counts.written - counts.writes_failed - before);
  return all;
}

}  // namespace seine
