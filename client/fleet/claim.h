// Brings a family up at the node that it was given up to, out of what that node holds of it.
#ifndef SEINE_CLIENT_FLEET_CLAIM_H_
#define SEINE_CLIENT_FLEET_CLAIM_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/fleet/families.h"

namespace seine::client {

// Whether a node that a family was given up to may still hold some of it. `left`: what the node says that it left;
// `there`: what the one says that it went to.
bool MayBeHeld(const FamilyState& left, const FamilyState& there);

// Restores at `target` what it holds of the family, and returns the sequences that are there. Whoever moves a family
// calls it; where the mover has died, anybody whom the old node sends on. Of several calls at once all get the same
// answer. Asks again until `end` where there is none. Tries each name, and returns the first error. NOT_FOUND: the
// target has forgotten it. FAILED_PRECONDITION, reason STALE_GENERATION: the family has moved on. Takes the role
// writer. Thread-safe.
absl::StatusOr<std::vector<SequenceInfo>> ClaimFamily(Client* target, const std::string& index, const FamilyState& left,
                                                      absl::Time end);

}  // namespace seine::client

#endif  // SEINE_CLIENT_FLEET_CLAIM_H_
