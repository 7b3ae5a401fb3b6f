#include "kernels/ops/scan/scan_group.h"

#include "kernels/cpu/prefetch.h"
#include "kernels/ops/mass/zone_mass.h"
#include "kernels/ops/scan/recall_target.h"

namespace seine::cpu {
namespace {

// Sampled keys lie where no hardware prefetcher looks: ask for them while those before are scored.
void FetchRow(const ScanArgs& a) {
  const CodeLayout& layout = *a.layout;
  const uint8_t* coarse = a.planes.coarse + static_cast<size_t>(a.begin) * layout.coarse_bytes;
  for (int b = 0; b < (a.end - a.begin) * layout.coarse_bytes; b += 64) PrefetchFar(coarse + b);
  PrefetchFar(a.planes.factor + a.begin);
  PrefetchFar(a.planes.factor_base + a.begin / kWindowTokens);
  if (a.planes.centre == nullptr) return;
  const int8_t* centre = a.planes.centre + static_cast<size_t>(a.begin / layout.centre_tokens) * layout.head_dim;
  for (int b = 0; b < layout.head_dim; b += 64) PrefetchFar(centre + b);
  PrefetchFar(a.planes.centre_scale + a.begin / layout.centre_tokens);
}

}  // namespace

ScanArgs ArgsFor(const SearchTask& task, const QueryWork* work, const ScanPasses& passes, int index, bool collision,
                 int64_t segment) {
  const ScanPass& pass = passes.pass[index];
  ScanArgs a;
  a.planes = task.segments[segment];
  a.layout = &task.codec->layout();
  a.count = pass.count;
  for (int i = 0; i < pass.count; ++i) {
    const QueryWork& w = work[pass.members[i]];
    a.queries[i] = {&w.prepared, collision ? w.tiers.data() : nullptr, w.shared_base};
  }
  const int64_t first = segment * task.segment_keys;
  a.end = static_cast<int>(std::min<int64_t>(task.segment_keys, task.num_keys - first));
  if (first + a.end < task.num_keys) {
    a.next = &task.segments[segment + 1];
    a.next_keys = static_cast<int>(std::min<int64_t>(task.segment_keys, task.num_keys - first - a.end));
  }
  a.pass = index;
  a.passes = passes.count;
  return a;
}

ScoreSample SampleForMass(int64_t num_keys) { return {MassSampleOf(num_keys).keys(), 1}; }

ScoreSample SampleForThreshold(int64_t num_keys) {
  const auto wanted = static_cast<uint32_t>(std::clamp<int64_t>(num_keys / 16, 512, 2048));
  return {kTileTokens, std::max(1u, SampleOf(num_keys).count * kTileTokens / wanted)};
}

void SampleScores(const SearchTask& task, bool collision, const ScoreSample& sample, QueryWork* work,
                  std::vector<float>* const* samples) {
  const SampleShape shape = SampleOf(task.num_keys);
  const uint32_t count = (shape.count + sample.step - 1) / sample.step;
  const ScanPasses passes = PassesOf(task.group, [](int) { return true; });
  constexpr uint32_t kAhead = 8;  // windows in flight
  ScanArgs args[kMostPasses];
  for (int p = 0; p < passes.count; ++p) args[p] = ArgsFor(task, work, passes, p, collision, 0);
  // The i-th window's keys.
  const auto turn_to = [&](uint32_t i, ScanArgs* a) {
    const auto window = static_cast<uint32_t>(SampledWindow(shape, i * sample.step)) * kWindowTokens;
    const auto segment_keys = static_cast<uint32_t>(task.segment_keys);
    a->planes = task.segments[window / segment_keys];
    a->begin = static_cast<int>(window % segment_keys + i * sample.keys % kWindowTokens);
    a->end = a->begin + static_cast<int>(sample.keys);
  };
  ScanArgs ahead = args[0];
  const auto fetch = [&](uint32_t i) {
    turn_to(i, &ahead);
    FetchRow(ahead);
  };
  for (int g = 0; g < task.group; ++g) {
    samples[g]->resize(static_cast<size_t>(count) * sample.keys);
    work[g].sample_bases.resize(count);
  }
  for (uint32_t i = 0; i < std::min(kAhead, count); ++i) fetch(i);
  for (uint32_t i = 0; i < count; ++i) {
    if (i + kAhead < count) fetch(i + kAhead);
    for (int p = 0; p < passes.count; ++p) {
      const ScanPass& pass = passes.pass[p];
      turn_to(i, &args[p]);
      float *to[kMostFused], bases[kMostFused];
      for (int q = 0; q < pass.count; ++q) to[q] = samples[pass.members[q]]->data() + size_t{i} * sample.keys;
      ScanRow(args[p], to, bases);
      for (int q = 0; q < pass.count; ++q) work[pass.members[q]].sample_bases[i] = bases[q];
    }
  }
}

}  // namespace seine::cpu
