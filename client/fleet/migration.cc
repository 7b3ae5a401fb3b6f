#include "client/fleet/migration.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/fleet/ask.h"
#include "client/fleet/families.h"
#include "client/fleet/placement.h"

namespace seine::client {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kFreeze = absl::Seconds(60);
constexpr absl::Duration kAfterFreeze = absl::Seconds(5);  // a freeze begins after it was asked for
constexpr absl::Duration kCopyFreeze = absl::Seconds(90);  // the copy waits until it is known whose the family is
constexpr absl::Duration kFirstWait = absl::Milliseconds(20), kLongestWait = absl::Seconds(1);

// Returns the generation of the family that the server knows; 0 where it knows of none.
absl::StatusOr<uint64_t> GenerationAt(Client* client, const std::string& index, const std::string& family) {
  const absl::StatusOr<std::vector<FamilyState>> states = ListFamilyStates(client, index, family);
  if (!states.ok()) return states.status();
  return states->empty() ? 0 : states->front().generation;
}

// Calls SetFamilyState. Returns the name of the freeze, which is empty for other states.
absl::StatusOr<std::string> SetState(Client* client, const Json& request) {
  const absl::StatusOr<Json> answer = Ask(client, "SetFamilyState", request);
  if (!answer.ok()) return answer.status();
  return answer->value("freeze", "");
}

absl::Status After(const absl::Status& error, absl::string_view what) {
  return absl::Status(error.code(), absl::StrCat(error.message(), "; ", what));
}

// Whether a call may have been carried out: nobody has refused it.
bool MayHaveEnded(const absl::Status& error) {
  const bool no_answer = absl::IsUnavailable(error) || absl::IsDeadlineExceeded(error) || absl::IsCancelled(error);
  return no_answer && ReasonOf(error).empty();
}

// Whether a source that was asked to give a frozen family up has it no more. It has given it up before, as nobody else
// knows the freeze, or was started again and has lost it.
bool HasNoFamily(const absl::Status& error) {
  const std::string reason = ReasonOf(error);
  return reason == "MOVED" || reason == "FAMILY_NOT_FOUND" || reason == "INDEX_NOT_FOUND";
}

// One family on its way. Each step keeps what the next ones, or Undo, need.
class Mover {
 public:
  Mover(Client* source, Client* target, std::string index, std::string family)
      : source_(source), target_(target), index_(std::move(index)), family_(std::move(family)) {}

  // Finds the family's next generation: newer than what either server knows.
  absl::Status FindGeneration();
  absl::Status Freeze();
  absl::Status Copy();
  absl::Status GiveUp(const MigrationTarget& to);
  // The copy takes changes. It would by itself once its freeze ends, so an error here means a longer pause.
  void ThawCopy();
  // Returns the error with what became of the copies and of the freeze.
  absl::Status Undo(const absl::Status& error);
  Migration moved;

 private:
  absl::Status CopyOne(const SequenceInfo& sequence);
  absl::Status FreezeCopy();
  absl::Status Compare(const SnapshotResult& written, const SnapshotResult& restored) const;
  Json State(const char* state) const {
    return {{"index", index_}, {"family", family_}, {"state", state}, {"freeze", freeze_}};
  }

  Client* const source_;
  Client* const target_;
  const std::string index_, family_;
  std::string freeze_, copy_freeze_;
  absl::Time freeze_end_;
};

absl::Status Mover::FindGeneration() {
  const absl::StatusOr<uint64_t> here = GenerationAt(source_, index_, family_);
  if (!here.ok()) return here.status();
  const absl::StatusOr<uint64_t> there = GenerationAt(target_, index_, family_);
  if (!there.ok()) return After(there.status(), "asked of the target");
  moved.generation = std::max(*here, *there) + 1;
  return absl::OkStatus();
}

absl::Status Mover::Freeze() {
  absl::StatusOr<std::string> freeze = SetState(source_, {{"index", index_},
                                                          {"family", family_},
                                                          {"state", "FAMILY_STATE_FROZEN"},
                                                          {"seconds", absl::ToInt64Seconds(kFreeze)}});
  if (!freeze.ok()) return freeze.status();
  freeze_ = *std::move(freeze);
  freeze_end_ = absl::Now() + kFreeze + kAfterFreeze;
  return absl::OkStatus();
}

// Whoever looks for the family among the nodes may find the copy too soon: it takes no changes until it is the family.
absl::Status Mover::FreezeCopy() {
  absl::StatusOr<std::string> freeze = SetState(target_, {{"index", index_},
                                                          {"family", family_},
                                                          {"state", "FAMILY_STATE_FROZEN"},
                                                          {"seconds", absl::ToInt64Seconds(kCopyFreeze)}});
  if (!freeze.ok()) return After(freeze.status(), "asked of the target");
  copy_freeze_ = *std::move(freeze);
  return absl::OkStatus();
}

void Mover::ThawCopy() {
  if (copy_freeze_.empty()) return;
  SetState(target_,
           {{"index", index_}, {"family", family_}, {"state", "FAMILY_STATE_SERVING"}, {"freeze", copy_freeze_}})
      .IgnoreError();
}

absl::Status Mover::Compare(const SnapshotResult& written, const SnapshotResult& restored) const {
  std::map<std::string, std::vector<int64_t>> lengths;
  for (const SequenceInfo& one : written.sequences) lengths[one.handle.id] = one.layer_tokens;
  bool same = written.sequences.size() == restored.sequences.size();
  for (const SequenceInfo& one : restored.sequences) {
    const auto found = lengths.find(one.handle.id);
    same = same && found != lengths.end() && found->second == one.layer_tokens;
  }
  if (same) return absl::OkStatus();
  return absl::FailedPreconditionError("the target has not restored the sequences and lengths that were written");
}

// A snapshot holds a sequence with its forks and what it was forked from: a part of the family, or all of it.
absl::Status Mover::CopyOne(const SequenceInfo& sequence) {
  const std::string file = absl::StrCat("move-", freeze_, "-", moved.files.size());
  const absl::StatusOr<SnapshotResult> written = source_->Snapshot(sequence.handle, file, SnapshotScope::kFamily);
  if (!written.ok()) return After(written.status(), "no snapshot was written");
  moved.files.push_back(file);
  moved.bytes += written->bytes;
  for (const SequenceInfo& one : written->sequences) {
    if (FamilyOf(one.handle.id) == family_) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("sequence '", one.handle.id, "' of another family shares tokens with this one"));
  }
  const absl::StatusOr<SnapshotResult> restored = target_->Restore(index_, file, "", moved.generation);
  if (!restored.ok()) return After(restored.status(), absl::StrCat("the target has not restored the snapshot ", file));
  moved.sequences.insert(moved.sequences.end(), restored->sequences.begin(), restored->sequences.end());
  if (copy_freeze_.empty()) {
    if (absl::Status status = FreezeCopy(); !status.ok()) return status;
  }
  return Compare(*written, *restored);
}

