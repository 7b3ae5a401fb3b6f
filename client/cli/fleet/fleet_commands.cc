// seine fleet status | rank, and where --fleet sends other commands.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/base/exit_code.h"
#include "client/cli/commands.h"
#include "client/cli/fleet/connections.h"
#include "client/fleet/families.h"
#include "client/fleet/fleet_client.h"
#include "client/fleet/placement.h"

namespace seine::cli {
namespace {

// What one node says of itself.
struct NodeStatus {
  FleetNode node;
  absl::Status error;  // not OK: it did not answer, and the rest is empty
  bool serving = false;
  v1::GetServerInfoResponse info;
  int64_t families = 0;
};

absl::Status Ask(client::Client* client, NodeStatus* status) {
  const absl::StatusOr<bool> serving = client->IsServing("");
  if (!serving.ok()) return serving.status();
  status->serving = *serving;
  absl::StatusOr<v1::GetServerInfoResponse> info = client->GetServerInfo();
  if (!info.ok()) return info.status();
  status->info = *std::move(info);
  const absl::StatusOr<std::vector<client::Family>> families = client::ListFamilies(client);
  if (!families.ok()) return families.status();
  status->families = static_cast<int64_t>(families->size());
  return absl::OkStatus();
}

std::string HealthOf(const NodeStatus& status) {
  if (!status.error.ok()) return "unreachable";
  if (status.info.draining()) return "draining";
  return status.serving ? "serving" : "not serving";
}

Json ToJson(const NodeStatus& status) {
  Json json = {{"name", status.node.name},
               {"address", status.node.address},
               {"generation", status.node.generation},
               {"state", ToString(status.node.state)},
               {"health", HealthOf(status)}};
  if (!status.error.ok()) {
    json["error"] = std::string(status.error.message());
    return json;
  }
  json["families"] = status.families;
  json["sequences"] = status.info.num_sequences();
  json["memory_bytes"] = status.info.memory_bytes();
  json["memory_limit_bytes"] = status.info.memory_limit_bytes();
  json["uptime_seconds"] = status.info.uptime_seconds();
  return json;
}

std::vector<std::string> RowOf(const NodeStatus& status) {
  const v1::GetServerInfoResponse& info = status.info;
  std::vector<std::string> row = {status.node.name, ToString(status.node.state), HealthOf(status)};
  if (!status.error.ok()) {
    row.insert(row.end(), {"-", "-", "-", "-"});
  } else {
    row.insert(row.end(),
               {absl::StrCat(status.families), absl::StrCat(info.num_sequences()), FormatBytes(info.memory_bytes()),
                info.memory_limit_bytes() > 0 ? FormatBytes(info.memory_limit_bytes()) : "none"});
  }
  row.push_back(status.node.address);
  return row;
}

// Every node is asked, whatever the file says of it. UNAVAILABLE if one that should serve does not.
absl::Status Status(const Session& session, const std::string& path) {
  absl::StatusOr<FleetDescription> fleet = ReadFleet(path);
  if (!fleet.ok()) return FileError(fleet.status());
  const std::unique_ptr<client::FleetClient> clients = client::FleetClient::Create(*fleet, OptionsOf(session));
  Json nodes = Json::array();
  Table table({"NODE", "STATE", "HEALTH", "FAMILIES", "SEQUENCES", "MEMORY", "LIMIT", "ADDRESS"});
  std::vector<std::string> missing;
  std::optional<ProgressBar> bar(std::in_place, "nodes asked", static_cast<int64_t>(fleet->nodes.size()));
  for (const FleetNode& node : fleet->nodes) {
    bar->Update(nodes.size());
    NodeStatus status = {.node = node, .error = {}, .serving = false, .info = {}, .families = 0};
    const absl::StatusOr<client::Client*> client = clients->At(node.name);
    status.error = client.ok() ? Ask(*client, &status) : client.status();
    const bool serves = status.error.ok() && (status.serving || status.info.draining());
    if (!serves && node.state != NodeState::kLost) missing.push_back(node.name);
    nodes.push_back(ToJson(status));
    table.AddRow(RowOf(status));
  }
  bar.reset();
  session.Print({{"fleet", fleet->fleet}, {"nodes", nodes}}, [&] { return table.ToString(); });
  if (missing.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(absl::StrJoin(missing, ", "), missing.size() == 1 ? " does" : " do", " not serve"));
}

// Prints the nodes for a family in the order of the hash, whether or not they serve.
absl::Status Rank(const Session& session, const std::string& path, const std::string& id) {
  const absl::StatusOr<FleetDescription> fleet = ReadFleet(path);
  if (!fleet.ok()) return FileError(fleet.status());
  std::vector<std::string> names;
  for (const FleetNode& node : fleet->nodes) names.push_back(node.name);
  const std::string family(client::FamilyOf(id));
  names = client::RankNodes(family, std::move(names));
  session.Print({{"family", family}, {"nodes", names}},
                [&] { return absl::StrCat(family, ": ", absl::StrJoin(names, " "), "\n"); });
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> AddressInFleet(const Session& session, const std::string& index, const std::string& id,
                                           bool creates) {
  absl::StatusOr<FleetDescription> read = ReadFleet(session.fleet);
  if (!read.ok()) return FileError(read.status());
  const std::unique_ptr<client::FleetClient> fleet = client::FleetClient::Create(*read, OptionsOf(session));
  const absl::StatusOr<std::string> node = creates ? fleet->PlaceFor(index, id) : fleet->NodeOf(index, id);
  if (!node.ok()) return node.status();
  const auto named = [&](const FleetNode& known) { return known.name == *node; };
  return std::find_if(read->nodes.begin(), read->nodes.end(), named)->address;
}

void AddFleetCommands(CLI::App* app, Session* session) {
  CLI::App* fleet = app->add_subcommand("fleet", "Look at a fleet of servers, by the description of seine_kv.fleet");
  auto path = std::make_shared<std::string>();
  auto id = std::make_shared<std::string>();

  CLI::App* status = fleet->add_subcommand("status", "Show nodes, health, families, sequences and memory");
  status->footer("Exit code 4 if a node that should serve does not.\n\nExample:\n  seine fleet status fleet.json");
  status->add_option("FILE", *path, "Description of the fleet (Fleet.write)")->required();
  status->callback([=] {
    session->needs_server = false;
    session->action = [=] { return Status(*session, *path); };
  });

  CLI::App* rank = fleet->add_subcommand("rank", "Show the order in which nodes are tried for a family");
  rank->footer("Example:\n  seine fleet rank fleet.json chat-7");
  rank->add_option("FILE", *path, "Description of the fleet (Fleet.write)")->required();
  rank->add_option("ID", *id, "Id of a sequence: its family counts, what stands before the first '/'")->required();
  rank->callback([=] {
    session->needs_server = false;
    session->action = [=] { return Rank(*session, *path, *id); };
  });
}

}  // namespace seine::cli
