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
#include "service/families/kept_families.h"
#include "service/snapshots/exit_file.h"

namespace seine {
namespace {

std::string Named(absl::string_view tenant, absl::string_view index) {
  return tenant.empty() ? std::string(index) : absl::StrCat(tenant, "/", index);
}

IndexRecords RecordsOf(const Core& core, const Index& index) {
  if (core.family_records == nullptr) return {};
  return core.family_records->Read(index.config().tenant, index.config().name);
}

// One family. A failure is counted and told, and others go on. A family that is here is no older than its record.
bool WriteOne(Core* core, const Index& index, const SequenceHandle& handle, const IndexRecords& records,
              const std::string& path) {
  const auto generation_of = [&](absl::string_view family) {
    const FamilyKey key{index.config().tenant, index.config().name, family};
    return std::max(core->families.Generation(key), records.Generation(family));
  };
  absl::StatusOr<SnapshotInfo> info = absl::ResourceExhaustedError("out of memory");
  try {
    info = WriteExitFile(index, handle, path, generation_of);
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
  const IndexRecords records = RecordsOf(*core, index);
  std::set<std::string> written;
  bool all = true;
  for (const SequenceHandle& handle : families) {
    const std::string path = absl::StrCat(folder, "/", handle.generation, ".snapshot");
    all = WriteOne(core, index, handle, records, path) && all;
    written.insert(path);
  }
  for (const std::string& path : all ? SnapshotsIn(folder) : std::vector<std::string>()) {
    if (!written.contains(path)) unlink(path.c_str());
  }
  if (all && core->family_records != nullptr) core->family_records->Sweep(index.config().tenant, index.config().name);
  return all;
}

void RestoreOne(Core* core, Index* index, const IndexRecords& records, const std::string& path) {
  Generations generations;
  const auto accept = [&](absl::string_view family, uint64_t generation) {
    absl::Status status = records.CheckCopy(family, generation);
    if (absl::IsFailedPrecondition(status)) ++core->snapshot_counts.passed_over_stale;
    if (absl::IsDataLoss(status)) ++core->snapshot_counts.passed_over_doubtful;
    return status;
  };
  absl::StatusOr<RestoreInfo> info = absl::ResourceExhaustedError("out of memory");
  try {
    info = RestoreExitFile(index, path, accept, &generations);
  } catch (const std::bad_alloc&) {
  }
  core->snapshot_counts.Restored(info.status(), info.ok() ? info->bytes : 0);
  if (!info.ok()) return core->log.Failed(absl::StrCat("snapshot passed over: ", path), info.status());
  for (const auto& [family, generation] : generations) {
    core->families.Arrive({index->config().tenant, index->config().name, family}, generation);
  }
}

void RestoreIndex(Core* core, const SnapshotFolder::OfIndex& exit) {
  const std::shared_ptr<Index> index = core->catalog.Find(exit.tenant, exit.index);
  if (index == nullptr) {
    return core->log.Failed(absl::StrCat("snapshots passed over: ", exit.folder),
                            absl::NotFoundError(absl::StrCat("there is no index ", Named(exit.tenant, exit.index))));
  }
  const IndexRecords records = RecordsOf(*core, *index);
  for (const std::string& path : SnapshotsIn(exit.folder)) RestoreOne(core, index.get(), records, path);
  core->log.Snapshots(absl::StrCat("sequences of index ", Named(exit.tenant, exit.index), " restored"),
                      index->stats().num_sequences);
}

}  // namespace

absl::Status PrepareSnapshots(const SnapshotOptions& options, Core* core) {
  if (absl::Status s = Validate(options); !s.ok()) return s;
  if (options.folder.empty()) return absl::OkStatus();
  int removed = 0;
  auto folder = SnapshotFolder::Open(options, &removed);
  if (!folder.ok()) return folder.status();
  core->snapshots = *std::move(folder);
  core->log.Snapshots("half-written files of an earlier process removed", removed);
  if (!options.keeps()) return absl::OkStatus();
  core->family_records = std::make_unique<FamilyRecords>(*core->snapshots);
  RecallFamilies(*core);
  if (!options.restore_on_start) return absl::OkStatus();
  for (const SnapshotFolder::OfIndex& exit : core->snapshots->ExitFolders()) RestoreIndex(core, exit);
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
