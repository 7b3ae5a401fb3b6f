// Where a family has gone, as the nodes that it left say one after another.
#ifndef SEINE_CLIENT_FLEET_TRAIL_H_
#define SEINE_CLIENT_FLEET_TRAIL_H_

#include <functional>

#include "absl/status/statusor.h"
#include "client/fleet/families.h"
#include "profile/io/fleet_file.h"

namespace seine::client {

struct FamilyTrail {
  FleetNode node;         // the last one that the family has reached
  bool answers = false;   // that node answers
  bool sends_on = false;  // and says that the family has moved, to a node that the trail has passed
  bool may_have_it() const { return answers && !sends_on; }
};

// Asks a node what it knows of the family.
using AskFamilyState = std::function<absl::StatusOr<FamilyState>(const FleetNode&)>;

// Brings the family up at the node that it was given up to, as ClaimFamily does (claim.h). `left`: what the old one
// says.
using ClaimFamilyAt = std::function<absl::Status(const FleetNode&, const FamilyState& left)>;

// Follows a family from a node that has given it up. `left`: what that node says. Where the next one holds the family
// and has it not, as its mover has died or is not yet so far, the family is claimed there. FAILED_PRECONDITION, reason
// NOT_IN_FLEET: it has gone to no node of the fleet. UNAVAILABLE, reason MOVING: it is held, and the caller may not
// claim it. Other errors of `claim`. `making` it anew, one that does not answer is none that matters: nodes that were
// taken out of a fleet are remembered so.
absl::StatusOr<FamilyTrail> FollowFamily(const FleetDescription& fleet, FamilyState left, const AskFamilyState& ask,
                                         const ClaimFamilyAt& claim, bool making);

}  // namespace seine::client

#endif  // SEINE_CLIENT_FLEET_TRAIL_H_
