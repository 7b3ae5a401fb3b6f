// Explains a wrong command line so that the next one is right: the command, the flag, and what was meant.
#ifndef SEINE_CLIENT_CLI_BASE_COMMAND_LINE_H_
#define SEINE_CLIENT_CLI_BASE_COMMAND_LINE_H_

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/status.h"
#include "client/cli/base/exit_code.h"

namespace seine::cli {

// The command that was given last: `index create` of "seine index create llama ...".
const CLI::App* GivenCommand(const CLI::App& program);

// "index create" of that command; empty for the program itself.
std::string PathOf(const CLI::App& command);

// The usage error of a command line that `program` did not take. What is not known is named with the nearest word that
// is: a command, or a flag of the given command.
absl::Status ExplainParseError(const CLI::App& program, const CLI::ParseError& error);

// The usage error of the first value given to `command` that is to travel to a server but is not UTF-8, which no
// message holds. Paths and tensors' names stay here, and may be any bytes.
absl::Status CheckWireText(const CLI::App& command);

// Whether -o json or --output json is given, for errors of a command line that does not parse.
bool WantsJson(int argc, char** argv);

// The flag of `command` that sets a request's field ("spec.retrieval.rescore_k": --rescore-k); empty where none does.
std::string FlagOfField(const CLI::App& command, const std::string& field);

// A server's error about a field in the words of the command line: "rescore_k: -1 is not in [0, 9]" with the field
// spec.retrieval.rescore_k becomes "llama: --rescore-k: -1 is not in [0, 9] (spec.retrieval.rescore_k)". `object` is
// what the command is about (index, or index/sequence), empty where it is about none.
ErrorReport InWordsOfTheCommandLine(const CLI::App& command, const std::string& object, const absl::Status& status);

// The report with the command that helps behind its text, as "(next: seine index list)", where there is one: what there
// is in place of what was not found, what took a name, how a server starts.
ErrorReport WithNextCommand(ErrorReport report);

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_BASE_COMMAND_LINE_H_
