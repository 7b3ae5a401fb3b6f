#include "client/fleet/migration.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/fleet/ask.h"
#include "client/fleet/families.h"
#include "client/fleet/family_copy.h"
#include "client/fleet/mover_status.h"

namespace seine::client {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kFreeze = absl::Seconds(60);
constexpr absl::Duration kAfterFreeze = absl::Seconds(5);  // a freeze begins after it was asked for
constexpr absl::Duration kLastWord = absl::Seconds(30);    // of the freeze, to give the family up
constexpr absl::Duration kCopyFreeze = absl::Seconds(90);  // the copy waits until it is known whose the family is

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

// Whether a source that was asked to give a frozen family up has it no more. It has given it up before, as nobody else
// knows the freeze, or was started again and has lost it.
bool HasNoFamily(const absl::Status& error) {
  const std::string reason = ReasonOf(error);
  return reason == "MOVED" || reason == "FAMILY_NOT_FOUND" || reason == "INDEX_NOT_FOUND";
}

// Returns a generation of the family that is newer than what either server knows.
absl::StatusOr<uint64_t> NextGeneration(Client* source, Client* target, const std::string& index,
                                        const std::string& family) {
  const absl::StatusOr<uint64_t> here = GenerationAt(source, index, family);
  if (!here.ok()) return here.status();
  const absl::StatusOr<uint64_t> there = GenerationAt(target, index, family);
  if (!there.ok()) return After(there.status(), "asked of the target");
  return std::max(*here, *there) + 1;
}

// One family on its way. Each step keeps what the next ones, or Undo, need.
class Mover {
 public:
  Mover(Client* source, Client* target, std::string index, std::string family, uint64_t generation)
      : source_(source),
        target_(target),
        index_(std::move(index)),
        family_(std::move(family)),
        generation_(generation),
        copy_(source, target, index_, family_, generation) {}

  // Copies while the family serves. An error has changed nothing.
  absl::Status CopyAhead();
  absl::Status Freeze();
  absl::Status CopyRest();
  absl::Status GiveUp(const MigrationTarget& to);
  // The copy takes changes. It would by itself once its freeze ends, so an error here means a longer pause.
  void ThawCopy();
  // Returns the error with what became of the copies and of the freeze.
  absl::Status Undo(const absl::Status& error);
  Migration Moved(absl::Duration pause);

 private:
  absl::Status FreezeCopy();
  Json State(const char* state) const {
    return {{"index", index_}, {"family", family_}, {"state", state}, {"freeze", freeze_}};
  }

  Client* const source_;
  Client* const target_;
  const std::string index_, family_;
  const uint64_t generation_;
  FamilyCopy copy_;
  std::string freeze_, copy_freeze_;
  absl::Time freeze_end_;
};

absl::Status Mover::CopyAhead() {
  const absl::Status status = copy_.CopyAhead();
  if (status.ok()) return status;
  copy_.Release();
  return After(status, "the family serves on at the source");
}

absl::Status Mover::CopyRest() {
  return copy_.Finish(freeze_end_ - kLastWord, [this] { return FreezeCopy(); });
}

Migration Mover::Moved(absl::Duration pause) {
  CopyTotals& copied = copy_.totals;
  return {.sequences = std::move(copied.sequences),
          .files = std::move(copied.files),
          .bytes = copied.bytes,
          .last_bytes = copied.last_bytes,
          .why_whole = std::move(copied.why_whole),
          .generation = generation_,
          .pause = pause};
}

absl::Status Mover::Freeze() {
  absl::StatusOr<std::string> freeze = SetState(source_, {{"index", index_},
                                                          {"family", family_},
                                                          {"state", "FAMILY_STATE_FROZEN"},
                                                          {"seconds", absl::ToInt64Seconds(kFreeze)}});
  if (!freeze.ok()) {
    copy_.Release();
    return freeze.status();
  }
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

absl::Status Mover::GiveUp(const MigrationTarget& to) {
  Json request = State("FAMILY_STATE_MOVED");
  request["node"] = to.node;
  request["address"] = to.address;
  request["generation"] = absl::StrCat(generation_);
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
  copy_.Release();
  int left = 0;
  for (const SequenceInfo& one : copy_.totals.sequences) {
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
  const absl::StatusOr<uint64_t> generation = NextGeneration(source, target, index, family);
  if (!generation.ok()) return generation.status();
  Mover mover(source, target, index, family, *generation);
  if (absl::Status status = mover.CopyAhead(); !status.ok()) return status;
  const absl::Time begin = absl::Now();
  if (absl::Status status = mover.Freeze(); !status.ok()) return status;
  absl::Status status = mover.CopyRest();
  if (status.ok()) status = mover.GiveUp(to);
  if (absl::IsUnknown(status)) return status;
  if (!status.ok()) return mover.Undo(status);
  mover.ThawCopy();
  return mover.Moved(absl::Now() - begin);
}

}  // namespace seine::client
