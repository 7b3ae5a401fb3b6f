// `seine`: inspects and steers a running seined from the command line.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/base/command_line.h"
#include "client/cli/base/exit_code.h"
#include "client/cli/base/help.h"
#include "client/cli/base/names.h"
#include "client/cli/commands.h"
#include "client/cli/flags/security_flags.h"
#include "profile/io/mapping.h"
#include "profile/io/standard_descriptors.h"

namespace seine::cli {
namespace {

constexpr char kStart[] =
    "seine inspects and steers a Seine server (seined).\n\n"
    "  seine health --wait 10                                  # is it there?\n"
    "  seine index create m --layers 32 --q-heads 32 --kv-heads 8 --head-dim 128\n"
    "  seine top                                               # what its indexes do\n\n"
    "seine --help has every command, and seine COMMAND --help its flags and examples.\n";
constexpr char kFooter[] =
    "Examples:\n"
    "  seine health --wait 10\n"
    "  seine index create llama --layers 32 --q-heads 32 --kv-heads 8 --head-dim 128 --dtype bf16\n"
    "  seine seq create llama chat\n"
    "  seine append llama chat --layer 0 --file trace.safetensors --tensor layers.0.k\n"
    "  seine query llama chat --layer 0 --vector trace.safetensors --tensor layers.0.q --row 0 -o json\n\n";

void AddGlobals(CLI::App* app, Session* session, std::string* output) {
  app->add_option("--server", session->server,
                  "unix:///path/to/socket, /path/to/socket or host:port (default: the socket that seined listens on)")
      ->envname("SEINE_SERVER");
  app->add_option("--fleet", session->fleet,
                  "Description of a fleet: the command goes to the node that has its sequence, in place of --server");
  AddSecurityFlags(app, &session->security);
  app->add_option("--timeout", session->timeout_seconds, "Seconds to wait for an answer (default: 30)")
      ->check(Between(0.001, 1e6));
  app->add_option("-o,--output", *output, "table or json (default: table)")->check([](const std::string& value) {
    return value == "table" || value == "json" ? "" : "must be table or json, not " + value;
  });
  app->set_version_flag("--version", std::string("seine ") + SEINE_VERSION);
}

// What the command is about: "INDEX/SEQUENCE", "INDEX", or nothing.
std::string ObjectOf(const CLI::App& command) {
  std::string object;
  for (const char* name : {"INDEX", "NAME", "--index", "ID", "FAMILY"}) {
    const CLI::Option* option = command.get_option_no_throw(name);
    if (option == nullptr || option->results().empty()) continue;
    object += (object.empty() ? "" : "/") + option->results().front();
  }
  return object;
}

// The usage error of flags that make no connection: of --server, or of the field that the message begins with.
absl::Status WrongConnection(absl::string_view what) {
  const std::string field(what.substr(0, what.find(": ")));
  for (const char* security : {"tls_ca", "tls_cert", "tls_key", "token", "token_file"}) {
    if (field != security) continue;
    return UsageError(absl::StrCat("--", absl::StrReplaceAll(field, {{"_", "-"}}), what.substr(field.size())));
  }
  return UsageError(absl::StrCat("--server: ", what));
}

// Makes the node of the command's sequence the server.
absl::Status FindInFleet(const CLI::App& command, Session* session) {
  std::string names[2];
  for (int i = 0; i < 2; ++i) {
    const CLI::Option* option = command.get_option_no_throw(i == 0 ? "INDEX" : "ID");
    if (i == 1 && option == nullptr) option = command.get_option_no_throw("FAMILY");
    if (option != nullptr && !option->results().empty()) names[i] = option->results().front();
  }
  if (names[0].empty() || names[1].empty()) {
    return UsageError(absl::StrCat("--fleet: ", PathOf(command), " names no sequence; give the --server of a node"));
  }
  absl::StatusOr<std::string> address = AddressInFleet(*session, names[0], names[1], PathOf(command) == "seq create");
  if (!address.ok()) return address.status();
  session->server = *std::move(address);
  return absl::OkStatus();
}

absl::Status Perform(const CLI::App& command, Session* session) {
  std::optional<WaitingLine> line;
  if (session->needs_server && !session->draws) {
    const double most = session->wait_seconds > 0 ? session->wait_seconds : session->timeout_seconds;
    line.emplace(PathOf(command), absl::Seconds(most), /*of_each=*/session->wait_seconds <= 0);
  }
  if (!session->needs_server) return session->action();
  if (!session->fleet.empty()) {
    if (absl::Status status = FindInFleet(command, session); !status.ok()) return status;
  }
  client::Options options;
  options.timeout = absl::Seconds(session->timeout_seconds);
  options.security = client::WithEnvironment(session->security);
  options.wait_for_server = session->wait_seconds > 0;
  options.connect_timeout = options.wait_for_server ? absl::Seconds(session->wait_seconds)
                                                    : std::min(options.connect_timeout, options.timeout);
  auto client = client::Client::Connect(session->server, options);
  if (absl::IsInvalidArgument(client.status())) return WrongConnection(client.status().message());
  if (!client.ok()) return client.status();
  session->client = *std::move(client);
  return session->action();
}

// A trace that is cut short while a command reads it.
[[noreturn]] void EndForACutFile(const absl::Status& error, bool json) {
  if (isatty(STDERR_FILENO)) std::fputs("\r\033[K", stderr);  // a progress bar
  _exit(Report("seine", {FileError(error), "", "", "", ""}, json));
}

int Run(int argc, char** argv) {
  Session session;
  session.server = client::DefaultEndpoint();
  std::string output = "table";
  CLI::App app("Inspect and steer a Seine server.", "seine");
  app.fallthrough();
  app.formatter(HelpFormatter());
  AddGlobals(&app, &session, &output);
  AddAdminCommands(&app, &session);
  AddIndexCommands(&app, &session);
  AddSequenceCommands(&app, &session);
  AddDataCommands(&app, &session);
  AddEvictionCommands(&app, &session);
  AddSubspaceCommands(&app, &session);
  AddProfileCommands(&app, &session);
  AddCallCommands(&app, &session);
  AddTopCommand(&app, &session);
  AddFleetCommands(&app, &session);
  AddFamilyCommands(&app, &session);
  AddDrainCommand(&app, &session);
  AddRecallCommand(&app, &session);
  app.footer(std::string(kFooter) + kExitCodeHelp);  // after the commands, which would inherit it
  const bool wants_json = WantsJson(argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {  // --help, --version
      app.exit(error);
      return Report("seine", {FinishStandardOutput(), "", "", "", ""}, wants_json);
    }
    return Report("seine", InWordsOfTheCommandLine(*GivenCommand(app), "", ExplainParseError(app, error)), wants_json);
  }
  session.json = output == "json";
  TellOfCutFiles(session.json ? [](const absl::Status& error) { EndForACutFile(error, true); }
                              : [](const absl::Status& error) { EndForACutFile(error, false); });
  const CLI::App& command = *GivenCommand(app);
  if (!session.action) {  // a group of commands, or nothing at all
    const std::string path = PathOf(command);
    if (!session.json) std::fputs(path.empty() ? kStart : app.help().c_str(), stderr);
    const absl::Status status = UsageError(absl::StrCat(path, path.empty() ? "" : ": ", "a command is required"));
    return Report("seine", {status, "", "", "", ""}, session.json);
  }
  absl::Status status = CheckWireText(command);
  if (status.ok()) status = Perform(command, &session);
  if (status.ok()) status = FinishStandardOutput();
  const ErrorReport report = InWordsOfTheCommandLine(command, ObjectOf(command), status);
  return Report("seine", session.json ? report : WithNextCommand(report), session.json);
}

}  // namespace
}  // namespace seine::cli

int main(int argc, char** argv) {
  seine::OpenStandardDescriptors();
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // errors are ours to print, once
  return seine::cli::Run(argc, argv);
}
