// Flags of eviction's settings that several commands have, and fields of what describes an index: one for each option
// of scorers, budgets, and what is always kept. Names follow the wire's fields, `prefix` before them: "--" or
// "--evict-".
#ifndef SEINE_CLIENT_CLI_FLAGS_EVICTION_FLAGS_H_
#define SEINE_CLIENT_CLI_FLAGS_EVICTION_FLAGS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "client/cli/base/output.h"
#include "client/cli/flags/field_flags.h"
#include "seine/v1/index_service.pb.h"

namespace seine::cli {

// Each option of scorers (profile/scorer_list.h): which have it, what it says, and its default. `scorer` is called when
// one is given.
void AddScorerFlags(const FlagGroup& group, const std::function<v1::ScorerSettings*()>& scorer);

// The --evict- flags of `index create`. `filters`: the file to read with ReadEvictFilters once all flags are known.
void AddEvictionFlags(CLI::App* create, v1::IndexSpec* spec, std::string* filters);
absl::Status ReadEvictFilters(const std::string& path, v1::IndexSpec* spec);

// Adds "evict_" and the flag's name of each setting, of the scorer's options those that it has; null without eviction.
void AddEvictionFields(const v1::EvictionSettings* eviction, Json* json);

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_FLAGS_EVICTION_FLAGS_H_
