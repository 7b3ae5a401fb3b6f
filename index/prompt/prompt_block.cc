#include "index/prompt/prompt_block.h"

namespace seine {

void PromptBlock::Add(int64_t first, const uint64_t* words) {
  uint64_t all = ~uint64_t{0}, any = 0;
  for (int t = 0; t < tokens_; ++t) all &= words[t], any |= words[t];
  if (any == 0) return;
  host::KeyTile& tile = tiles_.emplace_back();
  for (int i = 0; i < host::kTileRuns; ++i) tile.runs[i] = static_cast<int32_t>(first + i * host::kRunKeys);
  words_of_.push_back(all == ~uint64_t{0} ? -1 : static_cast<int64_t>(words_.size()));
  if (all != ~uint64_t{0}) words_.insert(words_.end(), words, words + tokens_);
}

void PromptBlock::Seal() {
  for (size_t i = 0; i < tiles_.size(); ++i) {
    if (words_of_[i] >= 0) tiles_[i].seen = words_.data() + words_of_[i];
  }
}

}  // namespace seine
