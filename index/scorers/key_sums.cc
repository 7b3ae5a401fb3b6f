#include "index/scorers/key_sums.h"

#include <algorithm>

#include "kernels/cpu/key_scores.h"

namespace seine {

std::vector<SumKind> KindsOf(const SumsWanted& wanted) {
  std::vector<SumKind> kinds;
  if (wanted.unit) kinds.push_back({true, 0, &KeyMeans::unit});
  if (wanted.raw) kinds.push_back({false, 0, &KeyMeans::raw});
  if (wanted.window > 0) kinds.push_back({false, wanted.window, &KeyMeans::windows});
  return kinds;
}

std::vector<float> MeansOfSums(const double* sums, int64_t count, int64_t window, int head_dim) {
  const int64_t windows = SumTask{.count = count, .window = window}.windows();
  std::vector<float> means(windows * head_dim);
  for (int64_t w = 0; w < windows && count > 0; ++w) {
    const auto keys = static_cast<double>(window == 0 ? count : std::min(window, count - w * window));
    for (int64_t j = w * head_dim; j < (w + 1) * head_dim; ++j) means[j] = static_cast<float>(sums[j] / keys);
  }
  return means;
}

KeySums::KeySums(const SumsWanted& wanted, int head_dim) : head_dim_(head_dim) {
  for (const SumKind& kind : KindsOf(wanted)) {
    const size_t windows = kind.window == 0 ? 1 : 0;
    running_.push_back({kind, std::vector<double>(windows * head_dim), std::vector<double>(head_dim)});
  }
}

void KeySums::Add(const ConstRows& rows, int64_t count) {
  for (Running& r : running_) {
    const int64_t windows = SumTask{.count = count_ + count, .window = r.kind.window}.windows();
    r.sums.resize(windows * head_dim_);
    cpu::AddToSums(rows, count, head_dim_, r.kind.unit, r.kind.window, count_, r.sums.data(), r.open.data());
  }
  count_ += count;
}

KeyMeans KeySums::Means() const {
  KeyMeans means;
  for (const Running& r : running_) {
    std::vector<double> sums = r.sums, open = r.open;
    if (!sums.empty()) cpu::CloseGroup(head_dim_, open.data(), sums.data() + sums.size() - head_dim_);
    means.*r.kind.means = MeansOfSums(sums.data(), count_, r.kind.window, head_dim_);
  }
  return means;
}

}  // namespace seine
