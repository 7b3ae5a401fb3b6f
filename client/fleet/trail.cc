#include "client/fleet/trail.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/convert.h"

namespace seine::client {
namespace {

absl::Status NotInFleet(const FamilyState& left) {
  return WithReason(absl::FailedPreconditionError(absl::StrCat("handle: the family has moved to ", left.node, " at ",
                                                               left.address, ", which is no node of this fleet")),
                    "NOT_IN_FLEET");
}

}  // namespace

absl::StatusOr<FamilyTrail> FollowFamily(const FleetDescription& fleet, FamilyState left, const AskFamilyState& ask,
                                         bool making) {
  for (;;) {
    // Whoever moved it gave a name and an address.
    const auto known = std::find_if(fleet.nodes.begin(), fleet.nodes.end(), [&](const FleetNode& node) {
      return node.name == left.node || node.address == left.address;
    });
    const bool stranger = known == fleet.nodes.end();
    if (stranger && !making) return NotInFleet(left);
    FleetNode node = stranger ? FleetNode{.name = left.node, .address = left.address} : *known;
    absl::StatusOr<FamilyState> there = ask(node);
    if (!there.ok()) return FamilyTrail{.node = std::move(node)};
    if (stranger) return NotInFleet(left);
    if (!there->moved || there->generation <= left.generation) {
      return FamilyTrail{.node = std::move(node), .answers = true, .sends_on = there->moved};
    }
    left = *std::move(there);
  }
}

}  // namespace seine::client
