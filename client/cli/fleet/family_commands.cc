// seine family list | migrate.
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/base/exit_code.h"
#include "client/cli/commands.h"
#include "client/cli/fleet/connections.h"
#include "client/fleet/families.h"
#include "client/fleet/migration.h"

namespace seine::cli {
namespace {

// A family that the server has, or knows of.
struct Row {
  client::Family held;
  client::FamilyState state;
};

std::string StateOf(const Row& row) {
  if (row.state.moved) return absl::StrCat("moved to ", row.state.node);
  return row.state.frozen ? "frozen" : "serving";
}

absl::StatusOr<std::map<std::string, Row>> RowsOf(client::Client* client, const std::string& index) {
  const auto families = client::ListFamilies(client, index);
  if (!families.ok()) return families.status();
  const auto states = client::ListFamilyStates(client, index);
  if (!states.ok()) return states.status();
  std::map<std::string, Row> rows;
  for (const client::Family& one : *families) rows[one.name].held = one;
  for (const client::FamilyState& one : *states) rows[one.family].state = one;
  return rows;
}

Json ToJson(const std::string& name, const Row& row) {
  const client::FamilyState& state = row.state;
  Json json = {{"family", name},
               {"state", state.moved ? "moved" : StateOf(row)},
               {"generation", state.generation},
               {"sequences", row.held.sequences},
               {"tokens", row.held.tokens},
               {"bytes", row.held.bytes}};
  if (state.moved) json.update({{"node", state.node}, {"address", state.address}, {"held", state.held}});
  return json;
}

absl::Status List(const Session& session, const std::string& index) {
  const auto rows = RowsOf(session.client.get(), index);
  if (!rows.ok()) return rows.status();
  Json json = Json::array();
  Table table({"FAMILY", "STATE", "GENERATION", "SEQUENCES", "TOKENS", "MEMORY"});
  for (const auto& [name, row] : *rows) {
    json.push_back(ToJson(name, row));
    table.AddRow({name, StateOf(row), absl::StrCat(row.state.generation), absl::StrCat(row.held.sequences),
                  absl::StrCat(row.held.tokens), FormatBytes(row.held.bytes)});
  }
  session.Print({{"index", index}, {"families", json}}, [&] { return table.ToString(); });
  return absl::OkStatus();
}

struct MigrateArguments {
  std::string index, family, node, to;
};

absl::Status Migrate(const Session& session, const MigrateArguments& arguments) {
  const auto target = client::Client::Connect(arguments.to, OptionsOf(session));
  if (absl::IsInvalidArgument(target.status())) return UsageError(absl::StrCat("--to: ", target.status().message()));
  if (!target.ok()) return target.status();
  const std::string node = arguments.node.empty() ? arguments.to : arguments.node;
  const auto moved = client::MigrateFamily(session.client.get(), target->get(), arguments.index, arguments.family,
                                           {node, arguments.to});
  if (!moved.ok()) return moved.status();
  const double pause_ms = absl::ToDoubleMilliseconds(moved->pause);
  Json ids = Json::array();
  for (const client::SequenceInfo& one : moved->sequences) ids.push_back(one.handle.id);
  const std::string name = absl::StrCat(arguments.index, "/", arguments.family);
  session.Print({{"index", arguments.index},
                 {"family", arguments.family},
                 {"node", node},
                 {"address", arguments.to},
                 {"sequences", ids},
                 {"files", moved->files},
                 {"bytes", moved->bytes},
                 {"last_bytes", moved->last_bytes},
                 {"whole", moved->why_whole},
                 {"generation", moved->generation},
                 {"ended_earlier", moved->ended_earlier},
                 {"pause_ms", pause_ms}},
                [&] {
                  if (moved->ended_earlier) {
                    return absl::StrCat("ended a move of ", name, " to ", node, " that had stopped: ", ids.size(),
                                        " sequences are there\n");
                  }
                  return absl::StrCat("moved ", name, " to ", node, ": ", ids.size(), " sequences, ",
                                      FormatBytes(moved->bytes), ", paused ", FormatDouble(pause_ms, 1), " ms for ",
                                      FormatBytes(moved->last_bytes), WholeText(moved->why_whole), "\n");
                });
  return absl::OkStatus();
}

}  // namespace

void AddFamilyCommands(CLI::App* app, Session* session) {
  CLI::App* family = app->add_subcommand("family", "List families of sequences, and move one to another server");
  auto arguments = std::make_shared<MigrateArguments>();

  CLI::App* list = family->add_subcommand("list", "List the families of an index, and those that have moved");
  list->footer(
      "A generation counts how often a family has moved, as the server knows.\n\nExample:\n  seine family list llama");
  list->add_option("INDEX", arguments->index, "Name of the index")->required();
  list->callback([=] { session->action = [=] { return List(*session, arguments->index); }; });

  CLI::App* migrate = family->add_subcommand("migrate", "Move a family to another server, by a snapshot");
  migrate->footer(
      "Both servers need the same snapshots.dir, and the target the same index and memory for the family. It is copied "
      "while it serves; then its changes wait while what came since follows. With a server of the version before, they "
      "wait for all of it, and the output says so. Where a step fails, the family serves on at the source; once that "
      "has "
      "given it up, the error says where it waits. Run again after a mover that was killed, the command ends what that "
      "had begun. Snapshots stay in the folder.\n\n"
      "Example:\n  seine family migrate llama chat-7 --to host-b:7077 --name n1");
  migrate->add_option("INDEX", arguments->index, "Name of the index")->required();
  migrate->add_option("FAMILY", arguments->family, "The family: what stands before the first '/' of its ids")
      ->required();
  migrate->add_option("--to", arguments->to, "Address of the server that is to have it; callers are told it")
      ->required();
  migrate->add_option("--name", arguments->node, "Name of that node, as callers are told it (default: its address)");
  migrate->callback([=] { session->action = [=] { return Migrate(*session, *arguments); }; });
}

}  // namespace seine::cli
