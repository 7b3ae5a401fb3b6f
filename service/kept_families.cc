#include "service/kept_families.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "service/event_log.h"
#include "service/families/family_record.h"
#include "service/families/family_records.h"
#include "service/families/sequence_families.h"
#include "service/snapshots/files/exit_files.h"
#include "service/snapshots/files/snapshot_folder.h"

namespace seine {
namespace {

constexpr absl::Duration kLongestHome = absl::Hours(24);  // of SetFamilyState; the clock may have been set since

FamilyKey KeyOf(const IndexConfig& config, absl::string_view family) { return {config.tenant, config.name, family}; }

void RecallOne(Core& core, const FamilyKey& key, const FamilyRecord& record) {
  if (!record.moved()) return core.families.Recall(key, record.home, {});
  const absl::Duration left = std::min(record.until - absl::Now(), kLongestHome);
  if (left > absl::ZeroDuration()) core.families.Recall(key, record.home, absl::ToChronoNanoseconds(left));
}

}  // namespace

absl::Status KeepMoved(Core& core, const FamilyKey& key, const FamilyHome& home, absl::Duration limit) {
  if (core.family_records == nullptr) return absl::OkStatus();
  return core.family_records->Write(key, {std::string(key.family), home, absl::Now() + limit});
}

absl::Status Arrive(Core& core, Index* index, const std::vector<SequenceInfo>& sequences, uint64_t generation) {
  std::set<absl::string_view> families;
  for (const SequenceInfo& one : sequences) families.insert(FamilyOfId(one.handle.id));
  absl::Status kept;
  for (const absl::string_view family : families) {
    const FamilyKey key = KeyOf(index->config(), family);
    const FamilyHome here{.node = "", .address = "", .generation = core.families.GenerationOnArrival(key, generation)};
    if (core.family_records == nullptr || here.generation == 0) continue;
    kept.Update(core.family_records->Write(key, {std::string(family), here, absl::UnixEpoch()}));
  }
  if (kept.ok()) {
    for (const absl::string_view family : families) core.families.Arrive(KeyOf(index->config(), family), generation);
    return kept;
  }
  for (const SequenceInfo& one : sequences) index->DeleteSequence(one.handle).IgnoreError();
  return kept;
}

void Forget(Core& core, const FamilyKey& key) {
  core.families.Forget(key);
  if (core.family_records != nullptr) core.family_records->Remove(key);
}

// What the end has written goes first: without the records it might bring back a family that has moved.
void ForgetIndexFiles(Core& core, absl::string_view tenant, absl::string_view index) {
  if (core.family_records == nullptr) return;
  if (absl::Status s = RemoveExitFiles(core.snapshots->ExitFolder(tenant, index), &core.exit_files.files()); !s.ok()) {
    core.log.Failed(absl::StrCat("files of the deleted index ", index), s);
  }
  core.exit_files.Forget({std::string(tenant), std::string(index)});
  core.family_records->RemoveIndex(tenant, index);
}

void RecallFamilies(Core& core) {
  Unreadable unreadable;
  for (const SnapshotFolder::OfIndex& each : core.snapshots->FamilyFolders(&unreadable)) {
    const absl::StatusOr<std::vector<std::string>> copies =
        SnapshotsIn(core.snapshots->ExitFolder(each.tenant, each.index));
    if (copies.ok() && copies->empty()) core.family_records->Sweep(each.tenant, each.index);
    const IndexRecords records = core.family_records->Read(each.tenant, each.index);
    core.snapshot_counts.records_read += static_cast<int64_t>(records.families.size());
    core.snapshot_counts.records_damaged += static_cast<int64_t>(records.damaged.size());
    for (const auto& [file, why] : records.damaged) {
      core.log.Failed(absl::StrCat("family passed over: ", each.folder, "/", file), why);
    }
    for (const auto& [family, record] : records.families) RecallOne(core, {each.tenant, each.index, family}, record);
  }
  for (const auto& [folder, why] : unreadable) core.log.Failed(absl::StrCat("families passed over: ", folder), why);
  core.log.Snapshots("records of families read", core.snapshot_counts.records_read);
}

}  // namespace seine
