#include "client/fleet/drain.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/fleet/ask.h"
#include "client/fleet/claim.h"
#include "client/fleet/mover_status.h"
#include "client/fleet/placement.h"

namespace seine::client {
namespace {

absl::Status About(const DrainTarget& target, const absl::Status& error) {
  return absl::Status(error.code(), absl::StrCat(error.message(), "; asked of the target ", target.to.node));
}

bool IsGivenUp(const absl::Status& error) { return ReasonOf(error) == kGivenUp; }

constexpr absl::Duration kStopAsked = absl::Milliseconds(50);

// Holds what is written to a rate, on average since the beginning.
class RateBound {
 public:
  explicit RateBound(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}
  void WaitAfter(int64_t bytes, const std::function<bool()>& stop) {
    bytes_ += static_cast<double>(bytes);
    if (bytes_per_second_ <= 0) return;
    const absl::Time end = begin_ + absl::Seconds(bytes_ / bytes_per_second_);
    while (absl::Now() < end && !stop()) absl::SleepFor(std::min(end - absl::Now(), kStopAsked));
  }

 private:
  const double bytes_per_second_;
  const absl::Time begin_ = absl::Now();
  double bytes_ = 0;
};

class Drainer {
 public:
  Drainer(Client* source, const DrainOptions& options)
      : source_(source), options_(options), rate_(options.bytes_per_second) {}
  // Finds targets that cannot be any, before anything has changed.
  absl::Status CheckTargets();
  // Ends moves of an earlier drain that has stopped: the server tells callers of such a family, and is to be ended.
  absl::Status EndStopped();
  absl::StatusOr<std::vector<DrainedFamily>> Run();

 private:
  void EndMove(const std::string& index, const FamilyState& left);
  void Report(DrainedFamily drained);
  // Lists the families that were not drained yet, the largest first. Sets a server to drain that was started again.
  absl::StatusOr<std::vector<Family>> Next();
  // Asks the source who it is, for a while where it does not answer.
  absl::StatusOr<v1::GetServerInfoResponse> AwaitSource();
  // Whether the source has the family no more, as far as it answers. *restarted: it is another process than at first.
  bool HasGone(const Family& family, bool* restarted);
  void DrainOne(Family family);
  // Moves the family, or notes why not. False: the next target may be tried.
  bool MoveTo(const DrainTarget& target, DrainedFamily* drained) const;
  void Move(DrainedFamily* drained) const;
  // Finds out what has become of a family that did not move. False: there is nothing to tell of it.
  bool Keep(DrainedFamily* drained);
  absl::Status Write(const std::vector<SequenceInfo>& sequences, DrainedFamily* drained);
  void Snapshot(DrainedFamily* drained);

