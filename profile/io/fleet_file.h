// What a fleet of servers is to those who call it: its nodes and their addresses, as seine_kv.fleet writes them.
#ifndef SEINE_PROFILE_IO_FLEET_FILE_H_
#define SEINE_PROFILE_IO_FLEET_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace seine {

enum class NodeState {
  kUp,
  kDraining,  // takes no new families
  kLost,      // does not serve
};

// One server. generation: how often it was started; what an earlier one held is gone.
struct FleetNode {
  std::string name;
  std::string address;  // as CheckEndpoint takes it (endpoint.h)
  int64_t generation = 1;
  NodeState state = NodeState::kUp;
};

struct FleetDescription {
  std::string fleet;
  std::vector<FleetNode> nodes;  // by name, at least one
};

// INVALID_ARGUMENT names the field that is wrong.
absl::StatusOr<FleetDescription> ParseFleet(absl::string_view json);

// The same out of a file, whose name opens the error. NOT_FOUND: it cannot be read.
absl::StatusOr<FleetDescription> ReadFleet(const std::string& path);

const char* ToString(NodeState state);  // "up", "draining", "lost"

}  // namespace seine

#endif  // SEINE_PROFILE_IO_FLEET_FILE_H_
