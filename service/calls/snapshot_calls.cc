// Snapshot and Restore of SequenceService.
#include "absl/strings/str_cat.h"
#include "index/index.h"
#include "index/snapshot/snapshot_file.h"
#include "service/access/caller.h"
#include "service/calls/calls.h"
#include "service/calls/convert/convert.h"
#include "service/calls/convert/wire_enum.h"
#include "service/families/sequence_families.h"
#include "service/fields/error.h"
#include "service/fields/names.h"
#include "service/kept_families.h"
#include "service/snapshots/files/snapshot_bases.h"
#include "service/snapshots/files/snapshot_folder.h"

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

constexpr int kMostSeconds = 3600;

absl::Status CheckSeconds(int seconds, absl::string_view field) {
  if (seconds >= 0 && seconds <= kMostSeconds) return absl::OkStatus();
  return FieldError("OUT_OF_LIMITS", field, absl::StrCat(seconds, " is not in [0, ", kMostSeconds, "]"));
}

// The base of one call: that of an earlier one, a new one, or none. What was taken goes back as it was, unless the call
// ends well.
class BaseOfCall {
 public:
  BaseOfCall(Core& core, std::shared_ptr<Index> index, const std::string& index_name)
      : bases_(core.bases), owner_{std::string(CurrentTenant()), index_name} {
    base_.index = std::move(index);
  }
  ~BaseOfCall() {
    if (!name_.empty()) bases_.GiveBack(name_, std::move(base_), {});
  }
  BaseOfCall(const BaseOfCall&) = delete;
  BaseOfCall& operator=(const BaseOfCall&) = delete;

  absl::Status Take(const std::string& name) {
    if (name.empty()) return absl::OkStatus();
    name_ = name;  // first, for it may find no memory
    absl::Status status = bases_.Take(owner_, name, &base_);
    if (!status.ok()) name_.clear();
    return status;
  }
  KeptBase* operator->() { return &base_; }

  // Keeps the base for so long; *name is its name. RESOURCE_EXHAUSTED: too many are held.
  absl::Status Keep(int seconds, std::string* name) {
    const std::chrono::seconds limit(seconds);
    if (!name_.empty()) {
      bases_.GiveBack(name_, std::move(base_), limit);
      *name = std::exchange(name_, "");
      return absl::OkStatus();
    }
    absl::StatusOr<std::string> added = bases_.Add(owner_, std::move(base_), limit);
    if (!added.ok()) return added.status();
    *name = *std::move(added);
    return absl::OkStatus();
  }
  void Drop() {
    if (!name_.empty()) bases_.Drop(owner_, std::exchange(name_, ""));
  }
  // Whether this call on the base was the last one, and is asked again; its answer then.
  bool Answer(const v1::RestoreRequest& request, v1::RestoreResponse* response) const {
    if (base_.answer.empty() || base_.file != request.file() || base_.held != (request.hold_seconds() > 0))
      return false;
    return response->ParseFromString(base_.answer);
  }
  // Where there was a base, the answer stays for whoever asks again. One that is not held on is used up.
  void Answered(const v1::RestoreRequest& request, const v1::RestoreResponse& response) {
    base_.held = request.hold_seconds() > 0;
    base_.file = request.file();
    base_.answer = response.SerializeAsString();
    if (base_.held) return;
    base_.read.reset();
    base_.index.reset();
  }

 private:
  SnapshotBases& bases_;
  const SnapshotBases::Owner owner_;
  std::string name_;  // of what was taken
  KeptBase base_;
};

absl::Status WrongBase(absl::string_view what) {
  return FieldError("WRONG_STATE", "base", what, absl::StatusCode::kFailedPrecondition);
}

// Whether the base of an earlier snapshot can be written on; a new one where one is to be kept.
absl::Status ReadyToWrite(const v1::SnapshotRequest& request, KeptBase* base) {
  if (!request.base().empty() && base->written == nullptr) return WrongBase("is what Restore holds");
  if (request.base().empty() && request.keep_seconds() > 0) base->written = std::make_unique<WrittenBase>();
  return absl::OkStatus();
}

absl::Status ReadyToRead(const v1::RestoreRequest& request, KeptBase* base) {
  if (!request.base().empty() && base->read == nullptr) return WrongBase("is not what Restore holds");
  if (request.base().empty() && request.hold_seconds() > 0) base->read = std::make_unique<ReadBase>();
  return absl::OkStatus();
}

// Whether what a base holds is to be there, without a file.
bool IsOfHeld(const v1::RestoreRequest& request) { return request.file().empty() && !request.base().empty(); }

absl::Status CheckFields(const v1::RestoreRequest& request) {
  if (auto s = CheckSeconds(request.hold_seconds(), "hold_seconds"); !s.ok()) return s;
  const auto not_with = [&](bool given, absl::string_view field) {
    return given && IsOfHeld(request) ? FieldError("CONFLICT", field, "means nothing without a file")
                                      : absl::OkStatus();
  };
  if (auto s = not_with(request.hold_seconds() > 0, "hold_seconds"); !s.ok()) return s;
  if (request.id().empty()) return absl::OkStatus();
  if (auto s = CheckId(request.id(), "id"); !s.ok()) return s;
  return not_with(true, "id");
}

