#include "client/fleet/claim.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "client/fleet/mover_status.h"

namespace seine::client {
namespace {

absl::StatusOr<SnapshotResult> ClaimOne(Client* target, const std::string& index, const RestoreParams& params,
                                        absl::Time end) {
  for (absl::Duration wait = absl::Milliseconds(1);; wait = std::min(2 * wait, kLongestWait)) {
    absl::StatusOr<SnapshotResult> there = target->Restore(index, "", params);
    const bool again = MayHaveEnded(there.status()) || ReasonOf(there.status()) == "BASE_IN_USE";
    if (!again || absl::Now() + wait > end) return there;
    absl::SleepFor(wait);
  }
}

}  // namespace

// One of several parts may be there while others are not.
bool MayBeHeld(const FamilyState& left, const FamilyState& there) {
  if (left.held.empty() || there.generation > left.generation) return false;
  return there.generation < left.generation || left.held.size() > 1;
}

absl::StatusOr<std::vector<SequenceInfo>> ClaimFamily(Client* target, const std::string& index, const FamilyState& left,
                                                      absl::Time end) {
  std::vector<SequenceInfo> sequences;
  absl::Status first;
  for (const std::string& name : left.held) {
    RestoreParams params;
    params.generation = left.generation;
    params.base = name;
    const absl::StatusOr<SnapshotResult> there = ClaimOne(target, index, params, end);
    first.Update(there.status());
    if (there.ok()) sequences.insert(sequences.end(), there->sequences.begin(), there->sequences.end());
  }
  if (!first.ok()) return first;
  return sequences;
}

}  // namespace seine::client
