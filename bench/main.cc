// seine-bench: how well and how fast Seine retrieves and evicts, beside exact search and learned baselines.
// Data on stdout, errors on stderr. Exit code 0: done; 1: the run failed; 2: wrong flags or input.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <string>

#include "bench/commands/drift_command.h"
#include "bench/commands/evict_command.h"
#include "bench/commands/kernels_command.h"
#include "bench/commands/prompt_attention_command.h"
#include "bench/commands/prompt_command.h"
#include "bench/commands/recall/recall_command.h"
#include "bench/commands/snapshot_command.h"
#include "bench/commands/step_command.h"
#include "bench/commands/subspace_command.h"
#include "bench/idle/idle_command.h"
#include "profile/io/mapping.h"
#include "profile/io/standard_descriptors.h"
#ifdef SEINE_BENCH_SERVICE
#include "bench/serving/fleet/migrate_command.h"
#include "bench/serving/service_command.h"
#include "bench/serving/sharded/nodes_command.h"
#include "bench/serving/sharded/sharded_command.h"
#include "bench/serving/tenants_command.h"
#include "client/cli/base/command_line.h"
#include "client/cli/base/help.h"
#endif

namespace {

constexpr int kFailed = 1, kWrongInput = 2;

bool IsInput(absl::StatusCode code) {
  return code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kNotFound ||
         code == absl::StatusCode::kDataLoss || code == absl::StatusCode::kPermissionDenied;
}

constexpr char kStart[] =
    "seine-bench measures how well and how fast Seine retrieves and evicts.\n\n"
    "  seine-bench recall --synthetic rope --num-keys 65536     # synthetic keys\n"
    "  seine-bench recall --trace FILE --candidate-fraction .02,.05 # of seine_kv.trace\n"
    "  seine-bench step                                         # a decode step, beside exact attention\n\n"
    "seine-bench --help has every command, and seine-bench COMMAND --help its flags.\n";

// Says what is wrong with a command line.
std::string Explained(const CLI::App& app, const CLI::ParseError& error) {
#ifdef SEINE_BENCH_SERVICE
  return std::string(seine::cli::ExplainParseError(app, error).message());
#else
  return error.what();
#endif
}

int Ended(const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "seine-bench: %s\n", std::string(status.message()).c_str());
  return IsInput(status.code()) ? kWrongInput : kFailed;
}

}  // namespace

int main(int argc, char** argv) {
  seine::OpenStandardDescriptors();
  seine::TellOfCutFiles([](const absl::Status& error) { _exit(Ended(error)); });
  CLI::App app(
      "seine-bench: how well and how fast Seine retrieves and evicts, beside exact search and learned baselines.\n"
      "`seine-bench COMMAND --help` says what is measured and how.");
  app.name("seine-bench");
  app.set_version_flag("--version", "seine-bench " SEINE_VERSION);
  app.require_subcommand(1);
#ifdef SEINE_BENCH_SERVICE
  app.formatter(seine::cli::HelpFormatter());
#endif
  std::function<absl::Status()> run;
  seine::bench::AddRecallCommand(&app, &run);
  seine::bench::AddDriftCommand(&app, &run);
  seine::bench::AddPromptCommand(&app, &run);
  seine::bench::AddPromptAttentionCommand(&app, &run);
  seine::bench::AddEvictCommand(&app, &run);
  seine::bench::AddStepCommand(&app, &run);
  seine::bench::AddKernelsCommand(&app, &run);
  seine::bench::AddSubspaceCommand(&app, &run);
  seine::bench::AddSnapshotCommand(&app, &run);
  seine::bench::AddIdleCommand(&app, &run);
#ifdef SEINE_BENCH_SERVICE
  seine::bench::AddServiceCommand(&app, &run);
  seine::bench::AddTenantsCommand(&app, &run);
  seine::bench::AddShardedCommand(&app, &run);
  seine::bench::AddNodesCommand(&app, &run);
  seine::bench::AddMigrateCommand(&app, &run);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {  // --help, --version
      app.exit(e);
      return Ended(seine::FinishStandardOutput());
    }
    if (argc == 1) std::fputs(kStart, stderr);
    std::fprintf(stderr, "seine-bench: %s\n", Explained(app, e).c_str());
    return kWrongInput;
  }
  absl::Status status = run();
  if (status.ok()) status = seine::FinishStandardOutput();
  return Ended(status);
}
