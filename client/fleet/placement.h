// Which node of a fleet a family of sequences goes to: rendezvous hashing with bounded loads, as
// seine_kv/fleet/placement.py computes it. tests/client/fleet/fleet_test.cc holds both to the same table.
#ifndef SEINE_CLIENT_FLEET_PLACEMENT_H_
#define SEINE_CLIENT_FLEET_PLACEMENT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace seine::client {

// Returns what stands before the first '/' of a sequence's id, or all of it. A fork stays in its family.
absl::string_view FamilyOf(absl::string_view id);

// Returns how well a node suits a family; higher is better. It is the first 8 bytes, big endian, of SHA-256 over the
// family, a zero byte and the node's name (Thaler and Ravishankar 1998).
uint64_t PlacementScore(absl::string_view family, absl::string_view node);

// Nodes by falling score; equal scores by name.
std::vector<std::string> RankNodes(absl::string_view family, std::vector<std::string> nodes);

// The node for a new family: the first by score that holds less than 5/4 of its share (arXiv 1608.01350). loads:
// families that each node holds, of those that take new ones; at least one.
std::string ChooseNode(absl::string_view family, const std::map<std::string, int64_t>& loads);

}  // namespace seine::client

#endif  // SEINE_CLIENT_FLEET_PLACEMENT_H_
