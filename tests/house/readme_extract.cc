// Writes README.md's C++ blocks, or a header's sample, as sources that the build compiles: the Nth block of C++ becomes
// the Nth file named. A block given as excerpt:SOURCE must stand in that source, but for blanks.
// usage: readme_extract README.md (FILE | excerpt:SOURCE)... | readme_extract --sample HEADER FILE
#include <cctype>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "tests/house/readme_blocks.h"

namespace {

constexpr char kExcerpt[] = "excerpt:";

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

int Fail(const std::string& what) {
  std::cerr << "readme_extract: " << what << "\n";
  return 1;
}

std::string LineDirective(int line, const std::string& path) {
  return "#line " + std::to_string(line) + " \"" + path + "\"\n";
}

std::string WithoutBlanks(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0; });
  return text;
}

// The lines of the comment that opens a header which are set in by three blanks.
std::string SampleOf(const std::string& path) {
  std::istringstream in(ReadFile(path));
  std::string text, line;
  for (int number = 1; std::getline(in, line) && line.rfind("//", 0) == 0; ++number) {
    if (line.rfind("//   ", 0) == 0) text += LineDirective(number, path) + line.substr(5) + "\n";
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 3 && arguments[0] == "--sample") {
    const std::string sample = SampleOf(arguments[1]);
    if (sample.empty()) return Fail(arguments[1] + " opens with no sample");
    std::ofstream(arguments[2]) << sample;
    return 0;
  }
  if (arguments.size() < 2)
    return Fail("usage: readme_extract README.md (FILE | excerpt:SOURCE)... | --sample HEADER FILE");
  std::vector<std::string> errors;
  std::vector<seine::Block> programs;
  for (seine::Block& block : seine::ReadBlocks(ReadFile(arguments[0]), &errors)) {
    if (block.language == "cpp") programs.push_back(std::move(block));
  }
  if (!errors.empty()) return Fail(arguments[0] + ": " + errors[0]);
  if (programs.size() != arguments.size() - 1) {
    return Fail(arguments[0] + " has " + std::to_string(programs.size()) + " blocks of C++, and " +
                std::to_string(arguments.size() - 1) + " are named in tests/house/CMakeLists.txt");
  }
  for (size_t i = 0; i < programs.size(); ++i) {
    const std::string& target = arguments[i + 1];
    if (target.rfind(kExcerpt, 0) == 0) {
      const std::string source = target.substr(sizeof(kExcerpt) - 1);
      if (WithoutBlanks(ReadFile(source)).find(WithoutBlanks(programs[i].text)) != std::string::npos) continue;
      return Fail(arguments[0] + ":" + std::to_string(programs[i].line) + ": does not stand so in " + source);
    }
    std::ofstream(target) << LineDirective(programs[i].line, arguments[0]) << programs[i].text;
  }
  return 0;
}
