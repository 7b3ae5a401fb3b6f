// Snapshot and Restore of SequenceService.
#include "absl/strings/str_cat.h"
#include "index/snapshot/snapshot_file.h"
#include "service/calls/calls.h"
#include "service/calls/convert/convert.h"
#include "service/calls/convert/wire_enum.h"
#include "service/calls/error.h"
#include "service/calls/validate.h"
#include "service/families/kept_families.h"

namespace seine {
namespace {

// Where the request's file lies.
absl::StatusOr<std::string> PathOf(const Core& core, const std::string& file, bool make) {
  if (core.snapshots == nullptr) {
    return FieldError("SNAPSHOTS_OFF", "file", "the server keeps no snapshots; it was started without snapshots.dir",
                      absl::StatusCode::kFailedPrecondition);
  }
  return core.snapshots->PathOf(CurrentTenant(), file, make);
}

template <typename Sequences, typename Response>
void SetSequences(const Sequences& sequences, const std::string& index, Response* response) {
  for (const SequenceInfo& sequence : sequences) ToProto(sequence, index, response->add_sequences());
}

}  // namespace

absl::Status Snapshot(Core& core, const v1::SnapshotRequest& request, v1::SnapshotResponse* response) {
  SequenceHandle handle;
  auto index = ResolveHandle(core, request.handle(), "handle", &handle);
  if (!index.ok()) return index.status();
  SnapshotScope scope = SnapshotScope::kFamily;
  if (auto s = FromWire(request.scope(), &v1::SnapshotScope_IsValid, "scope", &scope); !s.ok()) return s;
  const auto path = PathOf(core, request.file(), /*make=*/true);
  if (!path.ok()) return path.status();
  const auto info = SnapshotToFile(**index, handle, scope, *path);
  core.snapshot_counts.Wrote(info.status(), info.ok() ? info->bytes : 0);
  if (!info.ok()) return Explain(info.status(), "");
  response->set_bytes(info->bytes);
  SetSequences(info->sequences, request.handle().index(), response);
  return absl::OkStatus();
}

absl::Status Restore(Core& core, const v1::RestoreRequest& request, v1::RestoreResponse* response) {
  auto index = FindIndex(core, request.index(), "index");
  if (!index.ok()) return index.status();
  if (!request.id().empty()) {
    if (auto s = CheckId(request.id(), "id"); !s.ok()) return s;
  }
  if (core.draining) return Draining();
  const auto path = PathOf(core, request.file(), /*make=*/false);
  if (!path.ok()) return path.status();
  std::unique_lock<std::mutex> making;  // until the sequences are there
  RestoreParams params;
  params.id = request.id();
  const auto key = [&](const SequenceInfo& sequence) {
    return FamilyKey{CurrentTenant(), request.index(), FamilyOfId(sequence.handle.id)};
  };
  params.accept = [&](const std::vector<SequenceInfo>& sequences) {
    absl::Status status;
    for (const SequenceInfo& one : sequences) status.Update(core.families.CheckArrival(key(one), request.generation()));
    return status;
  };
  params.admit = [&](int64_t sequences) { return CheckRoomForSequences(core, sequences, &making); };
  const auto source = OpenFile(*path);
  if (absl::IsNotFound(source.status())) {
    return FieldError("SNAPSHOT_NOT_FOUND", "file", absl::StrCat("no such snapshot: ", Quoted(request.file())),
                      absl::StatusCode::kNotFound);
  }
  const auto info =
      source.ok() ? (*index)->Restore(source->get(), params) : absl::StatusOr<RestoreInfo>(source.status());
  core.snapshot_counts.Restored(info.status(), info.ok() ? info->bytes : 0);
  if (!info.ok()) return Explain(info.status(), "");
  if (auto s = Arrive(core, index->get(), info->sequences, request.generation()); !s.ok()) return Explain(s, "");
  response->set_bytes(info->bytes);
  SetSequences(info->sequences, request.index(), response);
  return absl::OkStatus();
}

}  // namespace seine
