// Writes a family of sequences, and makes one of what was written: a part of IndexImpl (index_impl.h).
//
// A sequence is written from a copy that nobody else knows. Taking it holds all layers shared for as long as it takes
// to count the pieces; then each for the copy of its last ones. From then on the copy never changes, and no lock is
// held.
#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "index/index_impl.h"
#include "index/sequence/layer_lock.h"
#include "index/snapshot/pace.h"
#include "index/snapshot/snapshot_format.h"
#include "index/snapshot/snapshot_settings.h"
#include "index/snapshot/state_reader.h"
#include "index/snapshot/state_writer.h"
#include "profile/field_error.h"

namespace seine {

namespace {

constexpr uint64_t kMaxGeneration = uint64_t{1} << 62;

}  // namespace

void SaveSequence(const Sequence& sequence, StateWriter* writer) {
  writer->PutString(sequence.id);
  writer->Put(sequence.generation);
  for (const auto& layer : sequence.layers) layer->Save(writer);
}

// Codes on a device would have to be brought to the host, which nobody does yet.
absl::Status IndexImpl::CheckSnapshots() const {
  if (!context_.backend->codes_on_device()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the codes of this index lie in the memory of the ", context_.backend->name(),
                   " device; snapshots are made and restored where they lie in the host's (backend cpu)"));
}

std::vector<IndexImpl::SequenceRef> IndexImpl::FamilyOf(uint64_t number) const {
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

std::vector<SequenceHandle> IndexImpl::Families() const {
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

absl::StatusOr<IndexImpl::SequenceRef> IndexImpl::CopyOf(const Sequence& source) const {
  absl::StatusOr<SequenceRef> copy = NewSequence();
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

absl::StatusOr<SnapshotInfo> IndexImpl::Snapshot(const SequenceHandle& handle, SnapshotScope scope,
                                                 ByteSink* sink) const {
  if (absl::Status s = CheckSnapshots(); !s.ok()) return s;
  const absl::StatusOr<SequenceRef> sequence = Find(handle);
  if (!sequence.ok()) return sequence.status();
  std::vector<SequenceRef> family = {*sequence};
  if (scope == SnapshotScope::kFamily) family = FamilyOf((*sequence)->family);
  StateWriter writer;
  SnapshotInfo info;
  writer.Put<uint64_t>(family.size());
  for (SequenceRef& member : family) {
    // What was forked from a sequence that is deleted under this call may have been spilled meanwhile.
    absl::StatusOr<SequenceRef> copy = FromDisk({member->id, member->generation}, "handle", member);
    if (copy.ok()) copy = CopyOf(**copy);
    if (!copy.ok()) return copy.status();
    member = *std::move(copy);
    SaveSequence(*member, &writer);
    info.sequences.push_back(Describe(*member));
  }
  const auto write = [&] {
    const absl::StatusOr<int64_t> bytes = WriteSnapshot(SettingsText(context_), writer, sink);
    if (bytes.ok()) info.bytes = *bytes;
    return bytes.status();
  };
  if (absl::Status s = RunOnOwnThread(write); !s.ok()) return s;
  return info;
}

absl::StatusOr<RestoreInfo> IndexImpl::Restore(ByteSource* source, const RestoreParams& restore) {
  if (absl::Status s = CheckSnapshots(); !s.ok()) return s;
  if (!restore.id.empty()) {
    if (absl::Status s = CheckNewId(restore.id, "id"); !s.ok()) return s;
  }
  RestoreInfo info;  // made first: nothing fails once the sequences are there
  const absl::StatusOr<std::vector<SequenceRef>> family = ReadFamily(source, restore, &info);
  if (!family.ok()) return family.status();
  if (restore.accept) {
    if (absl::Status s = restore.accept(info.sequences); !s.ok()) return s;
  }
  if (absl::Status s = InsertFamily(*family); !s.ok()) return s;
  for (size_t i = 0; i < family->size(); ++i) info.sequences[i].handle.generation = (*family)[i]->generation;
  return info;
}

// Reads whole sequences, which nobody else knows yet.
absl::StatusOr<std::vector<IndexImpl::SequenceRef>> IndexImpl::ReadFamily(ByteSource* source,
                                                                          const RestoreParams& restore,
                                                                          RestoreInfo* info) const {
  SnapshotReader snapshot(source);
  if (absl::Status s = snapshot.Open(); !s.ok()) return s;
  if (absl::Status s = CheckSettings(snapshot.settings(), SettingsText(context_)); !s.ok()) return s;
  StateReader reader(snapshot.version(), snapshot.TakeState(), snapshot.part_bytes(), &context_.ledger);
  absl::StatusOr<std::vector<SequenceRef>> family = LoadFamily(&reader, restore);
  if (!family.ok()) return family;
  const auto read = [&] { return snapshot.ReadParts(reader.parts()); };
  if (absl::Status s = RunOnOwnThread(read); !s.ok()) return s;
  for (const SequenceRef& sequence : *family) {
    for (const auto& layer : sequence->layers) {
      if (absl::Status s = layer->Finish(); !s.ok()) return s;
    }
  }
  info->bytes = snapshot.bytes();
  for (const SequenceRef& sequence : *family) info->sequences.push_back(Describe(*sequence));
  return family;
}

absl::StatusOr<std::vector<IndexImpl::SequenceRef>> IndexImpl::LoadFamily(StateReader* reader,
                                                                          const RestoreParams& restore) const {
  std::vector<SequenceRef> family;
  const auto count = reader->Get<uint64_t>();
  reader->Check(count >= 1 && count <= kMaxSections, "it holds no sequence");
  if (reader->ok() && !restore.id.empty() && count > 1) {
    return BadField("id", "the snapshot holds ", count, " sequences, which keep their ids");
  }
  if (reader->ok() && restore.admit) reader->Fail(restore.admit(static_cast<int64_t>(count)));
  for (uint64_t i = 0; i < count && reader->ok(); ++i) {
    absl::StatusOr<SequenceRef> sequence = NewSequence();
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

absl::Status IndexImpl::InsertFamily(const std::vector<SequenceRef>& family) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  for (const SequenceRef& sequence : family) last_generation_ = std::max(last_generation_, sequence->generation);
  const uint64_t first = last_generation_ + 1;
  size_t done = 0;
  try {
    for (; done < family.size(); ++done) {
      family[done]->generation = ++last_generation_;
      family[done]->family = first;
      if (!sequences_.emplace(family[done]->id, family[done]).second) break;
    }
  } catch (const std::bad_alloc&) {
    for (size_t i = 0; i < done; ++i) sequences_.erase(family[i]->id);
    throw;
  }
  if (done == family.size()) return absl::OkStatus();
  for (size_t i = 0; i < done; ++i) sequences_.erase(family[i]->id);
  return FieldError(absl::StatusCode::kAlreadyExists, "id", absl::StrCat("'", family[done]->id, "' is already in use"));
}

}  // namespace seine
