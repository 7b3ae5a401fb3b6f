// Flags of eviction's settings that several commands have, and fields of what describes an index: one for each option
// of scorers, budgets, and what is always kept. Names follow the wire's fields, `prefix` before them: "--" or
// "--evict-".
#ifndef SEINE_CLIENT_CLI_FLAGS_EVICTION_FLAGS_H_
#define SEINE_CLIENT_CLI_FLAGS_EVICTION_FLAGS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/base/output.h"
#include "client/types.h"

namespace seine::cli {

// What the flags of a settings group have in common.
struct FlagGroup {
  CLI::App* command = nullptr;
  std::string prefix = "--";
  std::string name = "";         // of the group in --help; empty: the usual one
  CLI::Option* needs = nullptr;  // the flag without which the others say nothing; nullptr: none

  // Marks a flag that was just added.
  void Join(CLI::Option* option) const;
};

// `scorer`, `budget` and `keep` tell where a flag's value goes, and are called when one is given.
void AddScorerFlags(const FlagGroup& group, const std::function<client::Scorer*()>& scorer);
void AddBudgetFlags(const FlagGroup& group, const std::function<client::Budget*()>& budget);  // but for its size
void AddKeepFlags(const FlagGroup& group, const std::function<client::Keep*()>& keep);        // without positions

// The --evict- flags of `index create`. `filters`: the file to read with ReadEvictFilters once all flags are known.
void AddEvictionFlags(CLI::App* create, client::IndexSpec* spec, std::string* filters);
absl::Status ReadEvictFilters(const std::string& path, client::IndexSpec* spec);

// Adds "evict_" and the flag's name of each setting, of the scorer's options those that it has; null without eviction.
void AddEvictionFields(const std::optional<client::Eviction>& eviction, Json* json);

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_FLAGS_EVICTION_FLAGS_H_
