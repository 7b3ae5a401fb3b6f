// Where a family has gone, as the nodes that it left say one after another.
#ifndef SEINE_CLIENT_FLEET_TRAIL_H_
#define SEINE_CLIENT_FLEET_TRAIL_H_

#include <functional>

#include "absl/status/statusor.h"
#include "client/fleet/description.h"
#include "client/fleet/families.h"

namespace seine::client {

struct FamilyTrail {
  FleetNode node;         // the last one that the family has reached
  bool answers = false;   // that node answers
  bool sends_on = false;  // and says that the family has moved, to a node that the trail has passed
  bool may_have_it() const { return answers && !sends_on; }
};

// Asks a node what it knows of the family.
using AskFamilyState = std::function<absl::StatusOr<FamilyState>(const FleetNode&)>;

// Follows a family from a node that has given it up. `left`: what that node says. FAILED_PRECONDITION, reason
// NOT_IN_FLEET: it has gone to no node of the fleet. `making` it anew, one that does not answer is none that matters:
// nodes that were taken out of a fleet are remembered so.
absl::StatusOr<FamilyTrail> FollowFamily(const FleetDescription& fleet, FamilyState left, const AskFamilyState& ask,
                                         bool making);

}  // namespace seine::client

#endif  // SEINE_CLIENT_FLEET_TRAIL_H_