absl::Status Mover::Copy() {
  const absl::StatusOr<std::vector<SequenceInfo>> all = source_->ListSequences(index_);
  if (!all.ok()) return all.status();
  const auto copied = [&](const std::string& id) {
    const auto has = [&](const SequenceInfo& one) { return one.handle.id == id; };
    return std::any_of(moved.sequences.begin(), moved.sequences.end(), has);
  };
  for (const SequenceInfo& one : *all) {
    if (FamilyOf(one.handle.id) != family_ || copied(one.handle.id)) continue;
    if (absl::Status status = CopyOne(one); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Mover::GiveUp(const MigrationTarget& to) {
  Json request = State("FAMILY_STATE_MOVED");
  request["node"] = to.node;
  request["address"] = to.address;
  request["generation"] = absl::StrCat(moved.generation);
  // The source is asked until its freeze must have ended: from then on it has given the family up, or never will.
  absl::Status status;
  for (absl::Duration wait = kFirstWait; absl::Now() < freeze_end_; wait = std::min(2 * wait, kLongestWait)) {
    status = SetState(source_, request).status();
    if (status.ok() || HasNoFamily(status)) return absl::OkStatus();
    if (!MayHaveEnded(status)) return status;
    absl::SleepFor(wait);
  }
  return absl::UnknownError(absl::StrCat("the source does not say whether it has given the family up (",
                                         status.message(), "); the copy at the target stays: delete one of the two"));
}

absl::Status Mover::Undo(const absl::Status& error) {
  ThawCopy();  // deleting is a change
  int left = 0;
  for (const SequenceInfo& one : moved.sequences) {
    const absl::Status deleted = target_->DeleteSequence(one.handle);
    if (!deleted.ok() && !absl::IsNotFound(deleted)) ++left;
  }
  const absl::Status thawed = SetState(source_, State("FAMILY_STATE_SERVING")).status();
  std::string end = thawed.ok() ? "the family serves on at the source"
                                : absl::StrCat("the family thaws at the source by itself (", thawed.message(), ")");
  if (left > 0) absl::StrAppend(&end, "; ", left, " copies stay at the target and are to be deleted");
  return After(error, end);
}

}  // namespace

absl::StatusOr<Migration> MigrateFamily(Client* source, Client* target, const std::string& index,
                                        const std::string& family, const MigrationTarget& to) {
  // Found out before anything is frozen.
  if (absl::Status status = target->GetIndex(index).status(); !status.ok()) return After(status, "asked of the target");
  const absl::StatusOr<ServerInfo> from = source->GetServerInfo();
  if (!from.ok()) return from.status();
  const absl::StatusOr<ServerInfo> there = target->GetServerInfo();
  if (!there.ok()) return After(there.status(), "asked of the target");
  if (from->instance == there->instance)
    return absl::InvalidArgumentError("to: this is the server that has the family");
  Mover mover(source, target, index, family);
  if (absl::Status status = mover.FindGeneration(); !status.ok()) return status;
  const absl::Time begin = absl::Now();
  if (absl::Status status = mover.Freeze(); !status.ok()) return status;
  absl::Status status = mover.Copy();
  if (status.ok()) status = mover.GiveUp(to);
  if (absl::IsUnknown(status)) return status;
  if (!status.ok()) return mover.Undo(status);
  mover.ThawCopy();
  mover.moved.pause = absl::Now() - begin;
  return std::move(mover.moved);
}

}  // namespace seine::client