  Client* const source_;
  const DrainOptions& options_;
  RateBound rate_;
  std::string instance_;                                   // of the source's process when the drain began
  bool away_ = false;                                      // the source was waited for in vain
  std::set<std::pair<std::string, std::string>> seen_;     // families, by index and name
  std::set<std::pair<std::string, std::string>> written_;  // sequences in snapshots, by index and id
  std::vector<DrainedFamily> drained_;
};

absl::Status Drainer::CheckTargets() {
  const absl::StatusOr<v1::GetServerInfoResponse> here = source_->GetServerInfo();
  if (!here.ok()) return here.status();
  instance_ = here->instance();
  for (const DrainTarget& target : options_.targets) {
    const absl::StatusOr<v1::GetServerInfoResponse> there = target.client->GetServerInfo();
    if (!there.ok()) return About(target, there.status());
    if (there->instance() == here->instance()) {
      return absl::InvalidArgumentError(absl::StrCat("to: ", target.to.node, " is the server that is to be drained"));
    }
    if (there->draining()) return absl::FailedPreconditionError(absl::StrCat("to: ", target.to.node, " drains itself"));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::GetServerInfoResponse> Drainer::AwaitSource() {
  const absl::Time end = absl::Now() + (away_ ? absl::ZeroDuration() : options_.patience);
  for (absl::Duration wait = kFirstWait;; wait = std::min(2 * wait, kLongestWait)) {
    absl::StatusOr<v1::GetServerInfoResponse> info = source_->GetServerInfo();
    away_ = !info.ok() && absl::Now() + wait >= end;
    if (info.ok() || away_ || !MayHaveEnded(info.status()) || options_.stop()) return info;
    absl::SleepFor(wait);
  }
}

bool Drainer::HasGone(const Family& family, bool* restarted) {
  const absl::StatusOr<v1::GetServerInfoResponse> info = AwaitSource();
  if (!info.ok()) return false;
  *restarted = info->instance() != instance_;
  const absl::StatusOr<std::vector<Family>> there = ListFamilies(source_, family.index);
  if (!there.ok()) return ReasonOf(there.status()) == "INDEX_NOT_FOUND";
  return std::none_of(there->begin(), there->end(), [&](const Family& one) { return one.name == family.name; });
}

absl::StatusOr<std::vector<Family>> Drainer::Next() {
  const absl::StatusOr<v1::GetServerInfoResponse> info = AwaitSource();
  if (!info.ok()) return info.status();
  if (!info->draining()) {
    if (absl::Status status = SetDraining(source_, true).status(); !status.ok()) return status;
  }
  absl::StatusOr<std::vector<Family>> families = ListFamilies(source_);
  if (!families.ok()) return families.status();
  std::erase_if(*families, [&](const Family& one) { return !seen_.emplace(one.index, one.name).second; });
  std::sort(families->begin(), families->end(), [](const Family& a, const Family& b) {
    return std::tie(b.bytes, a.index, a.name) < std::tie(a.bytes, b.index, b.name);
  });
  return families;
}

absl::StatusOr<std::vector<DrainedFamily>> Drainer::Run() {
  for (;;) {
    if (options_.stop()) return std::move(drained_);
    absl::StatusOr<std::vector<Family>> families = Next();
    if (!families.ok()) return families.status();
    if (families->empty()) return std::move(drained_);
    for (Family& family : *families) {
      if (options_.stop()) return std::move(drained_);
      DrainOne(std::move(family));
    }
  }
}

void Drainer::DrainOne(Family family) {
  DrainedFamily drained;
  drained.family = std::move(family);
  Move(&drained);
  if (drained.outcome != DrainOutcome::kMoved && !Keep(&drained)) return;
  Report(std::move(drained));
}

void Drainer::Report(DrainedFamily drained) {
  options_.progress(drained);
  rate_.WaitAfter(drained.file_bytes, options_.stop);
  drained_.push_back(std::move(drained));
}

absl::Status Drainer::EndStopped() {
  const absl::StatusOr<std::vector<v1::IndexInfo>> indexes = source_->ListIndexes();
  if (!indexes.ok()) return indexes.status();
  for (const v1::IndexInfo& index : *indexes) {
    const absl::StatusOr<std::vector<FamilyState>> families = ListFamilyStates(source_, index.spec().name());
    if (!families.ok()) return families.status();
    for (const FamilyState& left : *families) {
      if (left.moved && !left.held.empty()) EndMove(index.spec().name(), left);
    }
  }
  return absl::OkStatus();
}

// Where the target does not answer, or is none of this drain, callers bring the family up.
void Drainer::EndMove(const std::string& index, const FamilyState& left) {
  for (const DrainTarget& target : options_.targets) {
    if (target.to.node != left.node && target.to.address != left.address) continue;
    const absl::StatusOr<std::vector<FamilyState>> there = ListFamilyStates(target.client, index, left.family);
    if (!there.ok()) return;
    const FamilyState known = there->empty() ? FamilyState() : there->front();
    if (!MayBeHeld(left, known)) return;
    const absl::Status claimed = ClaimFamily(target.client, index, left, absl::Now() + kLongestWait).status();
    if (!claimed.ok() || known.generation == left.generation) return;
    DrainedFamily drained;
    drained.family.index = index;
    drained.family.name = left.family;
    drained.outcome = DrainOutcome::kMoved;
    drained.to = target.to;
    drained.generation = left.generation;
    return Report(std::move(drained));
  }
}

bool Drainer::Keep(DrainedFamily* drained) {
  bool restarted = false;
  if (IsGivenUp(drained->why)) {  // the server tells callers of it, and is not to be ended before the target has it
    if (absl::IsNotFound(drained->why)) drained->outcome = DrainOutcome::kLost;
  } else if (HasGone(drained->family, &restarted)) {
    if (!restarted) return false;  // it was deleted, or somebody else has moved it
    drained->outcome = DrainOutcome::kLost;
    drained->why = absl::UnavailableError("the server was started again meanwhile, and has it no more");
  } else if (!absl::IsUnknown(drained->why)) {
    Snapshot(drained);
  }
  return true;
}

bool Drainer::MoveTo(const DrainTarget& target, DrainedFamily* drained) const {
  const Family& family = drained->family;
  const absl::StatusOr<v1::GetServerInfoResponse> there = target.client->GetServerInfo();
  if (!there.ok()) {
    drained->why = About(target, there.status());
    return false;
  }
  if (there->memory_limit_bytes() > 0 && there->memory_bytes() + family.bytes > there->memory_limit_bytes()) {
    drained->why = absl::ResourceExhaustedError(absl::StrCat("the target ", target.to.node, " has no memory for it"));
    return false;
  }
  absl::StatusOr<Migration> moved = MigrateFamily(source_, target.client, family.index, family.name, target.to);
  drained->why = moved.status();
  if (!moved.ok()) return IsGivenUp(moved.status()) || absl::IsUnknown(moved.status());
  drained->outcome = DrainOutcome::kMoved;
  drained->to = target.to;
  drained->generation = moved->generation;
  drained->files = std::move(moved->files);
  drained->file_bytes = moved->bytes;
  drained->pause = moved->pause;
  drained->why_whole = std::move(moved->why_whole);
  return true;
}

void Drainer::Move(DrainedFamily* drained) const {
  drained->why = absl::FailedPreconditionError("no target was given");
  std::vector<std::string> nodes;
  for (const DrainTarget& target : options_.targets) nodes.push_back(target.to.node);
  for (const std::string& node : RankNodes(drained->family.name, std::move(nodes))) {
    const auto target = std::find_if(options_.targets.begin(), options_.targets.end(),
                                     [&](const DrainTarget& one) { return one.to.node == node; });
    if (MoveTo(*target, drained)) return;
  }
}

// A snapshot holds a sequence with its forks and what it was forked from, also those of other families.
absl::Status Drainer::Write(const std::vector<SequenceInfo>& sequences, DrainedFamily* drained) {
  const Family& family = drained->family;
  for (const SequenceInfo& one : sequences) {
    if (FamilyOf(one.handle.id) != family.name || written_.contains({family.index, one.handle.id})) continue;
    const std::string file = absl::StrCat(
        "drain-", absl::Hex(PlacementScore(family.name, family.index), absl::kZeroPad16), "-", drained->files.size());
    const absl::StatusOr<SnapshotResult> written = source_->Snapshot(one.handle, file, SnapshotScope::kFamily);
    if (absl::IsNotFound(written.status())) continue;  // deleted meanwhile
    if (!written.ok()) return written.status();
    drained->files.push_back(file);
    drained->file_bytes += written->bytes;
    for (const SequenceInfo& held : written->sequences) written_.emplace(family.index, held.handle.id);
  }
  return absl::OkStatus();
}

void Drainer::Snapshot(DrainedFamily* drained) {
  const absl::StatusOr<std::vector<SequenceInfo>> sequences = source_->ListSequences(drained->family.index);
  const absl::Status written = sequences.ok() ? Write(*sequences, drained) : sequences.status();
  if (written.ok()) {
    drained->outcome = DrainOutcome::kSnapshotted;
  } else {
    drained->why = absl::Status(drained->why.code(),
                                absl::StrCat(drained->why.message(), "; no snapshot was written: ", written.message()));
  }
}

}  // namespace

const char* ToString(DrainOutcome outcome) {
  switch (outcome) {
    case DrainOutcome::kMoved:
      return "moved";
    case DrainOutcome::kSnapshotted:
      return "snapshotted";
    case DrainOutcome::kStays:
      return "stays";
    case DrainOutcome::kLost:
      return "lost";
  }
  return "";
}

absl::StatusOr<bool> SetDraining(Client* client, bool draining) {
  const absl::StatusOr<nlohmann::json> answer = Ask(client, "SetDraining", {{"draining", draining}});
  if (!answer.ok()) return answer.status();
  return answer->value("was_draining", false);
}

absl::StatusOr<std::vector<DrainedFamily>> Drain(Client* source, const DrainOptions& options) {
  Drainer drainer(source, options);
  if (absl::Status status = drainer.CheckTargets(); !status.ok()) return status;
  if (absl::Status status = SetDraining(source, true).status(); !status.ok()) return status;
  if (absl::Status status = drainer.EndStopped(); !status.ok()) return status;
  return drainer.Run();
}

}  // namespace seine::client
