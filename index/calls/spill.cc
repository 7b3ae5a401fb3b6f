// Writes a family that no call works on, drops it from memory, and brings it back: a part of Sequences (sequences.h).
//
// A spilled sequence stays in the map under its id and generation, without layers. Whoever finds it there brings the
// family back first. While it is being written others wait for that.
#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "index/bytes/files.h"
#include "index/bytes/state_writer.h"
#include "index/calls/sequences.h"
#include "index/idle/spilled_family.h"
#include "index/sequence/layer_lock.h"
#include "index/snapshot/snapshot_format.h"
#include "index/snapshot/snapshot_settings.h"
#include "index/stop_status.h"
#include "kernels/stop.h"

namespace seine {

namespace {

using LayerLocks = std::vector<std::shared_lock<FairMutex>>;

// Holds all layers shared. None where the reencoder, which no call waits for, works on one of them: it may be waiting
// for room itself.
LayerLocks HoldAll(const std::vector<std::shared_ptr<Sequence>>& family) try {
  LayerLocks locks;
  for (const auto& sequence : family) {
    for (const auto& layer : sequence->layers) {
      locks.emplace_back(layer->mutex(), std::try_to_lock);
      if (!locks.back().owns_lock()) return {};
    }
  }
  return locks;
} catch (const std::bad_alloc&) {
  return {};
}

FamilyNames NamesOf(const std::vector<std::shared_ptr<Sequence>>& family, const IndexConfig& config) {
  FamilyNames names{config.tenant, config.name, {}};
  for (const auto& sequence : family) names.ids.push_back(sequence->id);
  return names;
}

}  // namespace

// Codes on a device would have to be brought to the host, which nobody does yet.
void Sequences::JoinIdleTier() {
  if (context_.idle != nullptr && !context_.backend->codes_on_device()) context_.idle->Join(this);
}

std::vector<SpillingIndex::Family> Sequences::IdleFamilies() const {
  struct Use {
    int64_t last_ns = 0;
    bool idle = true;
  };
  std::map<uint64_t, Use> uses;  // by family
  {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    for (const auto& [id, sequence] : sequences_) {
      Use& use = uses[sequence->family];
      use.last_ns = std::max(use.last_ns, sequence->use.touched_ns());
      use.idle = use.idle && sequence.use_count() == 1 && sequence->spilled == nullptr;
    }
  }
  std::vector<Family> idle;
  for (const auto& [number, use] : uses) {
    if (use.idle) idle.push_back({number, use.last_ns});
  }
  return idle;
}

std::vector<SequenceRef> Sequences::StandIns(const std::vector<SequenceRef>& family) const {
  const auto file = std::make_shared<SpilledFamily>(context_.idle);
  std::vector<SequenceRef> all;
  for (const SequenceRef& sequence : family) {
    auto stand_in = std::make_shared<Sequence>();
    stand_in->id = sequence->id;
    stand_in->generation = sequence->generation;
    stand_in->family = sequence->family;
    stand_in->use.TakeOver(sequence->use);
    stand_in->spilled = std::make_unique<SpilledSequence>(SpilledSequence{file, Describe(*sequence).layer_tokens});
    all.push_back(std::move(stand_in));
  }
  return all;
}

// Puts `in` into the map where `out` stands there. False, and nothing changed, where anything but the map and `out`
// holds one of them, or the family may have got another member since `last_fork` was the last.
bool Sequences::Exchange(const std::vector<SequenceRef>& out, const std::vector<SequenceRef>& in,
                         uint64_t last_fork) const {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  if (last_fork_ != last_fork) return false;
  for (const SequenceRef& sequence : out) {
    const auto found = sequences_.find(sequence->id);
    if (found == sequences_.end() || found->second != sequence || sequence.use_count() != 2) return false;
  }
  for (const SequenceRef& sequence : in) sequences_.find(sequence->id)->second = sequence;
  return true;
}

// Puts sequences where their stand-ins are still, which `family` has afterwards; those that were deleted meanwhile stay
// so. Needs the file's mutex held. Allocates nothing, so it does not fail.
void Sequences::PutBack(std::vector<SequenceRef>* family, const SpilledFamily* file) const {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  for (SequenceRef& sequence : *family) {
    const auto found = sequences_.find(sequence->id);
    if (found == sequences_.end() || found->second->generation != sequence->generation) continue;
    const auto& spilled = found->second->spilled;
    if (spilled == nullptr || spilled->family.get() != file) continue;
    sequence->family = found->second->family;
    sequence->use.TakeOver(found->second->use);
    found->second.swap(sequence);
  }
}

absl::Status Sequences::WriteSpilled(const std::vector<SequenceRef>& family, SpilledFamily* file) const try {
  StateWriter writer;
  writer.Put<uint64_t>(family.size());
  for (const SequenceRef& sequence : family) SaveSequence(*sequence, &writer);
  const std::string settings = SettingsText(context_);
  int64_t bytes = static_cast<int64_t>(settings.size() + writer.state().size());
  for (const StateWriter::Part& part : writer.parts()) {
    for (const StateWriter::Payload& payload : part) bytes += payload.bytes;
  }
  // A call may wait for the room, so the file is written without pauses.
  absl::StatusOr<std::string> path = context_.idle->Write(
      bytes, [&](ByteSink* sink) { return WriteSnapshot(settings, writer, sink, /*pauses=*/0).status(); });
  if (!path.ok()) return path.status();
  file->path = *std::move(path);
  file->bytes = bytes;
  return absl::OkStatus();
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError("out of memory");
}

absl::StatusOr<bool> Sequences::Spill(uint64_t number) {
  const uint64_t last_fork = last_fork_;
  std::vector<SequenceRef> family = FamilyOf(number);
  const auto spilled = [](const SequenceRef& sequence) { return sequence->spilled != nullptr; };
  if (family.empty() || std::any_of(family.begin(), family.end(), spilled)) return false;
  std::shared_ptr<void> held;
  if (!context_.idle->Hold(NamesOf(family, context_.config), &held)) return false;
  const std::vector<SequenceRef> stand_ins = StandIns(family);
  SpilledFamily* const file = stand_ins.front()->spilled->family.get();
  const std::lock_guard<FairMutex> lock(file->mutex);
  if (!Exchange(family, stand_ins, last_fork)) return false;
  const LayerLocks locks = HoldAll(family);
  const absl::Status written = locks.empty() ? absl::CancelledError() : WriteSpilled(family, file);
  if (written.ok()) {
    KeepCharges(family, stand_ins);
    return true;
  }
  PutBack(&family, file);
  if (locks.empty()) return false;
  return absl::Status(written.code(), absl::StrCat("idle sequences stay in memory: ", written.message()));
}

// What stays in memory of a spilled family is counted out of what its sequences had, so that a spill needs no room.
void Sequences::KeepCharges(const std::vector<SequenceRef>& family, const std::vector<SequenceRef>& stand_ins) const {
  const int64_t bytes = SpilledSequenceBytes(context_.config);
  for (size_t i = 0; i < family.size(); ++i) stand_ins[i]->overhead = family[i]->overhead.Split(bytes);
}

absl::StatusOr<std::vector<SequenceRef>> Sequences::ReadSpilled(SpilledFamily* file) const try {
  const absl::StatusOr<std::unique_ptr<ByteSource>> source = OpenFile(file->path);
  if (absl::IsNotFound(source.status())) return absl::DataLossError("its file is gone");
  if (!source.ok()) return source.status();
  RestoreInfo info;
  return ReadFamily(source->get(), {.step_waits = true}, &info);
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError("out of memory");
}

// Returns the sequence that `stand_in` stands for; nullptr where another call has brought the family back. Whoever
// waits for that gives up when its call is stopped; whoever reads the file goes on, for others wait for it.
absl::StatusOr<SequenceRef> Sequences::BringBack(const Sequence& stand_in) const {
  SpilledFamily* const file = stand_in.spilled->family.get();
  if (!file->mutex.LockUnlessStopped()) return StopStatus();
  const std::lock_guard<FairMutex> lock(file->mutex, std::adopt_lock);
  if (file->path.empty()) return SequenceRef();
  const StopScope scope(nullptr);
  const auto began = std::chrono::steady_clock::now();
  absl::StatusOr<std::vector<SequenceRef>> family = ReadSpilled(file);
  context_.idle->Restored(family.status(), std::chrono::steady_clock::now() - began);
  if (!family.ok()) {
    return absl::Status(family.status().code(), absl::StrCat("the sequence, idle on disk, cannot be brought back: ",
                                                             family.status().message()));
  }
  const auto wanted = std::find_if(family->begin(), family->end(), [&](const SequenceRef& sequence) {
    return sequence->generation == stand_in.generation;
  });
  SequenceRef sequence = wanted == family->end() ? nullptr : *wanted;
  PutBack(&*family, file);
  file->RemoveFile();
  return sequence;
}

absl::StatusOr<SequenceRef> Sequences::FromDisk(const SequenceHandle& handle, absl::string_view field,
                                                SequenceRef found) const {
  while (found->spilled != nullptr) {
    absl::StatusOr<SequenceRef> sequence = BringBack(*found);
    if (!sequence.ok() || *sequence != nullptr) return sequence;
    sequence = Look(handle, field);
    if (!sequence.ok()) return sequence;
    found = *std::move(sequence);
  }
  return found;
}

absl::StatusOr<SequenceRef> Sequences::Find(const SequenceHandle& handle, absl::string_view field) const {
  absl::StatusOr<SequenceRef> found = Look(handle, field);
  if (context_.idle == nullptr || !found.ok()) return found;
  if ((*found)->spilled != nullptr) found = FromDisk(handle, field, *std::move(found));
  if (found.ok()) (*found)->use.Touch();
  return found;
}

}  // namespace seine
