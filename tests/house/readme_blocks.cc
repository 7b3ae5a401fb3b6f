// Line by line: a fence is three backticks at the line's begin.
#include "tests/house/readme_blocks.h"

#include <map>
#include <sstream>

namespace seine {
namespace {

constexpr char kFence[] = "```";

bool HasLine(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

}  // namespace

std::vector<Block> ReadBlocks(const std::string& markdown, std::vector<std::string>* errors) {
  std::vector<Block> blocks;
  bool open = false;
  std::istringstream in(markdown);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const size_t begin = line.find_first_not_of(" \t>");
    const std::string mark = begin == std::string::npos ? "" : line.substr(begin, 3);
    if (mark != kFence && mark != "~~~") {
      if (open) blocks.back().text += line + "\n";
    } else if (begin != 0 || mark != kFence || (open && line != kFence)) {
      errors->push_back("line " + std::to_string(number) + ": a fence that is not read: " + line);
    } else if (open) {
      open = false;
    } else {
      blocks.push_back({number + 1, line.substr(3), ""});
      open = true;
    }
  }
  if (open) errors->push_back("line " + std::to_string(blocks.back().line - 1) + ": a fence that is never closed");
  return blocks;
}

Plan MakePlan(const std::vector<Block>& blocks, const std::vector<Special>& specials, Needs has) {
  static const auto* const kLanguages = new std::map<std::string, Needs>{
      {"sh", Needs::kNothing}, {"cpp", Needs::kNothing}, {"yaml", Needs::kNothing}, {"python", Needs::kPython}};
  Plan plan;
  std::vector<int> named(specials.size());
  for (const Block& block : blocks) {
    Plan::Step& step = plan.steps.emplace_back(Plan::Step{block, ""});
    const auto language = kLanguages->find(block.language);
    if (language == kLanguages->end()) {
      plan.errors.push_back("line " + std::to_string(block.line) + ": nothing runs a block of '" + block.language +
                            "': the test must learn to");
      continue;
    }
    if (language->second > has) step.left_out = "the build has no Python module";
    for (size_t i = 0; i < specials.size(); ++i) {
      if (!HasLine(block.text, specials[i].line)) continue;
      ++named[i];
      if (specials[i].needs > has) step.left_out = specials[i].why;
    }
  }
  for (size_t i = 0; i < specials.size(); ++i) {
    if (named[i] == 1) continue;
    plan.errors.push_back("the test's list of special blocks: " + std::to_string(named[i]) +
                          " blocks have the line: " + specials[i].line);
  }
  return plan;
}

std::string AsInPage(const Block& block) { return std::string(block.line - 1, '\n') + block.text; }

}  // namespace seine
