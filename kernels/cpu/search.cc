// Stages I to III of one task, and the reduction of a query group to one set.
#include "kernels/cpu/search.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "kernels/cpu/coarse_stage.h"
#include "kernels/cpu/ops.h"
#include "kernels/math.h"
#include "kernels/select.h"

namespace seine::cpu {
namespace {

// Log-sum-exp in pieces: values are added in 16 lanes, so the sum does not depend on the target.
class LogSumExp {
 public:
  void Add(const float* x, size_t n, float scale) {
    float largest = max_;
    for (size_t i = 0; i < n; ++i) largest = std::max(largest, x[i] * scale);
    if (largest > max_) {
      const float shrink = ExpNonPositive(max_ - largest);
      for (float& lane : lanes_) lane *= shrink;
      max_ = largest;
    }
    for (size_t i = 0; i < n; ++i) lanes_[i % 16] += ExpNonPositive(x[i] * scale - max_);
  }
  float Value() const {
    float sum = 0;
    for (const float lane : lanes_) sum += lane;
    return sum > 0 ? max_ + std::log(sum) : -INFINITY;
  }

 private:
  float max_ = -INFINITY;
  float lanes_[16] = {0};
};

struct Workspace {
  QueryWork query[kMaxGroup];
  std::vector<uint32_t> keys;      // zone keys scored exactly, ascending
  std::vector<int32_t> positions;  // of `keys`
  std::vector<float> logits;       // [group][keys]
  std::vector<float> combined;     // [keys] the reduced score
  std::vector<float> mass;         // [keys] mean softmax mass over the zone, if mass_p
  std::vector<float> dots, estimates, scratch;
  std::vector<uint32_t> order;
  Candidates candidates;
};

Workspace& Local() {
  static thread_local Workspace workspace;
  return workspace;
}

float Scale(const SearchTask& task, const SearchParams& params) {
  if (params.softmax_scale > 0) return params.softmax_scale;
  return 1.0f / std::sqrt(static_cast<float>(task.codec->layout().head_dim));
}

// The set of one row: the best top_k (or fewer, by mass_p) of `scores`, ascending by position.
void Emit(const SearchParams& params, const std::vector<int32_t>& positions, const float* scores, const float* mass,
          Workspace* w, std::vector<int32_t>* out_positions, std::vector<float>* out_scores) {
  SelectLargest(scores, positions.size(), params.top_k, &w->scratch, &w->order);
  if (mass != nullptr) {
    std::sort(w->order.begin(), w->order.end(),
              [&](uint32_t a, uint32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
    double sum = 0;
    size_t kept = 0;
    while (kept < w->order.size() && (kept < static_cast<size_t>(params.mass_floor) || sum < params.mass_p)) {
      sum += mass[w->order[kept++]];
    }
    w->order.resize(kept);
    std::sort(w->order.begin(), w->order.end());
  }
  out_positions->resize(w->order.size());
  out_scores->resize(w->order.size());
  for (size_t i = 0; i < w->order.size(); ++i) {
    (*out_positions)[i] = positions[w->order[i]];
    (*out_scores)[i] = scores[w->order[i]];
  }
}

float DenseLse(const SearchTask& task, const float* query, float scale, LogSumExp lse, Workspace* w) {
  for (const DenseRun& run : task.dense) {
    w->dots.resize(run.count);
    DotRows(run.keys, run.count, task.codec->layout().head_dim, query, w->dots.data());
    lse.Add(w->dots.data(), w->dots.size(), scale);
  }
  return lse.Value();
}

// Reduces w->logits [group][keys] to one score a key, given each head's log-sum-exp over the zone (zone) and in all
// (full).
void Reduce(const SearchTask& task, const SearchParams& params, const float* zone, const float* full, Workspace* w) {
  const size_t n = w->keys.size();
  w->combined.assign(n, params.reduce == GqaReduce::kMax ? -INFINITY : 0.0f);
  w->mass.assign(params.mass_p > 0 ? n : 0, 0.0f);
  const float share = 1.0f / static_cast<float>(task.group);
  for (int g = 0; g < task.group; ++g) {
    const float* l = w->logits.data() + g * n;
    for (size_t i = 0; i < n; ++i) {
      if (params.reduce == GqaReduce::kSoftmaxSum) w->combined[i] += ExpNonPositive(std::min(l[i] - full[g], 0.0f));
      if (params.reduce == GqaReduce::kMean) w->combined[i] += l[i] * share;
      if (params.reduce == GqaReduce::kMax) w->combined[i] = std::max(w->combined[i], l[i]);
    }
    for (size_t i = 0; i < w->mass.size(); ++i) w->mass[i] += ExpNonPositive(std::min(l[i] - zone[g], 0.0f)) * share;
  }
}

// Logits of w->keys for query g into w->logits: exact from the store, else from the codes.
void Score(const SearchTask& task, int g, float scale, Workspace* w, SearchStats* stats) {
  const size_t n = w->keys.size();
  w->logits.resize(n * task.group);
  float* out = w->logits.data() + g * n;
  if (task.keys.chunks != nullptr) {
    DotGather(task.keys, w->positions.data(), static_cast<int>(n),
              task.queries + static_cast<size_t>(g) * task.keys.head_dim, out);
    stats->refined += static_cast<int64_t>(n);
  } else {
    FillCandidates(task, w->query[g], w->keys, nullptr, &w->candidates);
    w->order.resize(n);
    for (size_t i = 0; i < n; ++i) w->order[i] = static_cast<uint32_t>(i);
    task.codec->Rerank(w->query[g].prepared, w->candidates, w->order.data(), n, task.segments, task.segment_keys, out);
  }
  for (size_t i = 0; i < n; ++i) out[i] *= scale;
}

void SetKeys(const SearchTask& task, Workspace* w) {
  w->positions.resize(w->keys.size());
  for (size_t i = 0; i < w->keys.size(); ++i) w->positions[i] = static_cast<int32_t>(task.zone_begin + w->keys[i]);
}

// Stage II of query g: estimates of its candidates and the survivors among them.
void RerankQuery(const SearchTask& task, size_t keep, QueryWork* q) {
  q->estimates.resize(q->chosen.size());
  task.codec->Rerank(q->prepared, q->found, q->chosen.data(), q->chosen.size(), task.segments, task.segment_keys,
                     q->estimates.data());
  SelectLargest(q->estimates.data(), q->estimates.size(), keep, &q->scratch, &q->survivors);
}

void AppendSurvivors(const QueryWork& q, std::vector<uint32_t>* keys) {
  for (const uint32_t s : q.survivors) keys->push_back(q.found.index[q.chosen[s]]);
}

void SearchIndex(const SearchTask& task, const SearchParams& params, SearchOutput* out, Workspace* w) {
  const size_t n = task.num_keys, k = params.top_k;
  const size_t floor = std::max<size_t>(4 * k, 256);
  const size_t wanted =
      std::min(n, std::max(floor, static_cast<size_t>(std::ceil(params.beta * static_cast<double>(n)))));
  const size_t keep = std::max<size_t>(params.refine, k);
  const float scale = Scale(task, params);
  SearchStats* stats = &out->stats;
  FindCandidates(task, params, wanted, w->query, stats);
  const int64_t start = NowNs();
  for (int g = 0; g < task.group; ++g) RerankQuery(task, keep, &w->query[g]);
  const int64_t reranked = NowNs();
  stats->rerank_ns += reranked - start;
  const bool want_zone = params.mass_p > 0, joint = params.scope == Scope::kPerKvHead;
  const bool want_full = joint && params.reduce == GqaReduce::kSoftmaxSum;
  float zone[kMaxGroup] = {0}, full[kMaxGroup] = {0};
  for (int g = 0; g < task.group && (want_zone || want_full); ++g) {
    LogSumExp lse;
    lse.Add(w->query[g].estimates.data(), w->query[g].estimates.size(), scale);
    zone[g] = lse.Value();
    const float* query = task.queries + static_cast<size_t>(g) * task.codec->layout().head_dim;
    if (want_full) full[g] = DenseLse(task, query, scale, lse, w);
  }
  if (joint) {
    w->keys.clear();
    for (int g = 0; g < task.group; ++g) AppendSurvivors(w->query[g], &w->keys);
    std::sort(w->keys.begin(), w->keys.end());
    w->keys.erase(std::unique(w->keys.begin(), w->keys.end()), w->keys.end());
    SetKeys(task, w);
    for (int g = 0; g < task.group; ++g) Score(task, g, scale, w, stats);
    Reduce(task, params, zone, full, w);
    Emit(params, w->positions, w->combined.data(), want_zone ? w->mass.data() : nullptr, w, &out->positions[0],
         &out->scores[0]);
  } else {
    SearchTask one = task;  // each head alone: a group of one
    one.group = 1;
    for (int g = 0; g < task.group; ++g) {
      w->keys.clear();
      AppendSurvivors(w->query[g], &w->keys);
      SetKeys(task, w);
      if (g > 0) std::swap(w->query[0], w->query[g]);
      one.queries = task.queries + static_cast<size_t>(g) * task.codec->layout().head_dim;
      Score(one, 0, scale, w, stats);
      SearchParams alone = params;
      alone.reduce = GqaReduce::kMean;
      Reduce(one, alone, zone + g, full + g, w);
      if (g > 0) std::swap(w->query[0], w->query[g]);
      Emit(params, w->positions, w->combined.data(), want_zone ? w->mass.data() : nullptr, w, &out->positions[g],
           &out->scores[g]);
    }
  }
  stats->refine_ns += NowNs() - reranked;
  if (!params.with_candidates) return;
  out->candidates.resize(task.group);
  for (int g = 0; g < task.group; ++g) {
    out->candidates[g].clear();
    for (const uint32_t c : w->query[g].chosen) {
      out->candidates[g].push_back(static_cast<int32_t>(task.zone_begin + w->query[g].found.index[c]));
    }
  }
}

// Every stored key of the zone, chunk by chunk. out[num_keys], scaled.
void ExactLogits(const SearchTask& task, const float* query, float scale, float* out) {
  const ChunkedRows& keys = task.keys;
  const size_t stride = keys.head_dim * SizeOf(keys.dtype);
  const int64_t end = task.zone_begin + task.num_keys;
  for (int64_t p = task.zone_begin; p < end;) {
    const int64_t count = std::min<int64_t>(keys.chunk_tokens - p % keys.chunk_tokens, end - p);
    DotRows({keys.row(p), stride, keys.dtype}, count, keys.head_dim, query, out + (p - task.zone_begin));
    p += count;
  }
  for (int64_t i = 0; i < task.num_keys; ++i) out[i] *= scale;
}

void SearchExact(const SearchTask& task, const SearchParams& params, SearchOutput* out, Workspace* w) {
  const int64_t start = NowNs();
  const size_t n = task.num_keys;
  const float scale = Scale(task, params);
  const bool joint = params.scope == Scope::kPerKvHead;
  w->keys.resize(n);
  for (size_t i = 0; i < n; ++i) w->keys[i] = static_cast<uint32_t>(i);
  SetKeys(task, w);
  SearchTask one = task;
  one.group = 1;
  float zone[kMaxGroup] = {0}, full[kMaxGroup] = {0};
  w->logits.resize(n * (joint ? task.group : 1));
  for (int g = 0; g < task.group; ++g) {
    const float* query = task.queries + static_cast<size_t>(g) * task.keys.head_dim;
    float* logits = w->logits.data() + (joint ? g * n : 0);
    ExactLogits(task, query, scale, logits);
    if (joint || params.mass_p > 0) {
      LogSumExp lse;
      lse.Add(logits, n, 1.0f);
      zone[g] = lse.Value();
      full[g] = joint ? DenseLse(task, query, scale, lse, w) : 0.0f;
    }
    if (joint) continue;
    if (params.mass_p > 0) {
      SearchParams alone = params;
      alone.reduce = GqaReduce::kMean;
      Reduce(one, alone, zone + g, full + g, w);
    }
    Emit(params, w->positions, logits, params.mass_p > 0 ? w->mass.data() : nullptr, w, &out->positions[g],
         &out->scores[g]);
  }
  if (joint) {
    Reduce(task, params, zone, full, w);
    Emit(params, w->positions, w->combined.data(), params.mass_p > 0 ? w->mass.data() : nullptr, w, &out->positions[0],
         &out->scores[0]);
  }
  out->stats.refined += static_cast<int64_t>(n) * task.group;
  out->stats.refine_ns += NowNs() - start;
}

}  // namespace

void SearchOne(const SearchTask& task, const SearchParams& params, SearchOutput* out) {
  assert(task.group >= 1 && task.group <= kMaxGroup && params.top_k > 0);
  const size_t rows = params.scope == Scope::kPerKvHead ? 1 : task.group;
  out->positions.resize(rows);
  out->scores.resize(rows);
  if (task.num_keys == 0) {
    for (size_t r = 0; r < rows; ++r) out->positions[r].clear(), out->scores[r].clear();
    return;
  }
  if (params.method == Method::kExact) {
    assert(task.keys.chunks != nullptr);
    SearchExact(task, params, out, &Local());
  } else {
    SearchIndex(task, params, out, &Local());
  }
}

}  // namespace seine::cpu

namespace seine {

void SearchStats::Add(const SearchStats& o) {
  scanned_keys += o.scanned_keys;
  candidates += o.candidates;
  rescans += o.rescans;
  refined += o.refined;
  prepare_ns += o.prepare_ns;
  scan_ns += o.scan_ns;
  select_ns += o.select_ns;
  rerank_ns += o.rerank_ns;
  refine_ns += o.refine_ns;
}

}  // namespace seine
