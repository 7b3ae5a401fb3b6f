// Two tables that must agree.
#include "engines/llama.cpp/remote/held_cells.h"

namespace seine::llama {

void HeldCells::Clear(int64_t capacity) {
  cells_.clear();
  positions_.assign(capacity, -1);
}

void HeldCells::Truncate(int64_t position) { cells_.resize(position); }

void HeldCells::Append(int64_t cell) {
  positions_[cell] = static_cast<int32_t>(length());
  cells_.push_back(static_cast<int32_t>(cell));
}

void HeldCells::Lose(int64_t cell) {
  if (cell < static_cast<int64_t>(positions_.size())) positions_[cell] = -1;
}

int64_t HeldCells::PositionIn(int64_t cell) const {
  const int32_t position = positions_[cell];
  return position >= 0 && position < length() && cells_[position] == cell ? position : -1;
}

int64_t HeldCells::CellOf(int64_t position) const {
  const int32_t cell = cells_[position];
  return positions_[cell] == position ? cell : -1;
}

}  // namespace seine::llama
