#include "client/fleet/family_copy.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/fleet/ask.h"
#include "client/fleet/mover_status.h"
#include "client/fleet/placement.h"

namespace seine::client {
namespace {

constexpr int kMostRounds = 3;                        // before the family is frozen
constexpr int64_t kLittle = int64_t{8} << 20;         // bytes that are written and read in some ten milliseconds
constexpr int kKeepSeconds = 600, kHoldSeconds = 60;  // a mover that is killed leaves these behind for so long
constexpr int kLastHoldSeconds = 3600;                // the source tells callers of a family's new home for so long

std::string RandomName() {
  std::random_device chance;
  return absl::StrCat(absl::Hex(chance(), absl::kZeroPad8), absl::Hex(chance(), absl::kZeroPad8));
}

// One of the two is of the version before, or has forgotten what it kept: everything is written once more.
bool NeedsWhole(const absl::Status& error) {
  const std::string reason = ReasonOf(error);
  if (absl::IsUnimplemented(error)) return true;
  return reason == "BASE_NOT_FOUND" || reason == "TOO_MANY_BASES" ||
         (absl::IsFailedPrecondition(error) && reason == "FAILED_PRECONDITION");
}

absl::Status Compare(const SnapshotResult& written, const SnapshotResult& restored) {
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

}  // namespace

FamilyCopy::FamilyCopy(Client* source, Client* target, std::string index, std::string family, uint64_t generation)
    : source_(source),
      target_(target),
      index_(std::move(index)),
      family_(std::move(family)),
      name_(RandomName()),
      generation_(generation) {}

FamilyCopy::Part* FamilyCopy::PartOf(const std::string& id) {
  const auto holds = [&](const Part& part) {
    return std::find(part.ids.begin(), part.ids.end(), id) != part.ids.end();
  };
  const auto found = std::find_if(parts_.begin(), parts_.end(), holds);
  return found == parts_.end() ? nullptr : &*found;
}

absl::Status FamilyCopy::CopyParts(const CopyPart& copy) {
  const absl::StatusOr<std::vector<SequenceInfo>> all = source_->ListSequences(index_);
  if (!all.ok()) return all.status();
  std::set<std::string> copied;
  for (const bool known : {true, false}) {
    for (const SequenceInfo& one : *all) {
      if (FamilyOf(one.handle.id) != family_ || copied.contains(one.handle.id)) continue;
      Part* part = PartOf(one.handle.id);
      if ((part != nullptr) != known) continue;
      if (part == nullptr) part = &parts_.emplace_back();
      if (absl::Status status = copy(one.handle, part); !status.ok()) return status;
      copied.insert(part->ids.begin(), part->ids.end());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SnapshotResult> FamilyCopy::Write(const Sequence& sequence, int keep_seconds, Part* part) {
  const std::string file = absl::StrCat("move-", name_, "-", totals.files.size());
  SnapshotParams params;
  params.base = part->written;
  params.keep_seconds = keep_seconds;
  absl::StatusOr<SnapshotResult> written = source_->Snapshot(sequence, file, params);
  if (!written.ok()) return written;
  totals.files.push_back(file);
  totals.bytes += written->bytes;
  part->ids.clear();
  for (const SequenceInfo& one : written->sequences) part->ids.push_back(one.handle.id);
  part->written = written->base;
  for (const std::string& id : part->ids) {
    if (FamilyOf(id) == family_) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("sequence '", id, "' of another family shares tokens with this one"));
  }
  return written;
}

// A call without an answer may have ended well. With a base it is the same to ask once more.
absl::StatusOr<SnapshotResult> FamilyCopy::Read(int hold_seconds, absl::Time deadline, const Part& part) {
  RestoreParams params;
  params.generation = generation_;
  params.base = part.held;
  params.hold_seconds = hold_seconds;
  const std::string& file = totals.files.back();
  for (absl::Duration wait = kFirstWait;; wait = std::min(2 * wait, kLongestWait)) {
    absl::StatusOr<SnapshotResult> restored = target_->Restore(index_, file, params);
    const absl::Status& status = restored.status();
    const bool again = !part.held.empty() && (MayHaveEnded(status) || ReasonOf(status) == "BASE_IN_USE");
    if (restored.ok()) return restored;
    if (!again || absl::Now() + wait > deadline) {
      return After(status, absl::StrCat("the target has not restored the snapshot ", file));
    }
    absl::SleepFor(wait);
  }
}

absl::Status FamilyCopy::CopyPartAhead(const Sequence& sequence, Part* part) {
  const absl::StatusOr<SnapshotResult> written = Write(sequence, kKeepSeconds, part);
  if (absl::IsNotFound(written.status()) && !NeedsWhole(written.status())) return absl::OkStatus();  // it was deleted
  if (!written.ok()) return After(written.status(), "no snapshot was written");
  if (written->base.empty()) return absl::UnimplementedError("the source keeps no base of a snapshot");
  const absl::StatusOr<SnapshotResult> held = Read(kHoldSeconds, absl::InfinitePast(), *part);
  if (!held.ok()) return held.status();
  part->held = held->base;
  return Compare(*written, *held);
}

absl::Status FamilyCopy::CopyAhead() {
  int64_t previous = 0;
  for (int round = 0; round < kMostRounds; ++round) {
    const int64_t before = totals.bytes;
    const absl::Status status =
        CopyParts([this](const Sequence& sequence, Part* part) { return CopyPartAhead(sequence, part); });
    if (NeedsWhole(status)) {
      Release();
      totals.why_whole = std::string(status.message());
      return absl::OkStatus();
    }
    if (!status.ok()) return status;
    const int64_t bytes = totals.bytes - before;
    if (bytes <= kLittle || (round > 0 && 2 * bytes > previous)) break;
    previous = bytes;
  }
  return absl::OkStatus();
}

absl::Status FamilyCopy::FinishPart(const Sequence& sequence, int hold_seconds, absl::Time deadline, Part* part) {
  absl::StatusOr<SnapshotResult> written = Write(sequence, /*keep_seconds=*/0, part);
  if (NeedsWhole(written.status()) && !part->written.empty()) {
    StartAnew(written.status(), part);
    written = Write(sequence, /*keep_seconds=*/0, part);
  }
  if (!written.ok()) return After(written.status(), "no snapshot was written");
  const absl::StatusOr<SnapshotResult> restored = Read(hold_seconds, deadline, *part);
  if (NeedsWhole(restored.status()) && !part->held.empty()) {
    StartAnew(restored.status(), part);
    return FinishPart(sequence, hold_seconds, deadline, part);
  }
  if (!restored.ok()) return restored.status();
  part->held = restored->base;  // empty: it is used up
  if (hold_seconds > 0) held_.push_back(part->held);
  totals.sequences.insert(totals.sequences.end(), restored->sequences.begin(), restored->sequences.end());
  return Compare(*written, *restored);
}

absl::Status FamilyCopy::Finish(absl::Time deadline) {
  const int64_t before = totals.bytes;
  const absl::Status status = CopyParts(
      [&](const Sequence& sequence, Part* part) { return FinishPart(sequence, kLastHoldSeconds, deadline, part); });
  totals.last_bytes = totals.bytes - before;
  return status;
}

absl::Status FamilyCopy::FinishThere(absl::Time deadline, const std::function<absl::Status()>& arrived) {
  const int64_t before = totals.bytes;
  bool first = true;
  const absl::Status status = CopyParts([&](const Sequence& sequence, Part* part) {
    absl::Status finished = FinishPart(sequence, /*hold_seconds=*/0, deadline, part);
    if (!totals.sequences.empty() && std::exchange(first, false)) finished.Update(arrived());
    return finished;
  });
  totals.last_bytes = totals.bytes - before;
  return status;
}

void FamilyCopy::StartAnew(const absl::Status& why, Part* part) {
  totals.why_whole = std::string(why.message());
  ReleasePart(part);
}

void FamilyCopy::ReleasePart(Part* part) {
  const auto release = [&](Client* client, std::string* base) {
    if (!base->empty()) Ask(client, "ReleaseBase", {{"index", index_}, {"base", *base}}).IgnoreError();
    base->clear();
  };
  release(target_, &part->held);
  release(source_, &part->written);
}

void FamilyCopy::Release() {
  for (Part& part : parts_) ReleasePart(&part);
}

}  // namespace seine::client
