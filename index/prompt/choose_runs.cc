#include "index/prompt/choose_runs.h"

#include <algorithm>
#include <cstddef>

#include "kernels/math.h"

namespace seine {

namespace {

// A float's first bits order what is not negative: buckets of an eighth of an octave.
constexpr int kShift = 20, kBuckets = 1 << (31 - kShift);

size_t BucketOf(float weight) { return FloatBits(weight) >> kShift; }

}  // namespace

bool ChooseRuns(const float* masses, int64_t count, int tokens, int step, double wanted, int64_t most,
                std::vector<int32_t>* chosen) {
  chosen->clear();
  std::vector<float> weights(count);
  // What tokens have of runs, by the weight that the other tokens alone give a run.
  std::vector<double> held_out(kBuckets);
  std::vector<int64_t> counts(kBuckets);
  for (int64_t i = 0; i < count; ++i) {
    const float* const of_run = masses + i * tokens * step;
    float weight = 0;
    for (int t = 0; t < tokens; ++t) weight += of_run[t * step];
    weights[i] = weight;
    ++counts[BucketOf(weight)];
    for (int t = 0; t < tokens; ++t) {
      const float own = of_run[t * step];
      held_out[BucketOf(std::max(0.0f, weight - own))] += own;
    }
  }
  double had = 0;
  size_t least = kBuckets;
  int64_t taken = 0;
  while (had < wanted) {
    if (--least == 0) return false;
    had += held_out[least];
    taken += counts[least];
    if (taken > most) return false;
  }
  for (int64_t i = 0; i < count; ++i) {
    if (BucketOf(weights[i]) >= least) chosen->push_back(static_cast<int32_t>(i));
  }
  return true;
}

}  // namespace seine
