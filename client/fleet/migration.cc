#include "client/fleet/migration.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/convert/convert.h"
#include "client/fleet/ask.h"
#include "client/fleet/claim.h"
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
constexpr absl::Duration kTargetWait = absl::Seconds(30);  // for a target that does not answer

// Returns what a server knows of the family; generation 0 where it knows nothing.
absl::StatusOr<FamilyState> StateAt(Client* client, const std::string& index, const std::string& family) {
  const absl::StatusOr<std::vector<FamilyState>> states = ListFamilyStates(client, index, family);
  if (!states.ok()) return states.status();
  return states->empty() ? FamilyState{.family = family} : states->front();
}

// Whether the target brings up what it holds. One of the version before looks for a file.
bool BringsUpHeld(Client* target, const std::string& index) {
  RestoreParams params;
  params.base = "none";
  return ReasonOf(target->Restore(index, "", params).status()) == "BASE_NOT_FOUND";
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

// Says what became of a family that the source has given up and the target has not brought up.
absl::Status NotThere(const absl::Status& error, const std::vector<std::string>& files) {
  std::string end = "the source has given the family up; ";
  if (!absl::IsNotFound(error)) {
    absl::StrAppend(&end,
                    "the target holds it for an hour: callers whom the source sends on bring it up, and so does "
                    "another run");
  } else {
    absl::StrAppend(&end, "the target has lost what it held");
    if (!files.empty()) absl::StrAppend(&end, "; these snapshots have it: ", absl::StrJoin(files, ", "));
  }
  return After(error, end);
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
  // The target has the family. An error leaves it to callers, or to another run.
  absl::Status BringUp();
  // Returns the error with what became of the copies and of the freeze.
  absl::Status Undo(const absl::Status& error);
  Migration Moved(absl::Duration pause);

 private:
  absl::Status FreezeCopy();
  // The copy takes changes. It would by itself once its freeze ends, so an error here means a longer pause.
  void ThawCopy();
  int DeleteCopy();  // returns how many of its sequences stay
  Json State(const char* state) const {
    return {{"index", index_}, {"family", family_}, {"state", state}, {"freeze", freeze_}};
  }

  Client* const source_;
  Client* const target_;
  const std::string index_, family_;
  const uint64_t generation_;
  FamilyCopy copy_;
  bool holds_ = false;  // the target holds the copy, and nobody can call it; else it is there, and frozen
  std::string freeze_, copy_freeze_;
  absl::Time freeze_end_;
};

absl::Status Mover::CopyAhead() {
  const absl::Status status = copy_.CopyAhead();
  std::string& why_whole = copy_.totals.why_whole;
  if (status.ok() && why_whole.empty() && !BringsUpHeld(target_, index_)) {
    copy_.Release();
    why_whole = "the target is of the version before, and brings up nothing that it holds";
  }
  holds_ = why_whole.empty();
  if (status.ok()) return status;
  copy_.Release();
  return After(status, "the family serves on at the source");
}

absl::Status Mover::CopyRest() {
  const absl::Time deadline = freeze_end_ - kLastWord;
  return holds_ ? copy_.Finish(deadline) : copy_.FinishThere(deadline, [this] { return FreezeCopy(); });
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

int Mover::DeleteCopy() {
  ThawCopy();  // deleting is a change
  int left = 0;
  for (const SequenceInfo& one : copy_.totals.sequences) {
    const absl::Status deleted = target_->DeleteSequence(one.handle);
    if (!deleted.ok() && !absl::IsNotFound(deleted)) ++left;
  }
  return left;
}

absl::Status Mover::GiveUp(const MigrationTarget& to) {
  Json request = State("FAMILY_STATE_MOVED");
  request["node"] = to.node;
  request["address"] = to.address;
  request["generation"] = absl::StrCat(generation_);
  request["held"] = copy_.held();
  // The source is asked until its freeze must have ended: from then on it has given the family up, or never will.
  absl::Status status;
  for (absl::Duration wait = kFirstWait; absl::Now() < freeze_end_; wait = std::min(2 * wait, kLongestWait)) {
    status = SetState(source_, request).status();
    if (status.ok() || HasNoFamily(status)) return absl::OkStatus();
    if (!MayHaveEnded(status)) return status;
    absl::SleepFor(wait);
  }
  return absl::UnknownError(absl::StrCat(
      "the source does not say whether it has given the family up (", status.message(), "); ",
      holds_ ? "if it has, callers whom it sends on bring up what the target holds for an hour, and so does another run"
             : "the copy at the target stays: delete one of the two"));
}

absl::Status Mover::BringUp() {
  if (!holds_) {
    ThawCopy();
    return absl::OkStatus();
  }
  const FamilyState left = {.family = family_, .moved = true, .generation = generation_, .held = copy_.held()};
  absl::StatusOr<std::vector<SequenceInfo>> there = ClaimFamily(target_, index_, left, absl::Now() + kTargetWait);
  if (there.ok()) {
    copy_.totals.sequences = *std::move(there);
    return absl::OkStatus();
  }
  const absl::StatusOr<FamilyState> now = StateAt(target_, index_, family_);
  if (now.ok() && !MayBeHeld(left, *now)) return absl::OkStatus();  // a caller was first
  return WithReason(NotThere(there.status(), copy_.totals.files), kGivenUp);
}

absl::Status Mover::Undo(const absl::Status& error) {
  copy_.Release();
  const int left = holds_ ? 0 : DeleteCopy();
  const absl::Status thawed = SetState(source_, State("FAMILY_STATE_SERVING")).status();
  std::string end = thawed.ok() ? "the family serves on at the source"
                                : absl::StrCat("the family thaws at the source by itself (", thawed.message(), ")");
  if (left > 0) absl::StrAppend(&end, "; ", left, " copies stay at the target and are to be deleted");
  return After(error, end);
}

// Whether the source has given the family up to this target, and what that holds of it was not brought up.
bool HasStopped(const FamilyState& here, const FamilyState& there, const MigrationTarget& to) {
  return here.moved && (here.node == to.node || here.address == to.address) && MayBeHeld(here, there);
}

// Ends a move whose mover stopped after the source had given the family up.
absl::StatusOr<Migration> EndMove(Client* target, const std::string& index, const FamilyState& here) {
  absl::StatusOr<std::vector<SequenceInfo>> there = ClaimFamily(target, index, here, absl::Now() + kTargetWait);
  if (!there.ok()) return WithReason(NotThere(there.status(), {}), kGivenUp);
  Migration migration;
  migration.sequences = *std::move(there);
  migration.generation = here.generation;
  migration.ended_earlier = true;
  return migration;
}

}  // namespace

absl::StatusOr<Migration> MigrateFamily(Client* source, Client* target, const std::string& index,
                                        const std::string& family, const MigrationTarget& to) {
  // Found out before anything is frozen.
  if (absl::Status status = target->GetIndex(index).status(); !status.ok()) return After(status, "asked of the target");
  const absl::StatusOr<v1::GetServerInfoResponse> from = source->GetServerInfo();
  if (!from.ok()) return from.status();
  const absl::StatusOr<v1::GetServerInfoResponse> at = target->GetServerInfo();
  if (!at.ok()) return After(at.status(), "asked of the target");
  if (from->instance() == at->instance())
    return absl::InvalidArgumentError("to: this is the server that has the family");
  const absl::StatusOr<FamilyState> here = StateAt(source, index, family);
  if (!here.ok()) return here.status();
  const absl::StatusOr<FamilyState> there = StateAt(target, index, family);
  if (!there.ok()) return After(there.status(), "asked of the target");
  if (HasStopped(*here, *there, to)) return EndMove(target, index, *here);
  Mover mover(source, target, index, family, std::max(here->generation, there->generation) + 1);
  if (absl::Status status = mover.CopyAhead(); !status.ok()) return status;
  const absl::Time begin = absl::Now();
  if (absl::Status status = mover.Freeze(); !status.ok()) return status;
  absl::Status status = mover.CopyRest();
  if (status.ok()) status = mover.GiveUp(to);
  if (absl::IsUnknown(status)) return status;
  if (!status.ok()) return mover.Undo(status);
  if (absl::Status there_now = mover.BringUp(); !there_now.ok()) return there_now;
  return mover.Moved(absl::Now() - begin);
}

}  // namespace seine::client
