#include "profile/io/fleet_file.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "profile/io/endpoint.h"
#include "profile/io/json.h"

namespace seine {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr NodeState kStates[] = {NodeState::kUp, NodeState::kDraining, NodeState::kLost};

absl::Status Wrong(const std::string& field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

std::string TextOf(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

absl::Status ReadState(const Json& object, const std::string& where, NodeState* state) {
  if (!object.contains("state")) return absl::OkStatus();
  const std::string word = TextOf(object, "state");
  for (const NodeState known : kStates) {
    if (word != ToString(known)) continue;
    *state = known;
    return absl::OkStatus();
  }
  return Wrong(where + ".state", "must be one of up, draining, lost");
}

absl::StatusOr<FleetNode> NodeOf(const Json& object, const std::string& where) {
  if (!object.is_object()) return Wrong(where, "must be an object");
  FleetNode node = {.name = TextOf(object, "name"), .address = TextOf(object, "address")};
  if (node.name.empty()) return Wrong(where + ".name", "is missing");
  if (absl::Status status = CheckEndpoint(node.address); !status.ok()) {
    return Wrong(where + ".address", status.message());
  }
  if (const auto generation = object.find("generation"); generation != object.end()) {
    if (!generation->is_number_integer() || generation->get<int64_t>() < 1) {
      return Wrong(where + ".generation", "must be at least 1");
    }
    node.generation = generation->get<int64_t>();
  }
  if (absl::Status status = ReadState(object, where, &node.state); !status.ok()) return status;
  return node;
}

}  // namespace

const char* ToString(NodeState state) {
  switch (state) {
    case NodeState::kUp:
      return "up";
    case NodeState::kDraining:
      return "draining";
    case NodeState::kLost:
      return "lost";
  }
  return "";
}

absl::StatusOr<FleetDescription> ParseFleet(absl::string_view json) {
  const absl::StatusOr<Json> parsed = ParseJson(json);
  if (!parsed.ok() || !parsed->is_object()) return Wrong("fleet", "no JSON object");
  const Json& value = *parsed;
  if (!value.contains("version") || value["version"] != kVersion) {
    return Wrong("version", absl::StrCat("a description of version ", kVersion, " is expected"));
  }
  FleetDescription fleet = {.fleet = TextOf(value, "fleet"), .nodes = {}};
  if (fleet.fleet.empty()) return Wrong("fleet", "is missing");
  const auto nodes = value.find("nodes");
  if (nodes == value.end() || !nodes->is_array() || nodes->empty()) return Wrong("nodes", "there is none");
  for (size_t i = 0; i < nodes->size(); ++i) {
    absl::StatusOr<FleetNode> node = NodeOf((*nodes)[i], absl::StrCat("nodes[", i, "]"));
    if (!node.ok()) return node.status();
    fleet.nodes.push_back(*std::move(node));
  }
  const auto by_name = [](const FleetNode& a, const FleetNode& b) { return a.name < b.name; };
  const auto same = [](const FleetNode& a, const FleetNode& b) { return a.name == b.name; };
  std::sort(fleet.nodes.begin(), fleet.nodes.end(), by_name);
  if (std::adjacent_find(fleet.nodes.begin(), fleet.nodes.end(), same) != fleet.nodes.end()) {
    return Wrong("nodes", "two have the same name");
  }
  return fleet;
}

absl::StatusOr<FleetDescription> ReadFleet(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) return absl::NotFoundError(path + ": cannot be read");
  absl::StatusOr<FleetDescription> fleet = ParseFleet(text.str());
  if (!fleet.ok()) return Wrong(path, fleet.status().message());
  return fleet;
}

}  // namespace seine
