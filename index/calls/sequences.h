// The sequences of an index by name: those in memory, and those whose family the idle tier has on disk.
#ifndef SEINE_INDEX_CALLS_SEQUENCES_H_
#define SEINE_INDEX_CALLS_SEQUENCES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "index/context.h"
#include "index/idle/idle_tier.h"
#include "index/index.h"
#include "index/sequence/sequence.h"

namespace seine {

class StateReader;     // index/bytes/state_reader.h
class StateWriter;     // index/bytes/state_writer.h
struct SpilledFamily;  // index/idle/spilled_family.h

using SequenceRef = std::shared_ptr<Sequence>;

// Thread-safe. mutex_ guards the map only and is never held while a layer's mutex is taken. Errors and fields are the
// Index calls' of the same name.
class Sequences : private SpillingIndex {
 public:
  explicit Sequences(const Context* context) : context_(*context) {}
  ~Sequences() override;
  void JoinIdleTier();  // once

  // Brings a sequence back that the idle tier has on disk.
  absl::StatusOr<SequenceRef> Find(const SequenceHandle& handle, absl::string_view field = "handle") const;
  // Those of the handles; of none, all that are in memory, the oldest first.
  absl::StatusOr<std::vector<SequenceRef>> FindAll(absl::Span<const SequenceHandle> handles) const;

  absl::Status CheckNewId(absl::string_view id, absl::string_view field) const;
  absl::StatusOr<SequenceRef> New() const;  // known to nobody else
  absl::StatusOr<SequenceHandle> Insert(const SequenceRef& sequence, absl::string_view id, absl::string_view field);
  absl::Status Delete(const SequenceHandle& handle);

  int64_t size() const;
  int64_t num_tokens() const;
  absl::StatusOr<SequenceInfo> Get(const SequenceHandle& handle) const;  // what is on disk stays there
  std::vector<SequenceInfo> List(absl::string_view after, size_t most) const;
  std::vector<SequenceHandle> Families() const;

  absl::StatusOr<SnapshotInfo> Snapshot(const SequenceHandle& handle, SnapshotScope scope, ByteSink* sink,
                                        WrittenBase* base) const;
  absl::StatusOr<RestoreInfo> Restore(ByteSource* source, const RestoreParams& restore);
  absl::StatusOr<RestoreInfo> RestoreHeld(const RestoreParams& restore);

 private:
  struct NameHash {
    using is_transparent = void;
    size_t operator()(absl::string_view name) const {
      return std::hash<std::string_view>()(std::string_view(name.data(), name.size()));
    }
  };

  static SequenceInfo Describe(const Sequence& sequence);
  // As Find, but what is on disk stays there.
  absl::StatusOr<SequenceRef> Look(const SequenceHandle& handle, absl::string_view field) const;

  // For snapshots (snapshot.cc).
  std::vector<SequenceRef> FamilyOf(uint64_t number) const;          // the oldest first
  absl::StatusOr<SequenceRef> CopyOf(const Sequence& source) const;  // known to nobody else
  absl::StatusOr<std::vector<SequenceRef>> CopyFamily(const SequenceHandle& handle, SnapshotScope scope) const;
  absl::StatusOr<std::vector<SequenceRef>> LoadFamily(StateReader* reader, const RestoreParams& restore) const;
  absl::StatusOr<std::vector<SequenceRef>> ReadFamily(ByteSource* source, const RestoreParams& restore,
                                                      RestoreInfo* info, ReadBase* held = nullptr) const;
  absl::Status CheckNewIds(const std::vector<SequenceRef>& family) const;
  absl::Status LeaveOutTaken(std::vector<SequenceRef>* family, RestoreInfo* info) const;
  absl::Status InsertFamily(const std::vector<SequenceRef>& family, RestoreInfo* info);
  absl::Status CheckSnapshots() const;

  // For the idle tier (spill.cc).
  std::vector<Family> IdleFamilies() const override;
  absl::StatusOr<bool> Spill(uint64_t family) override;
  bool CountsIn(const MemoryBudget& budget) const override { return context_.ledger.CountsIn(budget); }
  std::vector<SequenceRef> StandIns(const std::vector<SequenceRef>& family) const;
  bool Exchange(const std::vector<SequenceRef>& out, const std::vector<SequenceRef>& in, uint64_t last_fork) const;
  void KeepCharges(const std::vector<SequenceRef>& family, const std::vector<SequenceRef>& stand_ins) const;
  void PutBack(std::vector<SequenceRef>* family, const SpilledFamily* file) const;
  absl::Status WriteSpilled(const std::vector<SequenceRef>& family, SpilledFamily* file) const;
  absl::StatusOr<std::vector<SequenceRef>> ReadSpilled(SpilledFamily* file) const;
  absl::StatusOr<SequenceRef> BringBack(const Sequence& stand_in) const;
  absl::StatusOr<SequenceRef> FromDisk(const SequenceHandle& handle, absl::string_view field, SequenceRef found) const;

  const Context& context_;
  mutable std::shared_mutex mutex_;
  // A map of std: absl's does not survive an allocation of its own that fails.
  // Mutable, for calls that change nothing bring sequences back.
  mutable std::unordered_map<std::string, SequenceRef, NameHash, std::equal_to<>> sequences_;
  uint64_t last_generation_ = 0;
  std::atomic<uint64_t> last_fork_{0};  // the generation of the last one that joined a family; written under mutex_
};

// Writes a sequence that nobody changes meanwhile (snapshot.cc).
void SaveSequence(const Sequence& sequence, StateWriter* writer);

}  // namespace seine

#endif  // SEINE_INDEX_CALLS_SEQUENCES_H_
