#include "kernels/ops/scan/scan_group.h"

#include "kernels/cpu/prefetch.h"
#include "kernels/ops/query/recall_target.h"
#include "kernels/ops/query/zone_mass.h"

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
  const int8_t* centre = a.planes.centre + static_cast<size_t>(a.begin / layout.centre_window) * layout.head_dim;
  for (int b = 0; b < layout.head_dim; b += 64) PrefetchFar(centre + b);
  PrefetchFar(a.planes.centre_scale + a.begin / layout.centre_window);
}

}  // namespace

const std::vector<ScanPiece>& PiecesOf(const SearchTask& task) {
  static thread_local std::vector<ScanPiece> pieces;
  pieces.clear();
  task.ForEachRun([&](int64_t begin, int64_t end) {
    for (int64_t next; begin < end; begin = next) {
      const int64_t segment = begin / task.segment_keys, first = segment * task.segment_keys;
      next = std::min(end, first + task.segment_keys);
      pieces.push_back({segment, static_cast<int>(begin - first), static_cast<int>(next - first)});
    }
  });
  return pieces;
}

ScanArgs ArgsFor(const SearchTask& task, const QueryWork* work, const ScanPasses& passes, int index, bool collision,
                 const std::vector<ScanPiece>& pieces, size_t at) {
  const ScanPass& pass = passes.pass[index];
  const ScanPiece& piece = pieces[at];
  ScanArgs a;
  a.planes = task.segments[piece.segment];
  a.layout = &task.codec->layout();
  a.count = pass.count;
  for (int i = 0; i < pass.count; ++i) {
    const QueryWork& w = work[pass.members[i]];
    a.queries[i] = {&w.prepared, collision ? w.tiers.data() : nullptr, w.shared_base};
  }
  a.begin = piece.begin;
  a.end = piece.end;
  if (at + 1 < pieces.size()) {
    const ScanPiece& next = pieces[at + 1];
    a.next = &task.segments[next.segment];
    a.next_begin = next.begin;
    a.next_keys = next.end - next.begin;
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
  const SampleShape shape = SampleOf(task.searched_keys());
  const uint32_t count = (shape.count + sample.step - 1) / sample.step;
  const ScanPasses passes = PassesOf(task.group, [](int) { return true; });
  constexpr uint32_t kAhead = 8;  // windows in flight
  ScanArgs args[kMostPasses];
  const std::vector<ScanPiece> first_piece = {{0, 0, kWindowTokens}};
  for (int p = 0; p < passes.count; ++p) args[p] = ArgsFor(task, work, passes, p, collision, first_piece, 0);
  SearchedKeys at(task), at_ahead(task);
  // The i-th window's keys.
  const auto turn_to = [&](uint32_t i, SearchedKeys* keys, ScanArgs* a) {
    const uint32_t window = keys->Window(SampledWindow(shape, i * sample.step)) * kWindowTokens;
    const auto segment_keys = static_cast<uint32_t>(task.segment_keys);
    a->planes = task.segments[window / segment_keys];
    a->begin = static_cast<int>(window % segment_keys + i * sample.keys % kWindowTokens);
    a->end = a->begin + static_cast<int>(sample.keys);
  };
  ScanArgs ahead = args[0];
  const auto fetch = [&](uint32_t i) {
    turn_to(i, &at_ahead, &ahead);
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
      turn_to(i, &at, &args[p]);
      float *to[kMostFused], bases[kMostFused];
      for (int q = 0; q < pass.count; ++q) to[q] = samples[pass.members[q]]->data() + size_t{i} * sample.keys;
      ScanRow(args[p], to, bases);
      for (int q = 0; q < pass.count; ++q) work[pass.members[q]].sample_bases[i] = bases[q];
    }
  }
}

}  // namespace seine::cpu