// Bounds what a restore makes: generations, and the tenant's sequences. `making` is locked until they are there.
RestoreParams ParamsOf(Core& core, const v1::RestoreRequest& request, ReadBase* base,
                       std::unique_lock<std::mutex>* making) {
  RestoreParams params;
  params.id = request.id();
  params.base = base;
  params.hold = request.hold_seconds() > 0;
  params.accept = [&](const std::vector<SequenceInfo>& sequences) {
    absl::Status status;
    for (const SequenceInfo& one : sequences) {
      status.Update(core.families.CheckArrival({CurrentTenant(), request.index(), FamilyOfId(one.handle.id)},
                                               request.generation()));
    }
    return status;
  };
  params.admit = [&core, making, hold = params.hold](int64_t sequences) {
    absl::Status status = CheckRoomForSequences(core, sequences, making);
    if (hold) *making = {};
    return status;
  };
  return params;
}

absl::StatusOr<RestoreInfo> ReadFile(Core& core, const v1::RestoreRequest& request, Index* index,
                                     const std::string& path, const RestoreParams& params) {
  const auto source = OpenFile(path);
  if (absl::IsNotFound(source.status())) {
    return FieldError("SNAPSHOT_NOT_FOUND", "file", absl::StrCat("no such snapshot: ", Quoted(request.file())),
                      absl::StatusCode::kNotFound);
  }
  auto info = source.ok() ? index->Restore(source->get(), params) : absl::StatusOr<RestoreInfo>(source.status());
  core.snapshot_counts.Restored(info.status(), info.ok() ? info->bytes : 0);
  return info;
}

}  // namespace

absl::Status Snapshot(Core& core, const v1::SnapshotRequest& request, v1::SnapshotResponse* response) {
  SequenceHandle handle;
  auto index = ResolveHandle(core, request.handle(), "handle", &handle);
  if (!index.ok()) return index.status();
  SnapshotScope scope = SnapshotScope::kFamily;
  if (auto s = FromWire(request.scope(), &v1::SnapshotScope_IsValid, "scope", &scope); !s.ok()) return s;
  if (auto s = CheckSeconds(request.keep_seconds(), "keep_seconds"); !s.ok()) return s;
  const auto path = PathOf(core, request.file(), /*make=*/true);
  if (!path.ok()) return path.status();
  BaseOfCall base(core, *index, request.handle().index());
  if (auto s = base.Take(request.base()); !s.ok()) return s;
  if (auto s = ReadyToWrite(request, base.operator->()); !s.ok()) return s;
  const auto info = SnapshotToFile(**index, handle, scope, *path, /*files=*/nullptr, base->written.get());
  core.snapshot_counts.Wrote(info.status(), info.ok() ? info->bytes : 0);
  if (!info.ok()) return Explain(info.status(), "");
  response->set_bytes(info->bytes);
  SetSequences(info->sequences, request.handle().index(), response);
  if (request.keep_seconds() > 0) return base.Keep(request.keep_seconds(), response->mutable_base());
  base.Drop();
  return absl::OkStatus();
}

absl::Status Restore(Core& core, const v1::RestoreRequest& request, v1::RestoreResponse* response) {
  auto index = FindIndex(core, request.index(), "index");
  if (!index.ok()) return index.status();
  if (auto s = CheckFields(request); !s.ok()) return s;
  const bool from_file = !IsOfHeld(request);
  if (core.draining && from_file) return Draining();
  std::string path;
  if (from_file) {
    auto found = PathOf(core, request.file(), /*make=*/false);
    if (!found.ok()) return found.status();
    path = *std::move(found);
  }
  BaseOfCall base(core, *index, request.index());
  if (auto s = base.Take(request.base()); !s.ok()) return s;
  if (base.Answer(request, response)) return absl::OkStatus();
  if (auto s = ReadyToRead(request, base.operator->()); !s.ok()) return s;
  std::unique_lock<std::mutex> making;
  const RestoreParams params = ParamsOf(core, request, base->read.get(), &making);
  const auto info = from_file ? ReadFile(core, request, index->get(), path, params) : (*index)->RestoreHeld(params);
  if (!info.ok()) return Explain(info.status(), "");
  response->set_bytes(info->bytes);
  SetSequences(info->sequences, request.index(), response);
  if (params.hold) {
    response->set_base(request.base());
    if (!request.base().empty()) base.Answered(request, *response);
    return base.Keep(request.hold_seconds(), response->mutable_base());
  }
  // Where this fails a base still holds the sequences.
  if (auto s = Arrive(core, index->get(), info->sequences, request.generation()); !s.ok()) return Explain(s, "");
  base.Answered(request, *response);
  return absl::OkStatus();
}

absl::Status ReleaseBase(Core& core, const v1::ReleaseBaseRequest& request, v1::ReleaseBaseResponse* response) {
  auto index = FindIndex(core, request.index(), "index");
  if (!index.ok()) return index.status();
  if (request.base().empty()) return FieldError("EMPTY", "base", "not given");
  response->set_released(core.bases.Drop({std::string(CurrentTenant()), request.index()}, request.base()));
  return absl::OkStatus();
}

}  // namespace seine
