// `seine-bench prompt-attention`: flags, run, table or JSON.
#ifndef SEINE_BENCH_COMMANDS_PROMPT_ATTENTION_COMMAND_H_
#define SEINE_BENCH_COMMANDS_PROMPT_ATTENTION_COMMAND_H_

#include <CLI/CLI.hpp>
#include <functional>

#include "absl/status/status.h"

namespace seine::bench {

// Adds the subcommand; *run is set to its body when it is given on the command line.
void AddPromptAttentionCommand(CLI::App* app, std::function<absl::Status()>* run);

}  // namespace seine::bench

#endif  // SEINE_BENCH_COMMANDS_PROMPT_ATTENTION_COMMAND_H_
