// Subspaces' settings as flags of `seine index create`, and as fields of what describes an index.
#ifndef SEINE_CLIENT_CLI_FLAGS_SUBSPACE_OPTIONS_H_
#define SEINE_CLIENT_CLI_FLAGS_SUBSPACE_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <optional>

#include "client/cli/base/output.h"
#include "client/types.h"

namespace seine::cli {

// `spec` must last until the command has run. Sets the command's parse_complete_callback.
void AddSubspaceOptions(CLI::App* create, client::IndexSpec* spec);

// Adds "subspace_" and the flag's name of each setting; null without subspaces.
void AddSubspaceFields(const std::optional<client::Subspace>& subspace, Json* json);

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_FLAGS_SUBSPACE_OPTIONS_H_
