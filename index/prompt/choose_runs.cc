#include "index/prompt/choose_runs.h"

#include <algorithm>
#include <cstddef>

#include "kernels/math.h"

namespace seine {

namespace {

// A float's first bits order what is not negative: buckets of an eighth of an octave.
constexpr int kShift = 20, kBuckets = 1 << (31 - kShift);

size_t BucketOf(float mass) { return FloatBits(mass) >> kShift; }

}  // namespace

bool ChooseRuns(const float* masses, int64_t count, double wanted, int64_t most, std::vector<int32_t>* chosen) {
  chosen->clear();
  if (wanted <= 0) return true;
  struct Bucket {
    double mass = 0;
    int64_t count = 0;
  };
  std::vector<Bucket> buckets(kBuckets);
  for (int64_t i = 0; i < count; ++i) {
    Bucket& bucket = buckets[BucketOf(masses[i])];
    bucket.mass += masses[i], ++bucket.count;
  }
  // Whole buckets from the heaviest down, and of the last the heaviest runs.
  double mass = 0;
  int64_t taken = 0;
  size_t last = kBuckets - 1;
  for (; last > 0 && mass + buckets[last].mass < wanted; --last) {
    mass += buckets[last].mass, taken += buckets[last].count;
    if (taken > most) return false;
  }
  std::vector<int32_t> edge;
  for (int64_t i = 0; i < count; ++i) {
    const size_t bucket = BucketOf(masses[i]);
    if (bucket > last) chosen->push_back(static_cast<int32_t>(i));
    if (bucket == last && masses[i] > 0) edge.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(edge.begin(), edge.end(), [&](int32_t a, int32_t b) { return masses[a] > masses[b]; });
  for (const int32_t i : edge) {
    if (mass >= wanted) break;
    mass += masses[i];
    chosen->push_back(i);
  }
  if (static_cast<int64_t>(chosen->size()) > most) return false;
  std::sort(chosen->begin(), chosen->end());
  return true;
}

}  // namespace seine
