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

bool ChooseRuns(const float* masses, int64_t count, int tokens, int group, const double* wanted, int64_t most,
                std::vector<int32_t>* chosen) {
  chosen->clear();
  std::vector<float> weights(count), own(tokens);
  // What tokens have of runs, by the weight that the other tokens alone give a run.
  std::vector<double> held_out(static_cast<size_t>(kBuckets) * group);
  std::vector<int64_t> counts(kBuckets);
  for (int64_t i = 0; i < count; ++i) {
    const float* const of_run = masses + i * tokens * group;
    for (int t = 0; t < tokens; ++t) {
      own[t] = 0;
      for (int g = 0; g < group; ++g) own[t] += of_run[t * group + g];
      weights[i] += own[t];
    }
    ++counts[BucketOf(weights[i])];
    for (int t = 0; t < tokens; ++t) {
      double* const to = &held_out[BucketOf(std::max(0.0f, weights[i] - own[t])) * group];
      for (int g = 0; g < group; ++g) to[g] += of_run[t * group + g];
    }
  }
  std::vector<double> had(group);
  const auto enough = [&] {
    for (int g = 0; g < group; ++g) {
      if (had[g] < wanted[g]) return false;
    }
    return true;
  };
  size_t least = kBuckets;
  int64_t taken = 0;
  while (!enough()) {
    if (--least == 0) return false;
    for (int g = 0; g < group; ++g) had[g] += held_out[least * group + g];
    taken += counts[least];
    if (taken > most) return false;
  }
  for (int64_t i = 0; i < count; ++i) {
    if (BucketOf(weights[i]) >= least) chosen->push_back(static_cast<int32_t>(i));
  }
  return true;
}

}  // namespace seine
