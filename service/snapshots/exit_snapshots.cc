#include "service/snapshots/exit_snapshots.h"

#include <algorithm>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "index/snapshot/snapshot_file.h"
#include "kernels/stop.h"
#include "service/access/tenant.h"
#include "service/catalog.h"
#include "service/event_log.h"
#include "service/families/family_records.h"
#include "service/families/sequence_families.h"
#include "service/fields/bytes.h"
#include "service/kept_families.h"
#include "service/snapshots/exit_file.h"
#include "service/snapshots/files/exit_files.h"
#include "service/snapshots/files/snapshot_folder.h"
#include "service/under_way/in_flight.h"

namespace seine {
namespace {

std::string Named(absl::string_view tenant, absl::string_view index) {
  return tenant.empty() ? std::string(index) : absl::StrCat(tenant, "/", index);
}

IndexRecords RecordsOf(const Core& core, const Index& index) {
  if (core.family_records == nullptr) return {};
  return core.family_records->Read(index.config().tenant, index.config().name);
}

void PassOverFolder(Core* core, const ExitFiles::OfIndex& index, const std::string& folder, const absl::Status& why) {
  core->log.Failed(absl::StrCat("snapshots passed over: ", folder), why);
  core->exit_files.PassOverFolder(index);
}

// One family. A failure is counted and told, and others go on. A family that is here is no older than its record.
absl::StatusOr<SnapshotInfo> WriteOne(Core* core, const Index& index, const SequenceHandle& handle,
                                      const IndexRecords& records, const std::string& path) {
  const auto generation_of = [&](absl::string_view family) {
    const FamilyKey key{index.config().tenant, index.config().name, family};
    return std::max(core->families.Generation(key), records.Generation(family));
  };
  absl::StatusOr<SnapshotInfo> info = absl::ResourceExhaustedError("out of memory");
  try {
    info = WriteExitFile(index, handle, path, generation_of, &core->exit_files.files());
  } catch (const std::bad_alloc&) {
  }
  core->snapshot_counts.Wrote(info.status(), info.ok() ? info->bytes : 0);
  if (!info.ok()) core->log.Failed(absl::StrCat("snapshot at the end: ", path), info.status());
  return info;
}

// Whether the folder holds nothing but what this end has written, so that no older copy of a family is left.
bool HoldsOnly(const std::string& folder, const std::set<std::string>& written) {
  const absl::StatusOr<std::vector<std::string>> paths = SnapshotsIn(folder);
  return paths.ok() &&
         std::all_of(paths->begin(), paths->end(), [&](const auto& path) { return written.contains(path); });
}

bool WriteIndex(Core* core, const Index& index) {
  const ExitFiles::OfIndex key(index.config().tenant, index.config().name);
  const std::string folder = core->snapshots->ExitFolder(key.first, key.second);
  const std::vector<SequenceHandle> families = index.Families();
  if (!families.empty()) {
    if (absl::Status s = MakeFolder(folder); !s.ok()) {
      core->log.Failed(absl::StrCat("snapshot at the end: ", folder), s);
      return false;
    }
  }
  const absl::StatusOr<std::vector<ExitFile>> before = ExitFilesIn(folder);
  if (!before.ok()) core->log.Failed(absl::StrCat("snapshot at the end: ", folder), before.status());
  const uint64_t end = BeginEnd(before.value_or(std::vector<ExitFile>()));
  const IndexRecords records = RecordsOf(*core, index);
  std::set<std::string> written, held;
  for (const SequenceHandle& handle : families) {
    const std::string family = core->exit_files.FamilyOf(key, handle.generation);
    const std::string path = ExitPath(folder, end, family);
    const absl::StatusOr<SnapshotInfo> info = WriteOne(core, index, handle, records, path);
    if (!info.ok()) continue;
    core->exit_files.Written(key, path, family, info->sequences);
    written.insert(path);
    for (const SequenceInfo& one : info->sequences) held.insert(one.handle.id);
  }
  const bool all = written.size() == families.size();
  if (all && !core->exit_files.AllWritten(key, written, held)) {
    core->log.Failed(
        absl::StrCat("snapshot at the end: ", folder),
        absl::UnavailableError("what was deleted since the start would be back: a file that has it cannot be "
                               "removed, or its removal not written down"));
    return false;
  }
  if (all && core->family_records != nullptr && HoldsOnly(folder, written)) {
    core->family_records->Sweep(key.first, key.second);
  }
  return all;
}

// What a file that was not restored is passed over for.
PassedOver ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
      return PassedOver::kDamaged;
    case absl::StatusCode::kFailedPrecondition:
      return PassedOver::kUnfit;
    case absl::StatusCode::kAlreadyExists:
      return PassedOver::kReplaced;
    case absl::StatusCode::kResourceExhausted:
      return PassedOver::kNoRoom;
    default:
      return PassedOver::kUnreadable;
  }
}

void PassOver(Core* core, const ExitFiles::OfIndex& index, const ExitFile& file, PassedOver reason,
              const absl::Status& why) {
  core->log.Failed(absl::StrCat("snapshot passed over: ", file.path, " (", FormatBytes(file.bytes), ")"), why);
  core->exit_files.PassOver(index, file, reason);
}

