// seine drain.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/base/exit_code.h"
#include "client/cli/base/names.h"
#include "client/cli/commands.h"
#include "client/cli/fleet/connections.h"
#include "client/fleet/drain.h"

namespace seine::cli {
namespace {

struct DrainArguments {
  std::vector<std::string> to;
  double bytes_per_second = 0;
  bool each = false, undo = false;
};

struct Connected {
  std::vector<std::unique_ptr<client::Client>> clients;
  std::vector<client::DrainTarget> targets;
};

// NAME=ADDRESS, or an address that is the name as well. A path may hold a '='; a name holds no '/' and no ':'.
client::MigrationTarget TargetOf(const std::string& to) {
  const size_t equals = to.find('=');
  if (equals == std::string::npos || equals == 0 || to.find_first_of("/:") < equals) return {to, to};
  return {to.substr(0, equals), to.substr(equals + 1)};
}

absl::Status Connect(const Session& session, const std::vector<std::string>& to, Connected* connected) {
  for (const std::string& one : to) {
    const client::MigrationTarget target = TargetOf(one);
    auto made = client::Client::Connect(target.address, OptionsOf(session));
    if (absl::IsInvalidArgument(made.status())) return UsageError(absl::StrCat("--to: ", made.status().message()));
    if (!made.ok()) return made.status();
    connected->targets.push_back({made->get(), target});
    connected->clients.push_back(*std::move(made));
  }
  return absl::OkStatus();
}

Json ToJson(const client::DrainedFamily& one) {
  Json json = {{"index", one.family.index},   {"family", one.family.name},        {"sequences", one.family.sequences},
               {"bytes", one.family.bytes},   {"outcome", ToString(one.outcome)}, {"files", one.files},
               {"file_bytes", one.file_bytes}};
  if (one.outcome == client::DrainOutcome::kMoved) {
    json.update({{"node", one.to.node}, {"address", one.to.address}, {"generation", one.generation}});
    json["pause_ms"] = absl::ToDoubleMilliseconds(one.pause);
    json["whole"] = one.why_whole;
  } else {
    json["why"] = std::string(one.why.message());
  }
  return json;
}

std::string LineOf(const client::DrainedFamily& one) {
  std::string name = absl::StrCat(one.family.index, "/", one.family.name, ": ");
  switch (one.outcome) {
    case client::DrainOutcome::kMoved:
      return absl::StrCat(name, "moved to ", one.to.node, ", ", FormatBytes(one.file_bytes), ", paused ",
                          FormatDouble(absl::ToDoubleMilliseconds(one.pause), 1), " ms", WholeText(one.why_whole),
                          "\n");
    case client::DrainOutcome::kSnapshotted:
      return absl::StrCat(name, "snapshotted, ", FormatBytes(one.file_bytes), ": ", one.why.message(), "\n");
    case client::DrainOutcome::kStays:
    case client::DrainOutcome::kLost:
      return absl::StrCat(name, ToString(one.outcome), ": ", one.why.message(), "\n");
  }
  return name;
}

// A line that a reader behind a pipe sees at once.
void PrintLine(const std::string& line) {
  PrintText(line);
  std::fflush(stdout);
}

std::string OneLine(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

// Tells of a family once it is done; without --each, JSON has them all at the end.
void Report(const Session& session, bool each, const client::DrainedFamily& one) {
  if (!session.json) PrintLine(LineOf(one));
  if (session.json && each) PrintLine(OneLine(ToJson(one)));
}

int64_t Count(const std::vector<client::DrainedFamily>& drained, client::DrainOutcome outcome) {
  return std::count_if(drained.begin(), drained.end(), [&](const auto& one) { return one.outcome == outcome; });
}

// SIGINT and SIGTERM end the drain after the family that it is at: none is left frozen, or at two servers.
std::atomic<bool> stopped = false;
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal's handler sets it

void StopBySignals() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { stopped = true; });
}

int64_t CountWhole(const std::vector<client::DrainedFamily>& drained) {
  return std::count_if(drained.begin(), drained.end(), [](const auto& one) { return !one.why_whole.empty(); });
}

// Counts the outcomes, and, where no line has told of them, lists the families.
void PrintSummary(const Session& session, bool each, const std::vector<client::DrainedFamily>& drained) {
  const int64_t moved = Count(drained, client::DrainOutcome::kMoved);
  const int64_t snapshotted = Count(drained, client::DrainOutcome::kSnapshotted);
  const int64_t stay = Count(drained, client::DrainOutcome::kStays);
  const int64_t lost = Count(drained, client::DrainOutcome::kLost);
  Json json = {{"draining", true},           {"moved", moved}, {"moved_whole", CountWhole(drained)},
               {"snapshotted", snapshotted}, {"stay", stay},   {"lost", lost}};
  if (stopped) json["stopped"] = true;
  if (session.json && each) return PrintLine(OneLine(json));
  json["families"] = Json::array();
  for (const client::DrainedFamily& one : drained) json["families"].push_back(ToJson(one));
  const std::string more = lost > 0 ? absl::StrCat(", ", lost, " lost") : "";
  session.Print(
      json, [&] { return absl::StrCat(moved, " moved, ", snapshotted, " snapshotted, ", stay, " stay", more, "\n"); });
}

absl::Status Drain(const Session& session, const DrainArguments& arguments) {
  Connected connected;
  if (absl::Status status = Connect(session, arguments.to, &connected); !status.ok()) return status;
  client::DrainOptions options;
  options.targets = connected.targets;
  options.bytes_per_second = arguments.bytes_per_second;
  options.progress = [&](const client::DrainedFamily& one) { Report(session, arguments.each, one); };
  options.stop = [] { return stopped.load(); };
  StopBySignals();
  const auto drained = client::Drain(session.client.get(), options);
  if (!drained.ok()) return drained.status();
  PrintSummary(session, arguments.each, *drained);
  const int64_t snapshotted = Count(*drained, client::DrainOutcome::kSnapshotted);
  const int64_t stay = Count(*drained, client::DrainOutcome::kStays);
  const int64_t lost = Count(*drained, client::DrainOutcome::kLost);
  if (stopped) {
    return absl::CancelledError("stopped by a signal; the server drains on, and a second run moves the rest");
  }
  if (lost > 0) {
    return absl::AbortedError(absl::StrCat("families that the server has lost, as it was started again: ", lost,
                                           "; those that stay and are in no snapshot: ", stay));
  }
  if (stay > 0) return absl::AbortedError(absl::StrCat("families that stay and are in no snapshot: ", stay));
  if (snapshotted == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("families that stay, all of them in snapshots: ", snapshotted));
}

absl::Status Undo(const Session& session) {
  const absl::StatusOr<bool> was = client::SetDraining(session.client.get(), false);
  if (!was.ok()) return was.status();
  session.Print({{"draining", false}, {"was_draining", *was}},
                [&] { return *was ? "takes new families again\n" : "did not drain\n"; });
  return absl::OkStatus();
}

}  // namespace

