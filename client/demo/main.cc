// `seine-demo`: shows what Seine does. A decode of a real model, recorded with its queries and keys, is answered by a
// running seined; the answers are held against exact attention.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/base/command_line.h"
#include "client/cli/base/exit_code.h"
#include "client/cli/base/help.h"
#include "client/cli/base/names.h"
#include "client/cli/base/output.h"
#include "client/client.h"
#include "client/demo/print.h"
#include "client/demo/replay.h"
#include "client/demo/timing.h"
#include "client/demo/trace.h"
#include "profile/io/mapping.h"
#include "profile/io/standard_descriptors.h"

namespace seine::demo {
namespace {

struct Flags {
  std::string server = client::DefaultEndpoint(), trace, output = "table", transport = "auto";
  double wait_seconds = 10;
  ReplayOptions options;
};

void AddFlags(CLI::App* app, Flags* f) {
  ReplayOptions& options = f->options;
  app->add_option("--server", f->server,
                  "unix:///path/to/socket, /path/to/socket or host:port (default: the socket that seined listens on)")
      ->envname("SEINE_SERVER");
  app->add_option("--trace", f->trace, "Recorded queries and keys (python -m seine_kv.trace)")->required();
  app->add_option("--steps", options.steps, "Decode steps: the trace's last tokens (default: 512)");
  app->add_option("--top-k", options.top_k, "Tokens retrieved for each query head (default: 100)")
      ->check(CLI::Range(1, 65536));
  app->add_option("--profile", options.profile,
                  "One of the server's model profiles: keys are held in the balanced code instead of ParisKV's");
  app->add_option("--model-layers", options.model_layers,
                  "Layers of the model, as the profile has them (default: up to the last recorded)");
  app->add_option("--candidate-fraction,--beta", options.beta,
                  "Share of the zone kept as candidates; 0: the index's own, which falls with length (default: .10)");
  app->add_option("--rescore-k,--refine", options.refine, "Survivors that are scored exactly (default: 200)");
  app->add_option("--transport", f->transport,
                  "What carries the steps: auto (as engines do: the same-host channel, or gRPC where there is none), "
                  "shm (the channel or an error), blocking (gRPC), polling (gRPC, least latency, one core spins) "
                  "(default: auto)")
      ->check(CLI::IsMember(TransportNames()).description(""));
  app->add_option("--long-tokens", options.long_tokens,
                  "Attention is timed also at 4 and 16 times the trace's length and so on, up to this one, over the "
                  "trace's rows again and again; 0: at the trace's length alone (default: 131072)")
      ->check(CLI::Range(0, 1 << 24).description(""))
      ->option_text("INT");
  app->add_option("--wait", f->wait_seconds, "Seconds to wait for the server (default: 10)")
      ->check(cli::Between(0, 1e6));
  app->add_option("-o,--output", f->output, "table or json (default: table)")
      ->check(CLI::IsMember({"table", "json"}).description(""));
  app->footer(absl::StrCat(kJsonHelp, "\n", cli::kExitCodeHelp));
}

absl::Status Show(Flags f) {
  f.options.transport = *TransportOf(f.transport);
  const absl::StatusOr<Trace> trace = Trace::Open(f.trace);
  if (!trace.ok()) return cli::FileError(trace.status());
  client::Options connection;
  connection.connect_timeout = absl::Seconds(f.wait_seconds);
  connection.wait_for_server = true;
  connection.security = client::SecurityFromEnvironment();
  const auto client = client::Client::Connect(f.server, connection);
  if (absl::IsInvalidArgument(client.status())) return cli::UsageError(client.status().message());
  if (!client.ok()) return client.status();
  const absl::StatusOr<Report> report = Replay(client->get(), *trace, f.options);
  if (!report.ok()) return report.status();
  const auto times = TimeAttention(client->get(), *trace, f.options, report->threads);
  if (!times.ok()) return times.status();
  const Measured measured = {*report, *times};
  if (f.output == "json") {
    cli::PrintJson(ToJson(*trace, f.options, measured));
  } else {
    cli::PrintText(ToText(*trace, f.options, measured));
  }
  return FinishStandardOutput();
}

int Run(int argc, char** argv) {
  Flags flags;
  CLI::App app("Replay a recorded decode of a real model through a running seined, and compare with exact attention.",
               "seine-demo");
  app.formatter(cli::HelpFormatter());
  AddFlags(&app, &flags);
  const bool json = cli::WantsJson(argc, argv);
  TellOfCutFiles([](const absl::Status& error) { _exit(cli::Report("seine-demo", cli::FileError(error))); });
  absl::Status status;
  try {
    app.parse(argc, argv);
    status = Show(flags);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      app.exit(error);
      status = FinishStandardOutput();
    } else {
      status = cli::ExplainParseError(app, error);
    }
  }
  return cli::Report("seine-demo", cli::InWordsOfTheCommandLine(app, "", status), json);
}

}  // namespace
}  // namespace seine::demo

int main(int argc, char** argv) {
  seine::OpenStandardDescriptors();
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // errors are ours to print, once
  return seine::demo::Run(argc, argv);
}
