// Wraps descriptions, lists of options and footers.
#include "client/cli/base/help.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace seine::cli {
namespace {

constexpr size_t kNameColumns = 30;  // of an option's or a command's name; a longer one has a line of its own

// "  NAME      description", the description's lines below each other.
std::string Row(const std::string& name, const std::string& description) {
  std::string row = Wrap(name, kHelpColumns - 6);
  row = absl::StrCat("  ", absl::StrReplaceAll(row, {{"\n", "\n      "}}));
  if (description.empty()) return row + "\n";
  const std::string indent(kNameColumns, ' ');
  const std::string text = absl::StrReplaceAll(Wrap(description, kHelpColumns - kNameColumns), {{"\n", "\n" + indent}});
  const bool beside = row.size() + 1 < kNameColumns;
  return absl::StrCat(row, beside ? std::string(kNameColumns - row.size(), ' ') : "\n" + indent, text, "\n");
}

class Wrapped final : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return Row(make_option_name(option, is_positional) + make_option_opts(option), make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* command) const override {
    const std::string description = command->get_description();
    return Row(command->get_display_name(true), description.substr(0, description.find("\n\n")));
  }
  std::string make_description(const CLI::App* app) const override {
    return Wrap(CLI::Formatter::make_description(app), kHelpColumns);
  }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    return Wrap(CLI::Formatter::make_usage(app, std::move(name)), kHelpColumns);
  }
  std::string make_footer(const CLI::App* app) const override {
    return Wrap(CLI::Formatter::make_footer(app), kHelpColumns);
  }
};

}  // namespace

std::string Wrap(absl::string_view text, size_t width) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, "  ") || line.size() <= width) {
      lines.emplace_back(line);
      continue;
    }
    std::string open;
    for (const absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
      if (!open.empty() && open.size() + 1 + word.size() > width) lines.push_back(std::exchange(open, ""));
      absl::StrAppend(&open, open.empty() ? "" : " ", word);
    }
    lines.push_back(open);
  }
  return absl::StrJoin(lines, "\n");
}

std::shared_ptr<CLI::Formatter> HelpFormatter() { return std::make_shared<Wrapped>(); }

}  // namespace seine::cli
