// ListServers of AdminService.
#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "index/index.h"
#include "profile/io/endpoint.h"
#include "service/access/caller.h"
#include "service/calls/calls.h"
#include "service/catalog.h"
#include "service/families/sequence_families.h"
#include "service/fields/error.h"
#include "service/fleet/fleet_watch.h"

namespace seine {
namespace {

constexpr int kMostOfAPage = 100;
constexpr char kToken = ':';  // opens a token; the name of the last server of its page follows

struct Known {
  FleetNode node;  // of one that a family names, its name and address alone
  v1::KnownBy by = v1::KNOWN_BY_FILE;
  int64_t families = 0;
  uint64_t newest = 0;  // generation of the family that told the address
};
using Servers = std::map<std::string, Known>;  // by name

// Adds the servers that families of this one have moved to.
void AddHomes(const Core& core, Servers* servers) {
  for (const auto& index : core.catalog.List(CurrentTenant())) {
    for (const KnownFamily& family : core.families.List(CurrentTenant(), index->config().name)) {
      if (!family.moved) continue;
      Known& known = servers->try_emplace(family.home.node, Known{.node = {}, .by = v1::KNOWN_BY_FAMILY}).first->second;
      ++known.families;
      if (known.by == v1::KNOWN_BY_FILE || family.home.generation < known.newest) continue;
      known.newest = family.home.generation;
      known.node.name = family.home.node;
      known.node.address = family.home.address;
    }
  }
}

bool IsOwnAddress(const Core& core, const std::string& address) {
  const std::string path = SocketPath(address);
  return path.empty() ? address == core.address : SocketPath(core.address) == path;
}

void ToProto(const Known& known, v1::FleetServer* out) {
  out->set_name(known.node.name);
  out->set_address(known.node.address);
  out->set_known_by(known.by);
  out->set_families(known.families);
  if (known.by != v1::KNOWN_BY_FILE) return;
  out->set_generation(known.node.generation);
  out->set_state(ToString(known.node.state));
}

void ToProto(const WatchedServer& said, v1::FleetServer* out) {
  out->set_health(said.health);
  out->set_error(said.error);
  if (said.asked != WatchedServer::Clock::time_point()) {
    out->set_age_seconds(std::chrono::duration<double>(WatchedServer::Clock::now() - said.asked).count());
  }
  if (said.info != nullptr) *out->mutable_info() = *said.info;
}

// The server that answers, as it is now.
void DescribeItself(Core& core, v1::FleetServer* out) {
  out->set_itself(true);
  if (out->address().empty()) out->set_address(core.address);
  out->set_health(core.draining ? v1::SERVER_HEALTH_DRAINING : v1::SERVER_HEALTH_SERVING);
  out->set_age_seconds(0);
  out->clear_error();
  DescribeServer(core, out->mutable_info());
}

// Adds this server where the file does not name it: by its address, or by what it has said when it was asked there.
void AddItself(const Core& core, Servers* servers) {
  const bool named = std::any_of(servers->begin(), servers->end(), [&](const auto& one) {
    return one.second.by == v1::KNOWN_BY_FILE &&
           (IsOwnAddress(core, one.second.node.address) || core.fleet->InstanceOf(one.first) == core.instance);
  });
  if (!named) (*servers)[""] = {.node = {}, .by = v1::KNOWN_BY_ITSELF};
}

}  // namespace

absl::Status ListServers(Core& core, const v1::ListServersRequest& request, v1::ListServersResponse* response) {
  if (!CurrentTenant().empty()) {
    return Explain(absl::PermissionDeniedError("only the server's own tenant sees the fleet"), "");
  }
  if (request.page_size() < 0) return FieldError("OUT_OF_LIMITS", "page_size", "negative");
  absl::string_view after = request.page_token();
  if (!after.empty() && !absl::ConsumePrefix(&after, std::string(1, kToken))) {
    return FieldError("BAD_ID", "page_token", "is none that an answer has had");
  }
  const size_t page = request.page_size() == 0 ? kMostOfAPage : std::min(request.page_size(), kMostOfAPage);
  Servers servers;
  if (core.fleet != nullptr) {
    const absl::StatusOr<FleetDescription> fleet = core.fleet->Describe();
    if (fleet.ok()) {
      response->set_fleet(fleet->fleet);
      for (const FleetNode& node : fleet->nodes) servers[node.name] = {.node = node};
    } else {
      response->set_file_error(absl::StrCat("fleet.file: ", OneLine(fleet.status().message())));
    }
  }
  AddHomes(core, &servers);
  AddItself(core, &servers);
  response->set_num_servers(static_cast<int64_t>(servers.size()));

  std::vector<FleetNode> asked;
  std::vector<int> places;  // of `asked` in the answer
  auto next = request.page_token().empty() ? servers.begin() : servers.upper_bound(std::string(after));
  for (; next != servers.end() && response->servers_size() < static_cast<int>(page); ++next) {
    ToProto(next->second, response->add_servers());
    if (next->second.by != v1::KNOWN_BY_FILE) continue;
    asked.push_back(next->second.node);
    places.push_back(response->servers_size() - 1);
  }
  if (next != servers.end() && response->servers_size() > 0) {
    const std::string& last = response->servers(response->servers_size() - 1).name();
    response->set_next_page_token(absl::StrCat(std::string(1, kToken), last));
  }
  if (!asked.empty()) {
    const std::vector<WatchedServer> said = core.fleet->Look(asked);
    for (size_t i = 0; i < said.size(); ++i) ToProto(said[i], response->mutable_servers(places[i]));
  }
  for (v1::FleetServer& server : *response->mutable_servers()) {
    const bool named = server.known_by() == v1::KNOWN_BY_FILE &&
                       (IsOwnAddress(core, server.address()) || server.info().instance() == core.instance);
    if (!named && server.known_by() != v1::KNOWN_BY_ITSELF) continue;
    DescribeItself(core, &server);
  }
  return absl::OkStatus();
}

}  // namespace seine
