// --help of our programs: no line is wider than 100 columns, whatever the texts are.
#ifndef SEINE_CLIENT_CLI_BASE_HELP_H_
#define SEINE_CLIENT_CLI_BASE_HELP_H_

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace seine::cli {

inline constexpr size_t kHelpColumns = 100;

// `text` in lines of at most `width` characters, broken between words; a word that is longer stays whole. Lines of the
// text stay apart, and one that begins with two spaces (an example) is left as it is.
std::string Wrap(absl::string_view text, size_t width);

// For App::formatter, before subcommands are added: they inherit it.
std::shared_ptr<CLI::Formatter> HelpFormatter();

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_BASE_HELP_H_
