#include "index/prompt/choose_runs.h"

#include <algorithm>
#include <cstddef>

#include "kernels/math.h"

namespace seine {

namespace {

// A float's first bits order what is not negative: buckets of an eighth of an octave.
constexpr int kShift = 20, kBuckets = 1 << (31 - kShift);

size_t BucketOf(float mass) { return FloatBits(mass) >> kShift; }

// What is taken of each head.
class Taken {
 public:
  Taken(int group, const double* wanted) : wanted_(wanted), mass_(group) {}
  template <typename T>
  void Add(const T* masses) {
    for (size_t g = 0; g < mass_.size(); ++g) mass_[g] += masses[g];
  }
  // Whether every head has enough, with `more` besides where given.
  bool Enough(const double* more = nullptr) const {
    for (size_t g = 0; g < mass_.size(); ++g) {
      if (mass_[g] + (more != nullptr ? more[g] : 0) < wanted_[g]) return false;
    }
    return true;
  }

 private:
  const double* const wanted_;
  std::vector<double> mass_;
};

}  // namespace

bool ChooseRuns(const float* masses, int64_t count, int group, const double* wanted, int64_t most,
                std::vector<int32_t>* chosen) {
  chosen->clear();
  Taken taken(group, wanted);
  if (taken.Enough()) return true;
  std::vector<float> sums(count);
  std::vector<double> bucket_masses(static_cast<size_t>(kBuckets) * group);
  std::vector<int64_t> bucket_counts(kBuckets);
  for (int64_t i = 0; i < count; ++i) {
    for (int g = 0; g < group; ++g) sums[i] += masses[i * group + g];
    const size_t bucket = BucketOf(sums[i]);
    for (int g = 0; g < group; ++g) bucket_masses[bucket * group + g] += masses[i * group + g];
    ++bucket_counts[bucket];
  }
  // Whole buckets from the heaviest down, and of the last the heaviest runs.
  int64_t whole = 0;
  size_t last = kBuckets - 1;
  for (; last > 0 && !taken.Enough(&bucket_masses[last * group]); --last) {
    taken.Add(&bucket_masses[last * group]);
    whole += bucket_counts[last];
    if (whole > most) return false;
  }
  std::vector<int32_t> edge;
  for (int64_t i = 0; i < count; ++i) {
    const size_t bucket = BucketOf(sums[i]);
    if (bucket > last) chosen->push_back(static_cast<int32_t>(i));
    if (bucket == last && sums[i] > 0) edge.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(edge.begin(), edge.end(), [&](int32_t a, int32_t b) { return sums[a] > sums[b]; });
  for (const int32_t i : edge) {
    if (taken.Enough()) break;
    taken.Add(masses + static_cast<int64_t>(i) * group);
    chosen->push_back(i);
  }
  if (static_cast<int64_t>(chosen->size()) > most) return false;
  std::sort(chosen->begin(), chosen->end());
  return true;
}

}  // namespace seine
