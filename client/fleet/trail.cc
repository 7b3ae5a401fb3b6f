#include "client/fleet/trail.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/convert/convert.h"
#include "client/fleet/claim.h"
#include "client/fleet/mover_status.h"

namespace seine::client {
namespace {

constexpr absl::Duration kArrivalWait = absl::Seconds(1);

absl::Status NotInFleet(const FamilyState& left) {
  return WithReason(absl::FailedPreconditionError(absl::StrCat("handle: the family has moved to ", left.node, " at ",
                                                               left.address, ", which is no node of this fleet")),
                    "NOT_IN_FLEET");
}

absl::Status StillHeld(const FamilyState& left) {
  return WithReason(absl::UnavailableError(absl::StrCat("handle: the family ", left.family, " waits at ", left.node,
                                                        " for a caller who may bring it up; try again")),
                    "MOVING");
}

// Whether it was made anew there, has moved on, or is there or lost: who looks again will see.
bool IsSettled(const absl::Status& claimed) {
  return claimed.ok() || absl::IsNotFound(claimed) || absl::IsAlreadyExists(claimed) ||
         ReasonOf(claimed) == "STALE_GENERATION";
}

// Asks what a node knows of a family that was given up to it; claims the family first where that may hold it. nullopt:
// the node does not answer. One who may not claim it waits for another.
absl::StatusOr<std::optional<FamilyState>> Arrived(const FleetNode& node, const FamilyState& left,
                                                   const AskFamilyState& ask, const ClaimFamilyAt& claim) {
  const absl::Time end = absl::Now() + kArrivalWait;
  for (absl::Duration wait = kFirstWait;; wait *= 2) {
    absl::StatusOr<FamilyState> there = ask(node);
    if (!there.ok()) return std::nullopt;
    if (!MayBeHeld(left, *there)) return *std::move(there);
    const absl::Status claimed = claim(node, left);
    there = ask(node);
    if (!there.ok()) return std::nullopt;
    const bool refused = absl::IsPermissionDenied(claimed);
    if (IsSettled(claimed) || (refused && there->generation == left.generation)) return *std::move(there);
    if (!refused && !MayHaveEnded(claimed) && ReasonOf(claimed) != "BASE_IN_USE") return claimed;
    if (absl::Now() + wait > end) return StillHeld(left);
    absl::SleepFor(wait);
  }
}

}  // namespace

absl::StatusOr<FamilyTrail> FollowFamily(const FleetDescription& fleet, FamilyState left, const AskFamilyState& ask,
                                         const ClaimFamilyAt& claim, bool making) {
  for (;;) {
    // Whoever moved it gave a name and an address.
    const auto known = std::find_if(fleet.nodes.begin(), fleet.nodes.end(), [&](const FleetNode& node) {
      return node.name == left.node || node.address == left.address;
    });
    const bool stranger = known == fleet.nodes.end();
    if (stranger && !making) return NotInFleet(left);
    FleetNode node = stranger ? FleetNode{.name = left.node, .address = left.address} : *known;
    if (stranger) return ask(node).ok() ? NotInFleet(left) : absl::StatusOr<FamilyTrail>({.node = std::move(node)});
    absl::StatusOr<std::optional<FamilyState>> arrived = Arrived(node, left, ask, claim);
    if (!arrived.ok()) return arrived.status();
    if (!arrived->has_value()) return FamilyTrail{.node = std::move(node)};
    FamilyState& there = **arrived;
    if (!there.moved || there.generation <= left.generation) {
      return FamilyTrail{.node = std::move(node), .answers = true, .sends_on = there.moved};
    }
    left = std::move(there);
  }
}

}  // namespace seine::client
