// Which rows of a sequence on a server lie in which cells of the engine's cache.
#ifndef SEINE_ENGINES_LLAMA_CPP_REMOTE_HELD_CELLS_H_
#define SEINE_ENGINES_LLAMA_CPP_REMOTE_HELD_CELLS_H_

#include <cstdint>
#include <vector>

namespace seine::llama {

// Positions [0, length) are the server's. A cell that is written again holds its former row no longer; the server does.
class HeldCells {
 public:
  void Clear(int64_t capacity);  // capacity: cells
  int64_t length() const { return static_cast<int64_t>(cells_.size()); }
  void Truncate(int64_t position);
  void Append(int64_t cell);  // the row of position length()

  void Lose(int64_t cell);  // it holds another row now, which the server has not

  // The position of the row that a cell holds and the server has from there; -1: it has not.
  int64_t PositionIn(int64_t cell) const;
  // The cell of a position below length(); -1: another row lies there now.
  int64_t CellOf(int64_t position) const;

 private:
  std::vector<int32_t> cells_;      // [length]
  std::vector<int32_t> positions_;  // [capacity] of the row that was written last; -1: none
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_REMOTE_HELD_CELLS_H_