// Restores one family. Absent: it is there; else why it is not.
std::optional<PassedOver> RestoreOne(Core* core, Index* index, const IndexRecords& records, const ExitFile& file,
                                     bool renamed) {
  const ExitFiles::OfIndex key(index->config().tenant, index->config().name);
  Generations generations;
  std::optional<PassedOver> moved;
  const auto accept = [&](absl::string_view family, uint64_t generation) {
    absl::Status status = records.CheckCopy(family, generation);
    if (absl::IsFailedPrecondition(status)) moved = PassedOver::kStale;
    if (absl::IsDataLoss(status)) moved = PassedOver::kDoubtful;
    return status;
  };
  absl::StatusOr<RestoreInfo> info = absl::ResourceExhaustedError("out of memory");
  try {
    info = RestoreExitFile(index, file.path, accept, &generations);
  } catch (const std::bad_alloc&) {
  }
  core->snapshot_counts.Restored(info.status(), info.ok() ? info->bytes : 0);
  if (!info.ok()) {
    const PassedOver reason = moved.value_or(ReasonOf(info.status()));
    PassOver(core, key, file, reason, info.status());
    if (reason == PassedOver::kStale) core->exit_files.Superseded(key, file);
    if (reason == PassedOver::kReplaced) core->exit_files.Replaced(key, file);
    return reason;
  }
  core->exit_files.Restored(key, file, *info, renamed);
  if (info->left_out > 0) {
    core->exit_files.Replaced(key, file);
    PassOver(core, key, file, PassedOver::kReplaced,
             absl::AlreadyExistsError(absl::StrCat(info->left_out, " of its sequences are there from elsewhere")));
  }
  for (const auto& [family, generation] : generations) {
    core->families.Arrive({index->config().tenant, index->config().name, family}, generation);
  }
  return std::nullopt;
}

// The newest state of each family that can be read. Where a newer one may be restored another time, as when memory is
// short in this run, an older one is none.
void RestoreIndex(Core* core, Index* index, const std::string& folder) {
  const ExitFiles::OfIndex key(index->config().tenant, index->config().name);
  const absl::StatusOr<std::vector<ExitFile>> files = ExitFilesIn(folder);
  if (!files.ok()) return PassOverFolder(core, key, folder, files.status());
  const IndexRecords records = RecordsOf(*core, *index);
  std::set<std::string> restored, damaged, waiting;  // families
  for (const ExitFile& file : *files) {
    if (file.replaced) {
      PassOver(core, key, file, PassedOver::kReplaced, absl::AlreadyExistsError("its sequences were made anew"));
      continue;
    }
    const bool named = !file.family.empty();
    if (named && restored.contains(file.family)) {
      core->exit_files.Superseded(key, file);
      continue;
    }
    if (named && waiting.contains(file.family)) {
      PassOver(core, key, file, PassedOver::kOlder, absl::FailedPreconditionError("a newer file of the family waits"));
      continue;
    }
    const std::optional<PassedOver> why = RestoreOne(core, index, records, file, damaged.contains(file.family));
    (!why ? restored : *why == PassedOver::kDamaged ? damaged : waiting).insert(file.family);
  }
  core->log.Snapshots(absl::StrCat("sequences of index ", Named(key.first, key.second), " restored"),
                      index->stats().num_sequences);
}

void RestoreFolder(Core* core, const SnapshotFolder::OfIndex& exit) {
  const std::shared_ptr<Index> index = core->catalog.Find(exit.tenant, exit.index);
  if (index != nullptr) return RestoreIndex(core, index.get(), exit.folder);
  const ExitFiles::OfIndex key(exit.tenant, exit.index);
  const absl::StatusOr<std::vector<ExitFile>> files = ExitFilesIn(exit.folder);
  if (!files.ok()) return PassOverFolder(core, key, exit.folder, files.status());
  const absl::Status none =
      absl::NotFoundError(absl::StrCat("there is no index ", Named(exit.tenant, exit.index), " yet"));
  for (const ExitFile& file : *files) PassOver(core, key, file, PassedOver::kNoIndex, none);
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
  core->exit_files.SetRestores();
  Unreadable unreadable;
  for (const SnapshotFolder::OfIndex& exit : core->snapshots->ExitFolders(&unreadable)) RestoreFolder(core, exit);
  for (const auto& [path, why] : unreadable) PassOverFolder(core, {}, path, why);
  return absl::OkStatus();
}

void RestoreCreated(Core* core, Index* index) {
  if (!core->exit_files.restores()) return;
  core->exit_files.Reconsider({index->config().tenant, index->config().name});
  RestoreIndex(core, index, core->snapshots->ExitFolder(index->config().tenant, index->config().name));
}

bool WriteExitSnapshots(Core* core, absl::Duration limit) {
  const StopToken token(StopToken::Clock::now() + absl::ToChronoNanoseconds(limit));
  const StopScope scope(&token);
  const SnapshotCounts& counts = core->snapshot_counts;
  const int64_t before = counts.written - counts.writes_failed;
  bool all = true;
  for (const auto& index : core->catalog.List()) {
    index->SetSlack(core->in_flight.limit_bytes());  // no call is left that would take it
    all = WriteIndex(core, *index) && all;
  }
  core->log.Snapshots("families written at the end", counts.written - counts.writes_failed - before);
  return all;
}

}  // namespace seine
