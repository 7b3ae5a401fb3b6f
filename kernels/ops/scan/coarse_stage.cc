// A short zone is scored whole and cut exactly. A long one is scanned against a threshold that a sample gives, so that
// only the few per cent above it are ever written; the exact cut is then made among those. Too few above (a sample that
// misled) repeats the scan with a lower threshold, and is counted.
#include "kernels/ops/scan/coarse_stage.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "kernels/codecs/codec_util.h"
#include "kernels/math.h"
#include "kernels/ops/query/zone_mass.h"
#include "kernels/ops/rows/rows.h"
#include "kernels/ops/scan/collision.h"
#include "kernels/ops/scan/recall_cut.h"
#include "kernels/ops/scan/scan.h"
#include "kernels/ops/scan/scan_group.h"
#include "kernels/ops/select/select.h"
#include "kernels/stop.h"

namespace seine::cpu {
namespace {

constexpr int64_t kShortZone = 16384;      // keys: a group's scores still fit the second cache beside the codes
constexpr int kSlack = 16;                 // ScanAbove writes whole vectors
constexpr size_t kPiecesBetweenLooks = 8;  // at the caller's token

void Reserve(Candidates* c, size_t size, int coarse_bytes) {
  if (c->index.size() >= size && c->rows.size() >= size * coarse_bytes) return;  // rows: another codec may have used it
  size = std::max(size, c->index.size() * 3 / 2);
  c->index.resize(size);
  c->coarse.resize(size);
  c->base.resize(size);
  c->rows.resize(size * coarse_bytes);
}

// Whether keys that do not collide are left out (collision.h).
bool LeavesOut(const SearchTask& task, const SearchParams& params, size_t wanted) {
  return params.coarse == Coarse::kCollision && !(params.recall_target > 0) &&
         wanted < static_cast<size_t>(task.num_keys);
}

// The sampled scores' value a little below the wanted share, `loosen` doublings further down.
float Threshold(const std::vector<float>& sample, double share, int loosen, std::vector<float>* scratch) {
  const double rank = share * static_cast<double>(sample.size());
  const size_t place = static_cast<size_t>(ThresholdPlace(rank) * std::ldexp(1.0, loosen));
  if (place >= sample.size()) return -INFINITY;
  return FindCut(sample.data(), sample.size(), place + 1, scratch).value;
}

// Leaves the sample of zone_mass.h to work->sample, from where all scores of its i-th window lie.
template <typename ScoresOf>
void KeepSample(const SearchTask& task, ScoresOf scores_of, QueryWork* work) {
  const MassSample sample = MassSampleOf(task.num_keys);
  work->sample.resize(sample.size());
  for (uint32_t i = 0; i < sample.windows.count; ++i) {
    std::copy_n(scores_of(i) + sample.first(i), sample.keys(), work->sample.data() + size_t{i} * sample.keys());
  }
}

// What is left of a short zone's query once all its scores are known.
void ChooseShort(const SearchTask& task, const SearchParams& params, size_t wanted, QueryWork* work) {
  const SampleShape shape = SampleOf(task.num_keys);
  const std::vector<float>& scores = work->scores;
  const auto window = [&](uint32_t i) { return scores.data() + size_t{SampledWindow(shape, i)} * kWindowTokens; };
  if (params.recall_target > 0) {
    std::vector<float> sample;
    for (uint32_t i = 0; i < shape.count; ++i) sample.insert(sample.end(), window(i), window(i) + kWindowTokens);
    const ScoreSpread spread = SpreadOfSample(task, *work, MeanFactor(task), sample);
    const float cut = CutOf(spread, scores.data(), scores.size(), params.top_k, params.recall_target, &work->scratch);
    wanted = std::clamp(CountAbove(scores.data(), scores.size(), cut), wanted, MostCandidates(task, wanted));
  }
  if (LeavesOut(task, params, wanted)) {
    wanted = std::min(wanted, CountAbove(scores.data(), scores.size(), kLeastCollision / 2));
  }
  SelectLargest(scores.data(), scores.size(), wanted, &work->scratch, &work->chosen);
  if (params.coarse != Coarse::kCollision && NeedsZoneMass(params)) {
    KeepSample(task, window, work);
    work->sample_bases.resize(shape.count);
    for (uint32_t i = 0; i < shape.count; ++i) work->sample_bases[i] = work->bases[SampledWindow(shape, i)];
  }
  FillCandidates(task, *work, work->chosen, work->bases.data(), &work->found);
  if (task.runs != nullptr) {
    SearchedKeys searched(task);
    for (size_t i = 0; i < work->found.size; ++i) work->found.index[i] = searched.Key(work->found.index[i]);
  }
  std::iota(work->chosen.begin(), work->chosen.end(), 0u);
}

void ScanShort(const SearchTask& task, const SearchParams& params, size_t wanted, QueryWork* work, SearchStats* stats) {
  const int64_t start = NowNs();
  const ScanPasses passes = PassesOf(task.group, [](int) { return true; });
  for (int g = 0; g < task.group; ++g) {
    work[g].scores.resize(task.searched_keys());
    work[g].bases.resize(task.searched_keys() / kWindowTokens);
  }
  const std::vector<ScanPiece>& pieces = PiecesOf(task);
  int64_t first = 0;  // of the keys that are searched
  for (size_t i = 0; i < pieces.size(); first += pieces[i].end - pieces[i].begin, ++i) {
    for (int p = 0; p < passes.count; ++p) {
      float *scores[kMostFused], *bases[kMostFused];
      for (int q = 0; q < passes.pass[p].count; ++q) {
        QueryWork& w = work[passes.pass[p].members[q]];
        scores[q] = w.scores.data() + first;
        bases[q] = w.bases.data() + first / kWindowTokens;
      }
      ScanScores(ArgsFor(task, work, passes, p, params.coarse == Coarse::kCollision, pieces, i), scores, bases);
    }
  }
  const int64_t scanned = NowNs();
  stats->scan_ns += scanned - start;
  stats->scanned_keys += task.searched_keys() * task.group;
  for (int g = 0; g < task.group; ++g) {
    ChooseShort(task, params, wanted, &work[g]);
    stats->candidates += static_cast<int64_t>(work[g].chosen.size());
  }
  stats->select_ns += NowNs() - scanned;
}

// One query of a long zone on its way to its candidates.
struct OpenQuery {
  std::vector<float> own_sample;               // where the mass's does not serve
  const std::vector<float>* sample = nullptr;  // of its scores
  ScoreSpread spread = {};
  double share = 0;  // of the zone, looked for by a threshold
  float threshold = 0;
  float cut = INFINITY;  // under a recall target, once enough was found to tell
  bool open = true;
};

// What is wanted of the zone under a recall target, once scores at or above o->threshold are found: false where some of
// it lies below. Sets o->cut.
bool FoundByTarget(const SearchTask& task, const SearchParams& params, size_t wanted, QueryWork* w, OpenQuery* o) {
  const std::vector<float>& scores = w->found.coarse;
  o->cut = CutOf(o->spread, scores.data(), w->found.size, params.top_k, params.recall_target, &w->scratch);
  return o->cut >= o->threshold || w->found.size >= MostCandidates(task, wanted);
}

// The scores that each query's threshold is taken from, and what a recall target makes of them.
void SampleAll(const SearchTask& task, const SearchParams& params, size_t wanted, QueryWork* work, OpenQuery* queries) {
  const bool collision = params.coarse == Coarse::kCollision, by_target = params.recall_target > 0;
  std::vector<float>* samples[kMaxGroup];
  for (int g = 0; g < task.group; ++g) {
    samples[g] = collision || by_target ? &queries[g].own_sample : &work[g].sample;
    queries[g].sample = samples[g];
    queries[g].share = static_cast<double>(wanted) / static_cast<double>(task.searched_keys());
  }
  const int64_t keys = task.searched_keys();
  SampleScores(task, collision,
               by_target               ? ScoreSample()
               : NeedsZoneMass(params) ? SampleForMass(keys)
                                       : SampleForThreshold(keys),
               work, samples);
  if (!by_target) return;
  const float mean_factor = MeanFactor(task);
  for (int g = 0; g < task.group; ++g) {
    OpenQuery& o = queries[g];
    const auto window = [&](uint32_t i) { return o.sample->data() + size_t{i} * kWindowTokens; };
    if (!collision && NeedsZoneMass(params)) KeepSample(task, window, &work[g]);
    o.spread = SpreadOfSample(task, work[g], mean_factor, *o.sample);
    o.share = SampledShare(task, params, wanted, o.spread, *o.sample, &work[g].scratch);
  }
}

void ScanLong(const SearchTask& task, const SearchParams& params, size_t wanted, QueryWork* work, SearchStats* stats) {
  const bool collision = params.coarse == Coarse::kCollision, by_target = params.recall_target > 0;
  const bool leaves_out = LeavesOut(task, params, wanted);
  const int row_bytes = task.codec->layout().coarse_bytes;
  int64_t start = NowNs();
  std::vector<OpenQuery> queries(task.group);
  SampleAll(task, params, wanted, work, queries.data());
  const std::vector<ScanPiece>& pieces = PiecesOf(task);
  int64_t open = task.group;
  for (int loosen = 0; open > 0; ++loosen) {
    for (int g = 0; g < task.group; ++g) {
      OpenQuery& o = queries[g];
      if (!o.open) continue;
      o.threshold = std::min(o.cut, Threshold(*o.sample, o.share, loosen, &work[g].scratch));
      if (leaves_out) o.threshold = std::max(o.threshold, kLeastCollision);
      work[g].found.size = 0;
      work[g].found.rows_copied = true;
    }
    const int64_t decided = NowNs();
    stats->select_ns += decided - start;
    const ScanPasses passes = PassesOf(task.group, [&](int g) { return queries[g].open; });
    for (size_t i = 0; i < pieces.size(); ++i) {  // a piece stays in the cache for every pass
      if (i % kPiecesBetweenLooks == 0 && StopRequested()) return;
      for (int p = 0; p < passes.count; ++p) {
        float thresholds[kMostFused];
        Candidates* found[kMostFused];
        for (int q = 0; q < passes.pass[p].count; ++q) {
          const int g = passes.pass[p].members[q];
          thresholds[q] = queries[g].threshold;
          found[q] = &work[g].found;
          Reserve(found[q], found[q]->size + (pieces[i].end - pieces[i].begin) + kSlack, row_bytes);
        }
        ScanAbove(ArgsFor(task, work, passes, p, collision, pieces, i), thresholds,
                  static_cast<uint32_t>(pieces[i].segment * task.segment_keys), found);
      }
    }
    stats->scanned_keys += task.searched_keys() * open;
    start = NowNs();
    stats->scan_ns += start - decided;
    open = 0;
    for (int g = 0; g < task.group; ++g) {
      OpenQuery& o = queries[g];
      const bool all_collisions = leaves_out && o.threshold == kLeastCollision;
      o.open = o.open && ((work[g].found.size < wanted && !all_collisions) ||
                          (by_target && !FoundByTarget(task, params, wanted, &work[g], &o)));
      open += o.open ? 1 : 0;
    }
    stats->rescans += open;
  }
  for (int g = 0; g < task.group; ++g) {
    QueryWork& w = work[g];
    size_t keep = std::min(wanted, w.found.size);
    if (by_target) {
      const size_t above = CountAbove(w.found.coarse.data(), w.found.size, queries[g].cut);
      keep = std::clamp(above, wanted, MostCandidates(task, wanted));
    }
    SelectLargest(w.found.coarse.data(), w.found.size, keep, &w.scratch, &w.chosen);
    stats->candidates += static_cast<int64_t>(w.chosen.size());
  }
  stats->select_ns += NowNs() - start;
}

}  // namespace

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void FillCandidates(const SearchTask& task, const QueryWork& work, const std::vector<uint32_t>& keys,
                    const float* bases, Candidates* out) {
  const CodeLayout& layout = task.codec->layout();
  const PreparedQuery& query = work.prepared;
  const float unit = query.coarse_step > 0 ? query.query8_step / query.coarse_step : 0.0f;
  Reserve(out, keys.size(), 0);
  out->size = keys.size();
  out->rows_copied = false;
  std::copy(keys.begin(), keys.end(), out->index.begin());
  if (bases != nullptr) {
    for (size_t i = 0; i < keys.size(); ++i) out->base[i] = bases[keys[i] / kWindowTokens];
    return;
  }
  SegmentWalk walk(task.segments, task.segment_keys);
  uint32_t row_of_base = UINT32_MAX;
  float base = work.shared_base;
  for (size_t i = 0; i < keys.size(); ++i) {
    const int key = static_cast<int>(walk.PlaceOf(keys[i]));
    const ConstCodePlanes& planes = walk.planes();
    if (planes.centre != nullptr && keys[i] / layout.centre_window != row_of_base) {
      row_of_base = keys[i] / layout.centre_window;
      const int row = key / layout.centre_window;
      const int32_t dot =
          Dot8(planes.centre + static_cast<size_t>(row) * layout.head_dim, query.query8.data(), layout.head_dim);
      base = static_cast<float>(dot) * (planes.centre_scale[row] * unit);
    }
    out->base[i] = base;
  }
}

void FindCandidates(const SearchTask& task, const SearchParams& params, size_t wanted, QueryWork* work,
                    SearchStats* stats) {
  const bool collision = params.coarse == Coarse::kCollision;
  const CodeLayout& layout = task.codec->layout();
  const int64_t start = NowNs();
  PreparedQuery* prepared[kMaxGroup];
  for (int g = 0; g < task.group; ++g) prepared[g] = &work[g].prepared;
  task.codec->PrepareQueries(task.queries, task.group, prepared);
  std::vector<uint32_t> made;
  const uint32_t* counts = collision ? SearchedCounts(task, &made) : nullptr;
  for (int g = 0; g < task.group; ++g) {
    QueryWork& w = work[g];
    w.shared_base = 0;
    if (task.shared_centre != nullptr && w.prepared.coarse_step > 0) {
      const int32_t dot = Dot8(task.shared_centre->values.data(), w.prepared.query8.data(), layout.head_dim);
      w.shared_base =
          static_cast<float>(dot) * (task.shared_centre->scale * w.prepared.query8_step / w.prepared.coarse_step);
    }
    if (collision) {
      MakeTiers(w.prepared.transformed.data(), layout.head_dim, counts, task.num_keys, params.collision_fraction,
                layout.coarse_bytes, &w.tiers);
    }
  }
  stats->prepare_ns += NowNs() - start;
  if (task.num_keys > kShortZone) {
    ScanLong(task, params, wanted, work, stats);
  } else {
    ScanShort(task, params, wanted, work, stats);
  }
  if (!collision || !NeedsZoneMass(params)) return;
  std::vector<float>* samples[kMaxGroup];  // tiers are no logits: the sample is scored a second time
  for (int g = 0; g < task.group; ++g) samples[g] = &work[g].sample;
  SampleScores(task, false, SampleForMass(task.num_keys), work, samples);
}

}  // namespace seine::cpu
