// Outliers of a window, and sets that take them in.
#include "index/cells/outliers.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace seine {

namespace {

// A cell in the upper half, the bits of its logit in the lower.
constexpr uint64_t kNoCell = ~uint64_t{0};

uint64_t Entry(int32_t cell, float logit) { return static_cast<uint64_t>(cell) << 32 | std::bit_cast<uint32_t>(logit); }

// Merges two lists that ascend by cell and end with kNoCell, to as many entries as both hold; of a cell that both hold,
// `a`'s is kept. No branch waits for a comparison, which would be foretold wrongly at every other outlier. Returns how
// many cells there are.
size_t Merge(const uint64_t* a, const uint64_t* b, int32_t* cells, float* logits) {
  size_t count = 0;
  while (true) {
    const uint64_t x = *a, y = *b;
    const uint64_t take_x = x >> 32 <= y >> 32, take_y = y >> 32 <= x >> 32;
    const uint64_t entry = (x & (0 - take_x)) | (y & (take_x - 1));
    if (entry == kNoCell) return count;
    cells[count] = static_cast<int32_t>(entry >> 32);
    logits[count] = std::bit_cast<float>(static_cast<uint32_t>(entry));
    ++count;
    a += take_x;
    b += take_y;
  }
}

}  // namespace

uint64_t FindOutliers(const float* keys, int dim) {
  float squares[kWindowTokens], sorted[kWindowTokens];
  for (int i = 0; i < kWindowTokens; ++i) {
    squares[i] = 0;
    for (int j = 0; j < dim; ++j) squares[i] += keys[i * dim + j] * keys[i * dim + j];
  }
  std::copy_n(squares, kWindowTokens, sorted);
  std::sort(sorted, sorted + kWindowTokens);
  const float bound = std::min(kOutlierNorm * kOutlierNorm * sorted[kWindowTokens / 2], sorted[kMostOutliers]);
  uint64_t outliers = 0;
  for (int i = 0; i < kWindowTokens; ++i) {
    if (squares[i] < bound) outliers |= uint64_t{1} << i;
  }
  return outliers;
}

void AddOutliers(const uint64_t* outliers, const std::vector<WindowRun>& zone, const host::AttentionTask& task,
                 SearchOutput* found) {
  static thread_local std::vector<int32_t> cells;
  static thread_local std::vector<float> dots;
  static thread_local std::vector<uint64_t> chosen, entering;
  cells.clear();
  for (const WindowRun& run : zone) {
    host::PrefetchRange(outliers + run.begin, (run.end - run.begin) * sizeof(uint64_t));
    for (int64_t w = run.begin; w < run.end; ++w) {
      for (uint64_t left = outliers[w]; left != 0; left &= left - 1) {
        cells.push_back(static_cast<int32_t>(task.zone_begin + w * kWindowTokens + __builtin_ctzll(left)));
      }
    }
  }
  if (cells.empty()) return;
  const size_t count = cells.size();
  dots.resize(count * task.group);
  host::DotGather(task.keys, cells.data(), static_cast<int>(count), task.queries, task.group, dots.data());
  for (int g = 0; g < task.group; ++g) {
    std::vector<int32_t>& set = found->positions[g];
    std::vector<float>& logits = found->scores[g];
    float least = std::numeric_limits<float>::infinity();
    for (const float logit : logits) least = std::min(least, logit);
    const float* own = dots.data() + g * count;
    entering.resize(count + 1);
    size_t enter = 0;  // most queries want some
    for (size_t i = 0; i < count; ++i) {
      const float logit = own[i] * task.scale;
      entering[enter] = Entry(cells[i], logit);
      enter += logit > least ? 1 : 0;
    }
    if (enter == 0) continue;
    entering[enter] = kNoCell;
    const size_t before = set.size();
    chosen.resize(before + 1);
    for (size_t s = 0; s < before; ++s) chosen[s] = Entry(set[s], logits[s]);
    chosen[before] = kNoCell;
    set.resize(before + enter);
    logits.resize(before + enter);
    const size_t merged = Merge(chosen.data(), entering.data(), set.data(), logits.data());
    set.resize(merged);
    logits.resize(merged);
  }
}

}  // namespace seine