void AddDrainCommand(CLI::App* app, Session* session) {
  auto arguments = std::make_shared<DrainArguments>();
  CLI::App* drain = app->add_subcommand("drain", "Empty the server: no new families, and move those that it has");
  drain->footer(
      "Families move as with `family migrate`, the largest first. Each goes to the first target that has memory for "
      "it. One that no target takes serves on here, and is written to a snapshot where the server has snapshots.dir. "
      "A second run goes on. SIGINT and SIGTERM stop it after the family that it is at. Exit code 0: no family is "
      "left. 8: those that are left are in snapshots. 1: one is in "
      "none, or was lost because the server was started again.\n\n"
      "Example:\n  seine drain --to n1=host-b:7077 --to n2=host-c:7077 --bytes-per-second 200MB");
  CLI::Option* to = drain->add_option("--to", arguments->to,
                                      "NAME=ADDRESS or ADDRESS of a server that takes families; may be repeated. "
                                      "Callers are told both (default name: the address)");
  to->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  CLI::Option* bound = drain->add_option("--bytes-per-second", arguments->bytes_per_second,
                                         "Bytes of snapshots a second, on average, e.g. 200MB (default: no bound)");
  bound->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))->check(Between(1, 1e18));
  CLI::Option* each = drain->add_flag(
      "--each", arguments->each,
      "With -o json: each family on a line of its own once it is done, and a line of counts at the end");
  drain->add_flag("--undo", arguments->undo, "Take new families again; what has moved stays where it is")
      ->excludes(to)
      ->excludes(bound)
      ->excludes(each);
  drain->callback(
      [=] { session->action = [=] { return arguments->undo ? Undo(*session) : Drain(*session, *arguments); }; });
}

}  // namespace seine::cli
