// Writes a family of sequences, and makes one of what was written: a part of Sequences (sequences.h).
//
// A sequence is written from a copy that nobody else knows. Taking it holds all layers shared for as long as it takes
// to count the pieces; then each for the copy of its last ones. From then on the copy never changes, and no lock is
// held.
#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <set>
#include <shared_mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "index/bytes/pace.h"
#include "index/bytes/piece_runner.h"
#include "index/bytes/state_reader.h"
#include "index/bytes/state_writer.h"
#include "index/calls/sequences.h"
#include "index/sequence/layer_lock.h"
#include "index/snapshot/snapshot_base.h"
#include "index/snapshot/snapshot_format.h"
#include "index/snapshot/snapshot_settings.h"
#include "kernels/huge_pages.h"
#include "profile/field_error.h"

namespace seine {

namespace {

constexpr uint64_t kMaxGeneration = uint64_t{1} << 62;

SnapshotName NewName() {
  std::random_device chance;
  SnapshotName name;
  for (uint8_t& byte : name) byte = static_cast<uint8_t>(chance());
  return name;
}

// What adds to a base is little, and a family may be frozen for it: it is written and read without pauses, at the usual
// priority.
bool AddsTo(const SnapshotName& base) { return base != SnapshotName{}; }

absl::Status IdInUse(const std::string& id) {
  return FieldError(absl::StatusCode::kAlreadyExists, "id", absl::StrCat("'", id, "' is already in use"));
}

absl::Status CheckChain(const SnapshotChain& chain, const ReadBase* base) {
  if (chain.base == (base == nullptr ? SnapshotName{} : base->name)) return absl::OkStatus();
  return absl::FailedPreconditionError(chain.base == SnapshotName{} ? "the snapshot stands alone: it adds to no other"
                                       : base == nullptr
                                           ? "the snapshot adds to another one, which has to be restored with it"
                                           : "the snapshot adds to another one than what is held");
}

}  // namespace

void SaveSequence(const Sequence& sequence, StateWriter* writer) {
  writer->PutString(sequence.id);
  writer->Put(sequence.generation);
  for (const auto& layer : sequence.layers) layer->Save(writer);
}

// Codes on a device would have to be brought to the host, which nobody does yet.
absl::Status Sequences::CheckSnapshots() const {
  if (!context_.backend->codes_on_device()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the codes of this index lie in the memory of the ", context_.backend->name(),
                   " device; snapshots are made and restored where they lie in the host's (backend cpu)"));
}

std::vector<SequenceRef> Sequences::FamilyOf(uint64_t number) const {
  std::vector<SequenceRef> family;
  {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    for (const auto& [id, other] : sequences_) {
      if (other->family == number) family.push_back(other);
    }
  }
  std::sort(family.begin(), family.end(), [](const auto& a, const auto& b) { return a->generation < b->generation; });
  return family;
}

std::vector<SequenceHandle> Sequences::Families() const {
  std::map<uint64_t, SequenceHandle> oldest;  // by family
  {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    for (const auto& [id, sequence] : sequences_) {
      SequenceHandle& found = oldest[sequence->family];
      if (found.generation == 0 || sequence->generation < found.generation) found = {id, sequence->generation};
    }
  }
  std::vector<SequenceHandle> handles;
  for (auto& [family, handle] : oldest) handles.push_back(std::move(handle));
  return handles;
}

absl::StatusOr<SequenceRef> Sequences::CopyOf(const Sequence& source) const {
  absl::StatusOr<SequenceRef> copy = New();
  if (!copy.ok()) return copy;
  (*copy)->id = source.id;
  (*copy)->generation = source.generation;
  {
    std::vector<ReadLock> locks;
    for (size_t i = 0; i < source.layers.size(); ++i) {
      absl::StatusOr<ReadLock> lock = ReadLock::Of(*source.layers[i]);
      if (!lock.ok()) return lock.status();
      locks.push_back(*std::move(lock));
    }
    for (size_t i = 0; i < source.layers.size(); ++i) (*copy)->layers[i]->ShareFrom(*source.layers[i]);
  }
  for (size_t i = 0; i < source.layers.size(); ++i) {
    const auto lock = ReadLock::Of(*source.layers[i]);
    if (!lock.ok()) return lock.status();
    if (absl::Status s = (*copy)->layers[i]->TakeApart(*source.layers[i]); !s.ok()) return s;
    (*copy)->layers[i]->Publish();
  }
  return copy;
}

