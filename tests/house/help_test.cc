// What --help prints as an example is a command line that its program takes. Every command of every program is asked
// for its help; what the examples name (indexes, files) does not exist here, which is another error than a wrong
// command line.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/temp_folder.h"

namespace seine {
namespace {

constexpr int kWrongCommandLine = 2;  // of every program of ours

struct Outcome {
  int exit_code = -1;
  std::string text;  // of stdout and stderr
};

Outcome Shell(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen(("{ " + command + "\n} 2>&1 </dev/null").c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (size_t got; (got = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) outcome.text.append(buffer, got);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

const std::map<std::string, std::string>& Programs() {
  static const auto* const kPrograms = new std::map<std::string, std::string>{
      {"seine", SEINE_PROGRAM},
      {"seined", SEINED_PROGRAM},
      {"seine-demo", SEINE_DEMO_PROGRAM},
#ifdef SEINE_BENCH_PROGRAM
      {"seine-bench", SEINE_BENCH_PROGRAM},
#endif
  };
  return *kPrograms;
}

// An example: a line that is set in and begins with a program of ours, without what the shell does with it. A line that
// ends in a backslash goes on in the next.
std::set<std::string> ExamplesIn(const std::string& help) {
  static const std::regex kExample(R"(^\s+((?:seine|seined|seine-demo|seine-bench) .*?)\s*(?:#.*|&.*|\|.*|>.*)?$)");
  std::set<std::string> examples;
  std::istringstream in(help);
  std::string line, next;
  while (std::getline(in, line)) {
    while (!line.empty() && line.back() == '\\' && std::getline(in, next))
      line = line.substr(0, line.size() - 1) + next;
    std::smatch match;
    if (std::regex_match(line, match, kExample)) examples.insert(match[1]);
  }
  return examples;
}

// The help of a command and of all below it. A command is what --help has a line for and whose own help is another
// text.
void Crawl(const std::string& command, const std::string& help, int* commands, std::set<std::string>* examples) {
  static const std::regex kName(R"(^  ([a-z][a-z-]*)(?:\s.*)?$)");
  ++*commands;
  examples->merge(ExamplesIn(help));
  std::istringstream in(help);
  std::string line;
  std::smatch match;
  while (std::getline(in, line)) {
    if (!std::regex_match(line, match, kName) || Programs().count(match[1]) != 0) continue;
    const std::string below = command + " " + match[1].str();
    const Outcome outcome = Shell(below + " --help");
    if (outcome.exit_code == 0 && outcome.text != help) Crawl(below, outcome.text, commands, examples);
  }
}

class HelpTest : public testing::Test {
 protected:
  // The example as its program takes it here: at a server that does not exist, or so that it only reads its command
  // line.
  std::string Dry(const std::string& example) const {
    const std::string program = example.substr(0, example.find(' '));
    const std::string arguments = example.substr(program.size());
    std::string line = "cd '" + folder_.Path("") + "' && XDG_RUNTIME_DIR='" + folder_.Path("") +
                       "' SEINE_SERVER=unix://'" + folder_.Path("none.sock") + "' timeout 20 " +
                       Programs().at(program) + arguments;
    if (program == "seined") return line + " --check-config";
    if (program == "seine-bench") return line + " --of-no-program";
    return std::regex_replace(line, std::regex(" --wait [0-9.]+"), " --wait .01");
  }
  // Empty: the program takes it.
  std::string Complaint(const std::string& example) const {
    const Outcome outcome = Shell(Dry(example));
    if (example.rfind("seine-bench ", 0) == 0) {  // files that are missing have the same exit code
      const bool only = outcome.text.find("unknown flag --of-no-program ") != std::string::npos;
      return only ? "" : outcome.text;
    }
    if (outcome.exit_code < 0) return "ended by a signal: " + outcome.text;
    return outcome.exit_code == kWrongCommandLine || outcome.exit_code >= 124 ? outcome.text : "";
  }
  TempFolder folder_;
};

TEST_F(HelpTest, EveryExampleIsTaken) {
  int commands = 0;
  std::set<std::string> examples;
  for (const auto& [name, path] : Programs()) {
    const Outcome outcome = Shell(path + " --help");
    ASSERT_EQ(outcome.exit_code, 0) << name << ": " << outcome.text;
    Crawl(path, outcome.text, &commands, &examples);
  }
  EXPECT_GT(commands, 20) << "the commands were not found";
  EXPECT_GT(examples.size(), 8u) << "the examples were not found";
  for (const std::string& example : examples) EXPECT_EQ(Complaint(example), "") << example;
}

// What a file of settings may look like, as seined's help has it, is one that seined takes.
TEST_F(HelpTest, TheSettingsFileIsTaken) {
  const std::string help = Shell(Programs().at("seined") + " --help").text;
  const std::regex file(R"(\n((?:  [ ]*[a-z-][^\n]*\n)*  server:\n(?:  [^\n]*\n)+))");
  std::smatch match;
  ASSERT_TRUE(std::regex_search(help, match, file)) << help;
  const std::string path = folder_.Write("seined.yaml", match[1]);
  const Outcome outcome = Shell(Programs().at("seined") + " --check-config --config '" + path + "'");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text << match[1];
}

TEST_F(HelpTest, AWrongExampleIsFound) {
  for (const char* wrong : {
           "seine index create llama --layer 32 --q-heads 32 --kv-heads 8 --head-dim 128",  // no such flag
           "seine index create llama --layers 32 --kv-heads 8 --head-dim 128",              // --q-heads is required
           "seine index create llama --layers 32 --q-heads 32 --kv-heads 8 --head-dim 128 --kv-store both",
           "seine seq create llama chat again",
           "seine sequence list llama",
           "seine-demo --trace a.safetensors --of-another-program",
           "seined --memory-limit much",
#ifdef SEINE_BENCH_PROGRAM
           "seine-bench recall --trace a.safetensors --no-such-flag",
           "seine-bench remember",
#endif
       }) {
    EXPECT_NE(Complaint(wrong), "") << wrong;
  }
  EXPECT_EQ(ExamplesIn("seine is no example\n  seine health --wait 10 && echo up\n  seined --check-config   # what\n"
                       "  seine seq \\\n    list llama\n  see seined\n"),
            (std::set<std::string>{"seine health --wait 10", "seined --check-config", "seine seq     list llama"}));
}

}  // namespace
}  // namespace seine
