// `seine`: inspects and steers a running seined from the command line.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "client/cli/commands.h"
#include "client/cli/exit_code.h"

namespace seine::cli {
namespace {

constexpr char kFooter[] =
    "Examples:\n"
    "  seine health\n"
    "  seine index create llama --layers 32 --q-heads 32 --kv-heads 8 --head-dim 128 --dtype bf16\n"
    "  seine seq create llama chat\n"
    "  seine append llama chat --layer 0 --file trace.safetensors --tensor layers.0.k\n"
    "  seine query llama chat --layer 0 --vector trace.safetensors --tensor layers.0.q --row 0 -o json\n\n";

void AddGlobals(CLI::App* app, Session* session, std::string* output) {
  app->add_option("--server", session->server,
                  "unix:///path/to/socket or host:port (default: the one seined listens on)")
      ->envname("SEINE_SERVER");
  app->add_option("--timeout", session->timeout_seconds, "Seconds to wait for an answer (default: 30)")
      ->check(CLI::Range(0.001, 1e6).description(""));
  app->add_option("-o,--output", *output, "table (default) or json")->check([](const std::string& value) {
    return value == "table" || value == "json" ? "" : "must be table or json, not " + value;
  });
  app->set_version_flag("--version", std::string("seine ") + SEINE_VERSION);
}

int Run(int argc, char** argv) {
  Session session;
  session.server = client::DefaultEndpoint();
  std::string output = "table";
  CLI::App app("Inspect and steer a Seine server.", "seine");
  app.fallthrough();
  app.footer(std::string(kFooter) + kExitCodeHelp);
  app.get_formatter()->column_width(30);
  AddGlobals(&app, &session, &output);
  AddAdminCommands(&app, &session);
  AddIndexCommands(&app, &session);
  AddSequenceCommands(&app, &session);
  AddDataCommands(&app, &session);
  AddEvictionCommands(&app, &session);
  AddSubspaceCommands(&app, &session);
  AddProfileCommands(&app, &session);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success))
      return app.exit(error);  // --help, --version
    return Report("seine", UsageError(std::string(error.what()) + " (seine --help)"));
  }
  if (!session.action) return Report("seine", UsageError("a command is required (seine --help)"));
  session.json = output == "json";
  if (!session.needs_server) return Report("seine", session.action());

  client::Options options;
  options.timeout = absl::Seconds(session.timeout_seconds);
  options.connect_timeout = std::min(options.connect_timeout, options.timeout);
  auto client = client::Client::Connect(session.server, options);
  if (absl::IsInvalidArgument(client.status())) return Report("seine", UsageError(client.status().message()));
  if (!client.ok()) return Report("seine", client.status());
  session.client = *std::move(client);
  return Report("seine", session.action());
}

}  // namespace
}  // namespace seine::cli

int main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // errors are ours to print, once
  return seine::cli::Run(argc, argv);
}
