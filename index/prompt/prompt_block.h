// A block of a prompt's tokens, and which keys each of them sees, in tiles of 64 keys (kernels/ops/attend/
// block_attention.h).
#ifndef SEINE_INDEX_PROMPT_PROMPT_BLOCK_H_
#define SEINE_INDEX_PROMPT_PROMPT_BLOCK_H_

#include <cstdint>
#include <vector>

#include "kernels/host.h"

namespace seine {

// Not thread-safe while it is filled; then any thread may read it.
class PromptBlock {
 public:
  explicit PromptBlock(int tokens = 0) : tokens_(tokens) {}

  // Places [first, first + 64) are seen by token t where bit i of words[t] is set. In order of `first`.
  void Add(int64_t first, const uint64_t* words);
  // No more tiles are added.
  void Seal();

  int tokens() const { return tokens_; }
  const std::vector<host::KeyTile>& tiles() const { return tiles_; }

 private:
  int tokens_;
  std::vector<host::KeyTile> tiles_;  // that somebody sees
  std::vector<int64_t> words_of_;     // [tiles] where its words begin; -1: everybody sees all of it
  std::vector<uint64_t> words_;
};

// Tokens of a block: keys are widened once for all of them, and what a few of them look at still says what the others
// do.
inline constexpr int kPromptBlockTokens = 128;

}  // namespace seine

#endif  // SEINE_INDEX_PROMPT_PROMPT_BLOCK_H_