absl::StatusOr<std::vector<SequenceRef>> Sequences::CopyFamily(const SequenceHandle& handle,
                                                               SnapshotScope scope) const {
  const absl::StatusOr<SequenceRef> sequence = Find(handle);
  if (!sequence.ok()) return sequence.status();
  std::vector<SequenceRef> family = {*sequence};
  if (scope == SnapshotScope::kFamily) family = FamilyOf((*sequence)->family);
  for (SequenceRef& member : family) {
    // What was forked from a sequence that is deleted under this call may have been spilled meanwhile.
    absl::StatusOr<SequenceRef> copy = FromDisk({member->id, member->generation}, "handle", member);
    if (copy.ok()) copy = CopyOf(**copy);
    if (!copy.ok()) return copy.status();
    member = *std::move(copy);
  }
  return family;
}

absl::StatusOr<SnapshotInfo> Sequences::Snapshot(const SequenceHandle& handle, SnapshotScope scope, ByteSink* sink,
                                                 WrittenBase* base) const {
  if (absl::Status s = CheckSnapshots(); !s.ok()) return s;
  const absl::StatusOr<std::vector<SequenceRef>> family = CopyFamily(handle, scope);
  if (!family.ok()) return family.status();
  StateWriter writer(base == nullptr ? WrittenObjects() : base->objects);
  SnapshotInfo info;
  writer.Put<uint64_t>(family->size());
  for (const SequenceRef& member : *family) {
    SaveSequence(*member, &writer);
    info.sequences.push_back(Describe(*member));
  }
  const SnapshotChain chain = base == nullptr ? SnapshotChain() : SnapshotChain{NewName(), base->name};
  const bool adds = AddsTo(chain.base);
  const auto write = [&] {
    const absl::StatusOr<int64_t> bytes =
        WriteSnapshot(SettingsText(context_), writer, sink, adds ? 0 : kSnapshotPauses, base ? &chain : nullptr);
    if (bytes.ok()) info.bytes = *bytes;
    return bytes.status();
  };
  if (absl::Status s = adds ? write() : RunOnOwnThread("seine-snapshot", write); !s.ok()) return s;
  if (base == nullptr) return info;
  base->copies.insert(base->copies.end(), family->begin(), family->end());
  base->objects = writer.TakeObjects();
  base->name = chain.name;
  return info;
}

absl::StatusOr<RestoreInfo> Sequences::Restore(ByteSource* source, const RestoreParams& restore) {
  if (absl::Status s = CheckSnapshots(); !s.ok()) return s;
  if (!restore.id.empty()) {
    if (absl::Status s = CheckNewId(restore.id, "id"); !s.ok()) return s;
  }
  RestoreInfo info;  // made first: nothing fails once the sequences are there
  ReadBase held;
  absl::StatusOr<std::vector<SequenceRef>> family = ReadFamily(source, restore, &info, restore.hold ? &held : nullptr);
  if (!family.ok()) return family.status();
  if (restore.leave_out_taken) {
    if (absl::Status s = LeaveOutTaken(&*family, &info); !s.ok()) return s;
  }
  if (restore.accept) {
    if (absl::Status s = restore.accept(info.sequences); !s.ok()) return s;
  }
  if (restore.hold) {
    if (absl::Status s = CheckNewIds(*family); !s.ok()) return s;
    for (SequenceInfo& one : info.sequences) one.handle.generation = 0;
    held.sequences = *family;
    *restore.base = std::move(held);
    return info;
  }
  if (absl::Status s = InsertFamily(*family, &info); !s.ok()) return s;
  return info;
}

absl::StatusOr<RestoreInfo> Sequences::RestoreHeld(const RestoreParams& restore) {
  const std::vector<SequenceRef>& family = restore.base->sequences;
  if (family.empty()) return absl::FailedPreconditionError("no sequences are held");
  RestoreInfo info;
  for (const SequenceRef& sequence : family) info.sequences.push_back(Describe(*sequence));
  if (restore.admit) {
    if (absl::Status s = restore.admit(static_cast<int64_t>(family.size())); !s.ok()) return s;
  }
  if (restore.accept) {
    if (absl::Status s = restore.accept(info.sequences); !s.ok()) return s;
  }
  if (absl::Status s = InsertFamily(family, &info); !s.ok()) return s;
  return info;
}

