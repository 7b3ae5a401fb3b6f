// A short zone is scored whole and cut exactly. A long one is scanned against a threshold that a sample of windows
// gives, so that only the few per cent above it are ever written; the exact cut is then made among those. Too few above
// (a sample that misled) repeats the scan with a lower threshold, and is counted.
#include "kernels/cpu/coarse_stage.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "kernels/collision.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/math.h"
#include "kernels/select.h"

namespace seine::cpu {
namespace {

constexpr int64_t kShortZone = 32768;  // keys: the scores of one query still fit the second cache
constexpr int64_t kSampleKeys = 8192;  // sampled in whole windows, evenly spread
constexpr int kSlack = 16;             // ScanAbove writes whole vectors
constexpr double kMargin = 1.2;        // of the wanted share, let through so that a rescan is rare

ScanArgs ArgsFor(const SearchTask& task, const QueryWork& work, bool collision, int64_t segment) {
  ScanArgs a;
  a.planes = task.segments[segment];
  a.layout = &task.codec->layout();
  a.query = &work.prepared;
  a.tiers = collision ? work.tiers.data() : nullptr;
  a.shared_base = work.shared_base;
  const int64_t first = segment * task.segment_keys;
  a.end = static_cast<int>(std::min<int64_t>(task.segment_keys, task.num_keys - first));
  if (first + a.end < task.num_keys) {
    a.next = &task.segments[segment + 1];
    a.next_keys = static_cast<int>(std::min<int64_t>(task.segment_keys, task.num_keys - first - a.end));
  }
  return a;
}

int64_t NumSegments(const SearchTask& task) { return (task.num_keys + task.segment_keys - 1) / task.segment_keys; }

void Reserve(Candidates* c, size_t size, int coarse_bytes) {
  if (c->index.size() >= size && c->rows.size() >= size * coarse_bytes) return;  // rows: another codec may have used it
  size = std::max(size, c->index.size() * 3 / 2);
  c->index.resize(size);
  c->coarse.resize(size);
  c->base.resize(size);
  c->rows.resize(size * coarse_bytes);
}

// The sampled scores' value at about kMargin times the wanted share, `loosen` doublings further down.
float Threshold(const std::vector<float>& sample, double share, int loosen, std::vector<float>* scratch) {
  const double rank = share * static_cast<double>(sample.size());
  const size_t place = static_cast<size_t>((rank * kMargin + 3 * std::sqrt(rank)) * std::ldexp(1.0, loosen));
  if (place >= sample.size()) return -INFINITY;
  return FindCut(sample.data(), sample.size(), place + 1, scratch).value;
}

// A sampled window lies where no hardware prefetcher looks: ask for it while those before are scored.
void FetchWindow(const SearchTask& task, int64_t key) {
  const CodeLayout& layout = task.codec->layout();
  const ConstCodePlanes& planes = task.segments[key / task.segment_keys];
  const int64_t at = key % task.segment_keys;
  const uint8_t* coarse = planes.coarse + at * layout.coarse_bytes;
  for (int b = 0; b < kWindowTokens * layout.coarse_bytes; b += 64) PrefetchFar(coarse + b);
  PrefetchFar(planes.factor + at);
  if (planes.centre == nullptr) return;
  for (int b = 0; b < layout.head_dim; b += 64)
    PrefetchFar(planes.centre + at / layout.centre_tokens * layout.head_dim + b);
}

void SampleScores(const SearchTask& task, bool collision, QueryWork* work, std::vector<float>* sample) {
  const int64_t windows = task.num_keys / kWindowTokens;
  const int64_t stride = std::max<int64_t>(1, windows / (kSampleKeys / kWindowTokens));
  constexpr int64_t kAhead = 8;  // windows in flight
  const auto fetch = [&](int64_t w) {
    if (w < windows) FetchWindow(task, w * kWindowTokens);
  };
  sample->clear();
  const int64_t first = stride / 2;
  for (int64_t i = 0; i < kAhead; ++i) fetch(first + i * stride);
  for (int64_t w = first; w < windows; w += stride) {
    const int64_t key = w * kWindowTokens;
    fetch(w + kAhead * stride);
    ScanArgs a = ArgsFor(task, *work, collision, key / task.segment_keys);
    a.begin = static_cast<int>(key % task.segment_keys);
    a.end = a.begin + kWindowTokens;
    a.next_keys = 0;
    const size_t at = sample->size();
    sample->resize(at + kWindowTokens);
    float base;
    ScanScores(a, sample->data() + at, &base);
  }
}

// Mean factor of some windows' keys, evenly spread: the scale of a typical key.
float MeanFactor(const SearchTask& task) {
  constexpr int64_t kMostWindows = 64;
  const int64_t windows = task.num_keys / kWindowTokens, step = std::max<int64_t>(1, windows / kMostWindows);
  double sum = 0;
  int64_t count = 0;
  for (int64_t w = step / 2; w < windows; w += step) {
    const ConstCodePlanes& planes = task.segments[w * kWindowTokens / task.segment_keys];
    const int64_t key = w * kWindowTokens % task.segment_keys;
    for (int i = 0; i < kWindowTokens; ++i, ++count) {
      sum += DecodeFactor(planes.factor[key + i], planes.factor_base[key / kWindowTokens]);
    }
  }
  return count > 0 ? static_cast<float>(sum / static_cast<double>(count)) : 0.0f;
}

// What recall_target needs to know of one query's estimates E = X + noise, X the true scores.
struct Prediction {
  float noise = 0;   // standard deviation
  float mean = 0;    // of the scores
  float shrink = 1;  // of X's spread to E's
};

Prediction Predict(const SearchTask& task, const QueryWork& work, float mean_factor, const std::vector<float>& scores) {
  double sum = 0, squares = 0;
  for (const float s : scores) sum += s, squares += static_cast<double>(s) * s;
  const double n = static_cast<double>(scores.size()), mean = sum / n, variance = squares / n - mean * mean;
  Prediction p;
  p.noise = task.codec->CoarseNoise(work.prepared) * mean_factor;
  p.mean = static_cast<float>(mean);
  if (variance > 0) {
    p.shrink = static_cast<float>(std::sqrt(std::max(0.0, 1 - static_cast<double>(p.noise) * p.noise / variance)));
  }
  return p;
}

// The score above which a true best key's estimate lies with probability `target`, over the best `top` estimates
// (descending): mean of Phi((X - t) / noise) = target, found by halving.
float CutFor(const Prediction& p, const std::vector<float>& top, double target) {
  constexpr size_t kPlaces = 16;
  double x[kPlaces];
  const size_t places = std::min(kPlaces, top.size());
  for (size_t i = 0; i < places; ++i) {
    x[i] =
        p.mean + static_cast<double>(p.shrink) * (top[i * (top.size() - 1) / std::max<size_t>(places - 1, 1)] - p.mean);
  }
  double low = x[places - 1] - 6 * static_cast<double>(p.noise), high = x[0] + 6 * static_cast<double>(p.noise);
  if (!(p.noise > 0)) return static_cast<float>(x[places - 1]);
  for (int i = 0; i < 20; ++i) {
    const double t = (low + high) / 2;
    double share = 0;
    for (size_t j = 0; j < places; ++j) share += std::erfc((t - x[j]) / p.noise * 0.7071067811865476) / 2;
    (share / static_cast<double>(places) >= target ? low : high) = t;
  }
  return static_cast<float>(low);
}

// The best `k` of scores, descending.
std::vector<float> BestScores(const float* scores, size_t n, size_t k, std::vector<float>* scratch) {
  std::vector<uint32_t> places;
  SelectLargest(scores, n, std::min(k, n), scratch, &places);
  std::vector<float> best(places.size());
  for (size_t i = 0; i < places.size(); ++i) best[i] = scores[places[i]];
  std::sort(best.begin(), best.end(), std::greater<>());
  return best;
}

size_t MostCandidates(const SearchTask& task, size_t wanted) {
  return std::max(wanted, static_cast<size_t>(kMostCandidates * static_cast<double>(task.num_keys)));
}

void ScanShort(const SearchTask& task, const SearchParams& params, size_t wanted, QueryWork* work, SearchStats* stats) {
  const int64_t start = NowNs();
  const bool collision = params.coarse == Coarse::kCollision;
  work->scores.resize(task.num_keys);
  work->bases.resize(task.num_keys / kWindowTokens);
  for (int64_t s = 0; s < NumSegments(task); ++s) {
    const int64_t first = s * task.segment_keys;
    ScanScores(ArgsFor(task, *work, collision, s), work->scores.data() + first,
               work->bases.data() + first / kWindowTokens);
  }
  const int64_t scanned = NowNs();
  stats->scan_ns += scanned - start;
  if (params.recall_target > 0) {
    const Prediction p = Predict(task, *work, MeanFactor(task), work->scores);
    const auto best = BestScores(work->scores.data(), work->scores.size(), params.top_k, &work->scratch);
    const size_t above = CountAbove(work->scores.data(), work->scores.size(), CutFor(p, best, params.recall_target));
    wanted = std::clamp(above, wanted, MostCandidates(task, wanted));
  }
  SelectLargest(work->scores.data(), task.num_keys, wanted, &work->scratch, &work->chosen);
  stats->candidates += static_cast<int64_t>(work->chosen.size());
  FillCandidates(task, *work, work->chosen, work->bases.data(), &work->found);
  for (size_t i = 0; i < work->chosen.size(); ++i) {
    work->found.coarse[i] = work->scores[work->chosen[i]];
    work->chosen[i] = static_cast<uint32_t>(i);
  }
  stats->select_ns += NowNs() - scanned;
}

void ScanLong(const SearchTask& task, const SearchParams& params, size_t wanted, QueryWork* work, SearchStats* stats) {
  const bool collision = params.coarse == Coarse::kCollision, by_target = params.recall_target > 0;
  const int row_bytes = task.codec->layout().coarse_bytes;
  const double share = static_cast<double>(wanted) / static_cast<double>(task.num_keys);
  int64_t start = NowNs();
  const float mean_factor = by_target ? MeanFactor(task) : 0.0f;
  std::vector<std::vector<float>> samples(task.group);
  std::vector<Prediction> predictions(task.group);
  for (int g = 0; g < task.group; ++g) {
    SampleScores(task, collision, &work[g], &samples[g]);
    if (by_target) predictions[g] = Predict(task, work[g], mean_factor, samples[g]);
  }
  std::vector<int> open(task.group);
  for (int g = 0; g < task.group; ++g) open[g] = g;
  for (int loosen = 0; !open.empty(); ++loosen) {
    std::vector<float> thresholds;
    for (const int g : open) {
      float threshold = Threshold(samples[g], share, loosen, &work[g].scratch);
      if (by_target) {  // the sample's best stand for the zone's, which lie above them
        const size_t k = std::max<size_t>(4, params.top_k * samples[g].size() / task.num_keys);
        const auto best = BestScores(samples[g].data(), samples[g].size(), k, &work[g].scratch);
        const float most = Threshold(samples[g], kMostCandidates, 0, &work[g].scratch);
        threshold = std::min(threshold, std::max(most, CutFor(predictions[g], best, params.recall_target)));
      }
      thresholds.push_back(threshold);
      work[g].found.size = 0;
    }
    const int64_t decided = NowNs();
    stats->select_ns += decided - start;
    for (int64_t s = 0; s < NumSegments(task); ++s) {  // a segment stays in the cache for every query of the group
      for (size_t i = 0; i < open.size(); ++i) {
        QueryWork& w = work[open[i]];
        Reserve(&w.found, w.found.size + task.segment_keys + kSlack, row_bytes);
        ScanAbove(ArgsFor(task, w, collision, s), thresholds[i], static_cast<uint32_t>(s * task.segment_keys),
                  &w.found);
      }
    }
    stats->scanned_keys += task.num_keys * static_cast<int64_t>(open.size());
    std::erase_if(open, [&](int g) { return work[g].found.size >= wanted; });
    stats->rescans += static_cast<int64_t>(open.size());
    start = NowNs();
    stats->scan_ns += start - decided;
  }
  for (int g = 0; g < task.group; ++g) {
    QueryWork& w = work[g];
    size_t keep = wanted;
    if (by_target) {
      const auto best = BestScores(w.found.coarse.data(), w.found.size, params.top_k, &w.scratch);
      const size_t above =
          CountAbove(w.found.coarse.data(), w.found.size, CutFor(predictions[g], best, params.recall_target));
      keep = std::clamp(above, wanted, std::min(w.found.size, MostCandidates(task, wanted)));
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
  Reserve(out, keys.size(), layout.coarse_bytes);
  out->size = keys.size();
  uint32_t row_of_base = UINT32_MAX;
  float base = work.shared_base;
  for (size_t i = 0; i < keys.size(); ++i) {
    const ConstCodePlanes& planes = task.segments[keys[i] / task.segment_keys];
    const int key = static_cast<int>(keys[i] % task.segment_keys);
    if (bases != nullptr) {
      base = bases[keys[i] / kWindowTokens];
    } else if (planes.centre != nullptr && keys[i] / layout.centre_tokens != row_of_base) {
      row_of_base = keys[i] / layout.centre_tokens;
      const int row = key / layout.centre_tokens;
      const int32_t dot =
          Dot8(planes.centre + static_cast<size_t>(row) * layout.head_dim, query.query8.data(), layout.head_dim);
      base = static_cast<float>(dot) * (planes.centre_scale[row] * unit);
    }
    out->index[i] = keys[i];
    out->base[i] = base;
    CopyCoarseRow(planes.coarse, layout.coarse_bytes, key, out->rows.data() + i * layout.coarse_bytes);
  }
}

void FindCandidates(const SearchTask& task, const SearchParams& params, size_t wanted, QueryWork* work,
                    SearchStats* stats) {
  const bool collision = params.coarse == Coarse::kCollision;
  const CodeLayout& layout = task.codec->layout();
  const int64_t start = NowNs();
  for (int g = 0; g < task.group; ++g) {
    QueryWork& w = work[g];
    task.codec->PrepareQuery(task.queries + static_cast<size_t>(g) * layout.head_dim, &w.prepared);
    w.shared_base = 0;
    if (task.shared_centre != nullptr && w.prepared.coarse_step > 0) {
      const int32_t dot = Dot8(task.shared_centre->values.data(), w.prepared.query8.data(), layout.head_dim);
      w.shared_base =
          static_cast<float>(dot) * (task.shared_centre->scale * w.prepared.query8_step / w.prepared.coarse_step);
    }
    if (collision) {
      MakeTiers(w.prepared.transformed.data(), layout.head_dim, task.collision_counts, task.num_keys, params.rho,
                layout.coarse_bytes, &w.tiers);
    }
  }
  stats->prepare_ns += NowNs() - start;
  if (task.num_keys > kShortZone) {
    ScanLong(task, params, wanted, work, stats);
  } else {
    for (int g = 0; g < task.group; ++g) ScanShort(task, params, wanted, &work[g], stats);
    stats->scanned_keys += task.num_keys * task.group;
  }
}

}  // namespace seine::cpu
