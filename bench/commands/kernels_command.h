// `seine-bench kernels`: what a search on a device must move, step by step, and the least time that takes.
#ifndef SEINE_BENCH_COMMANDS_KERNELS_COMMAND_H_
#define SEINE_BENCH_COMMANDS_KERNELS_COMMAND_H_

#include <CLI/CLI.hpp>
#include <functional>

#include "absl/status/status.h"

namespace seine::bench {

void AddKernelsCommand(CLI::App* app, std::function<absl::Status()>* run);

}  // namespace seine::bench

#endif  // SEINE_BENCH_COMMANDS_KERNELS_COMMAND_H_