// Reads whole sequences, which nobody else knows yet. `held`, where given, gets what they share with a later snapshot.
absl::StatusOr<std::vector<SequenceRef>> Sequences::ReadFamily(ByteSource* source, const RestoreParams& restore,
                                                               RestoreInfo* info, ReadBase* held) const {
  SnapshotReader snapshot(source);
  if (absl::Status s = snapshot.Open(); !s.ok()) return s;
  if (absl::Status s = CheckSettings(snapshot.settings(), SettingsText(context_)); !s.ok()) return s;
  info->settings = snapshot.settings();
  if (absl::Status s = CheckChain(snapshot.chain(), restore.base); !s.ok()) return s;
  StateReader reader(snapshot.version(), snapshot.TakeState(), snapshot.part_bytes(), &context_.ledger,
                     restore.base == nullptr ? ReadObjects() : restore.base->objects);
  absl::StatusOr<std::vector<SequenceRef>> family = std::vector<SequenceRef>();  // outlives the scope
  HugePageScope pages;
  family = LoadFamily(&reader, restore);
  if (!family.ok()) return family;
  std::function<void()> make_short;
  if (!restore.step_waits) make_short = [&pages] { pages.UseSmallPages(); };
  PieceRunner runner(restore.step_waits ? Priority::kLowest : Priority::kGaps, make_short);
  const bool adds = AddsTo(snapshot.chain().base);
  if (absl::Status s = snapshot.ReadParts(reader.parts(), adds ? nullptr : &runner); !s.ok()) return s;
  for (const SequenceRef& sequence : *family) {
    for (const auto& layer : sequence->layers) {
      if (absl::Status s = layer->Finish(); !s.ok()) return s;
    }
  }
  if (held != nullptr) {
    held->name = snapshot.chain().name;
    held->objects = reader.TakeObjects();
  }
  info->bytes = snapshot.bytes();
  for (const SequenceRef& sequence : *family) info->sequences.push_back(Describe(*sequence));
  return family;
}

absl::StatusOr<std::vector<SequenceRef>> Sequences::LoadFamily(StateReader* reader,
                                                               const RestoreParams& restore) const {
  std::vector<SequenceRef> family;
  const auto count = reader->Get<uint64_t>();
  reader->Check(count >= 1 && count <= kMaxSections, "it holds no sequence");
  if (reader->ok() && !restore.id.empty() && count > 1) {
    return BadField("id", "the snapshot holds ", count, " sequences, which keep their ids");
  }
  if (reader->ok() && restore.admit) reader->Fail(restore.admit(static_cast<int64_t>(count)));
  for (uint64_t i = 0; i < count && reader->ok(); ++i) {
    absl::StatusOr<SequenceRef> sequence = New();
    if (!sequence.ok()) return sequence.status();
    (*sequence)->id = reader->GetString();
    (*sequence)->generation = reader->Get<uint64_t>();
    reader->Check(IsSequenceId((*sequence)->id) && (*sequence)->generation <= kMaxGeneration, "an id cannot be one");
    if (!restore.id.empty()) (*sequence)->id = restore.id;
    for (const auto& layer : (*sequence)->layers) {
      if (reader->ok()) layer->Load(reader);
    }
    family.push_back(*std::move(sequence));
  }
  reader->Check(reader->AtEnd(), "there is more than it says");
  if (!reader->ok()) return reader->status();
  return family;
}

// Those of a family that is held would be in use once it is there.
absl::Status Sequences::CheckNewIds(const std::vector<SequenceRef>& family) const {
  std::set<absl::string_view> ids;
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  for (const SequenceRef& sequence : family) {
    if (sequences_.contains(sequence->id) || !ids.insert(sequence->id).second) return IdInUse(sequence->id);
  }
  return absl::OkStatus();
}

absl::Status Sequences::LeaveOutTaken(std::vector<SequenceRef>* family, RestoreInfo* info) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  const auto taken = [&](const std::string& id) { return sequences_.contains(id); };
  const std::string first = family->front()->id;
  info->left_out = std::erase_if(*family, [&](const SequenceRef& one) { return taken(one->id); });
  std::erase_if(info->sequences, [&](const SequenceInfo& one) { return taken(one.handle.id); });
  return family->empty() ? IdInUse(first) : absl::OkStatus();
}

// *info gets the sequences' generations.
absl::Status Sequences::InsertFamily(const std::vector<SequenceRef>& family, RestoreInfo* info) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  for (const SequenceRef& sequence : family) last_generation_ = std::max(last_generation_, sequence->generation);
  const uint64_t first = last_generation_ + 1;
  size_t done = 0;
  try {
    for (; done < family.size(); ++done) {
      info->sequences[done].handle.generation = family[done]->generation = ++last_generation_;
      family[done]->family = first;
      if (!sequences_.emplace(family[done]->id, family[done]).second) break;
    }
  } catch (const std::bad_alloc&) {
    for (size_t i = 0; i < done; ++i) sequences_.erase(family[i]->id);
    throw;
  }
  if (done == family.size()) return absl::OkStatus();
  for (size_t i = 0; i < done; ++i) sequences_.erase(family[i]->id);
  return IdInUse(family[done]->id);
}

}  // namespace seine
