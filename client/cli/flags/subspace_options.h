// Subspaces' settings as flags of `seine index create`.
#ifndef SEINE_CLIENT_CLI_FLAGS_SUBSPACE_OPTIONS_H_
#define SEINE_CLIENT_CLI_FLAGS_SUBSPACE_OPTIONS_H_

#include <CLI/CLI.hpp>

#include "seine/v1/index_service.pb.h"

namespace seine::cli {

// `spec` must last until the command has run. Sets the command's parse_complete_callback.
void AddSubspaceOptions(CLI::App* create, v1::IndexSpec* spec);

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_FLAGS_SUBSPACE_OPTIONS_H_
