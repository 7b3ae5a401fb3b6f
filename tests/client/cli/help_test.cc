// The help of every command: its width, its examples, and the defaults that it states.
#include <regex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/client/cli/cli_fixture.h"

namespace seine {
namespace {

// `seine` and the words of `line`.
std::vector<std::string> Words(const std::string& line) {
  std::vector<std::string> words = {SEINE_PROGRAM};
  for (const absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) words.emplace_back(word);
  return words;
}

// Every command, as the help of the groups lists them.
std::vector<std::string> Commands() {
  std::vector<std::string> commands = {""};
  for (size_t i = 0; i < commands.size(); ++i) {
    const std::string help = RunProgram(Words(commands[i] + " --help")).out;
    const size_t list = help.find("\nSubcommands:\n");
    if (list == std::string::npos) continue;
    for (const absl::string_view line : absl::StrSplit(help.substr(list + 14), '\n')) {
      if (line.size() < 3 || line[2] == ' ' || !absl::StartsWith(line, "  ")) {
        if (line.empty()) break;
        continue;
      }
      const std::string name(line.substr(2, line.find(' ', 2) - 2));
      commands.push_back(commands[i].empty() ? name : commands[i] + " " + name);
    }
  }
  return commands;
}

TEST_F(CliTest, AGroupWithoutACommandShowsItsHelp) {
  for (const std::string group : {"index", "seq", "head", "subspace", "profile"}) {
    const Outcome outcome = Seine(group);
    EXPECT_EQ(outcome.exit_code, 2) << group;
    EXPECT_EQ(outcome.out, "") << group;
    const Outcome help = Seine(group + " --help");
    EXPECT_EQ(outcome.err, absl::StrCat(help.out, "seine: error: ", group, ": a command is required\n")) << group;
    EXPECT_TRUE(absl::StrContains(help.out, "Subcommands:")) << help.out;
  }
}

TEST_F(CliTest, WithoutArgumentsThereAreThreeExamplesThatParse) {
  const Outcome outcome = Seine("");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(absl::EndsWith(outcome.err, "\nseine: error: a command is required\n")) << outcome.err;
  int examples = 0;
  for (const absl::string_view line : absl::StrSplit(outcome.err, '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
    if (!absl::StartsWith(line, "  seine ")) continue;
    ++examples;
    const std::string example = absl::StrReplaceAll(line.substr(8), {{"--wait 10", "--wait .01"}});
    const Outcome without_server =
        RunProgram({"/bin/sh", "-c", "exec \"$0\" " + example, SEINE_PROGRAM}, {"SEINE_SERVER=/nowhere/seine.sock"});
    EXPECT_EQ(without_server.exit_code, 4) << line << ": " << without_server.err;
  }
  EXPECT_EQ(examples, 3);
}

TEST(CliHelp, IsAHundredColumnsWideAndHasItsOwnExamplesOnly) {
  const std::vector<std::string> commands = Commands();
  EXPECT_GE(commands.size(), 25u);
  for (const std::string& command : commands) {
    const Outcome help = RunProgram(Words(command + " --help"));
    EXPECT_EQ(help.exit_code, 0) << command;
    int examples = 0;
    for (const absl::string_view line : absl::StrSplit(help.out, '\n')) {
      EXPECT_LE(line.size(), 100u) << command << ": " << line;
      EXPECT_EQ(line.find_last_not_of(' '), line.empty() ? absl::string_view::npos : line.size() - 1) << line;
      if (!absl::StartsWith(line, "  seine ")) continue;
      ++examples;
      if (command.empty()) continue;  // the program's own: the first steps
      EXPECT_TRUE(absl::StartsWith(line, absl::StrCat("  seine ", command))) << command << ": " << line;
    }
    const bool group = absl::StrContains(help.out, "\nSubcommands:\n");
    EXPECT_GE(examples, group ? 0 : 1) << command;
    EXPECT_EQ(absl::StrContains(help.out, "Exit codes:"), command.empty()) << command;
  }
}

// An example that does not parse would end with 2; without a server and files they end with 4 or 3, and where they need
// neither with 0.
TEST(CliHelp, ExamplesAreTaken) {
  TempFolder folder;
  for (const std::string& command : Commands()) {
    const Outcome help = RunProgram(Words(command + " --help"));
    for (const absl::string_view line : absl::StrSplit(help.out, '\n')) {
      if (!absl::StartsWith(line, "  seine ")) continue;
      std::string example(line.substr(8));
      example = absl::StrReplaceAll(example.substr(0, example.find(" &&")), {{"--wait 10", "--wait .01"}});
      const Outcome outcome = RunProgram({"/bin/sh", "-c", "exec \"$0\" " + example, SEINE_PROGRAM},
                                         {"SEINE_SERVER=" + folder.Path("no.sock")});
      const bool alone = absl::StrContains(line, " --list") || absl::StrContains(line, " --describe");
      EXPECT_TRUE(alone ? outcome.exit_code == 0 : outcome.exit_code == 4 || outcome.exit_code == 3)
          << line << ": " << outcome.err;
    }
  }
}

// The server's own word is what a default is held against.
TEST_F(CliTest, HelpShowsTheServersDefaults) {
  const Json made = SeineJson("index create plain --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64");
  const std::string help =
      absl::StrReplaceAll(Seine("index create --help").out, {{"\n                              ", " "}});
  const std::pair<const char*, const char*> flags[] = {{"sink", "sink"},
                                                       {"local", "local"},
                                                       {"update-buffer", "update_buffer"},
                                                       {"dense-threshold", "dense_threshold"},
                                                       {"seed", "seed"},
                                                       {"window", "window"},
                                                       {"centre", "centre"},
                                                       {"dtype", "dtype"},
                                                       {"top-k", "top_k"},
                                                       {"candidate-fraction", "candidate_fraction"},
                                                       {"rescore-k", "rescore_k"},
                                                       {"coarse", "coarse"},
                                                       {"collision-fraction", "collision_fraction"},
                                                       {"scope", "scope"},
                                                       {"gqa-reduce", "gqa_reduce"},
                                                       {"kv-store", "kv_store"}};
  for (const auto& [flag, key] : flags) {
    const std::regex row(absl::StrCat("\n  --", flag, "[ ,][^\n]*\\(default: ([^)]*)\\)"));
    std::smatch found;
    ASSERT_TRUE(std::regex_search(help, found, row)) << flag << "\n" << help;
    const Json value = made[key];
    if (value.is_string()) {
      EXPECT_EQ(found[1], value.get<std::string>()) << flag;
    } else {
      EXPECT_NEAR(std::stod(found[1]), value.get<double>(), 1e-9) << flag;
    }
  }
  EXPECT_EQ(Seine("index delete plain").exit_code, 0);
}

}  // namespace
}  // namespace seine
