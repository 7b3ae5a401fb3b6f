#include "index/scorers/key_sums.h"

#include <algorithm>

#include "kernels/cpu/key_scores.h"

namespace seine {

KeySums::KeySums(const SumsWanted& wanted, int head_dim) : wanted_(wanted), head_dim_(head_dim) {
  if (wanted_.unit) unit_.resize(head_dim);
  if (wanted_.raw) raw_.resize(head_dim);
}

void KeySums::Add(const ConstRows& rows, int64_t count) {
  if (wanted_.unit) cpu::AddKeys(rows, count, head_dim_, /*unit=*/true, unit_.data());
  if (wanted_.raw) cpu::AddKeys(rows, count, head_dim_, /*unit=*/false, raw_.data());
  for (int64_t i = 0; wanted_.window > 0 && i < count;) {
    const int64_t window = (count_ + i) / wanted_.window;
    const int64_t run = std::min((window + 1) * wanted_.window - count_, count) - i;
    windows_.resize(std::max(windows_.size(), static_cast<size_t>((window + 1) * head_dim_)));
    cpu::AddKeys({rows.row(i), rows.stride_bytes, rows.dtype}, run, head_dim_, /*unit=*/false,
                 windows_.data() + window * head_dim_);
    i += run;
  }
  count_ += count;
}

std::vector<float> KeySums::WindowMean(int64_t window) const {
  const int64_t begin = window * wanted_.window;
  return Mean(windows_.data() + window * head_dim_, std::min<int64_t>(wanted_.window, count_ - begin));
}

std::vector<float> KeySums::Mean(const double* sums, int64_t count) const {
  std::vector<float> mean(head_dim_);
  for (int j = 0; j < head_dim_ && count > 0; ++j) {
    mean[j] = static_cast<float>(sums[j] / static_cast<double>(count));
  }
  return mean;
}

}  // namespace seine
