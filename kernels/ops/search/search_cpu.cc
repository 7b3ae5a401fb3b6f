// Stages I to III of one task, and the reduction of a query group to one set.
#include "kernels/ops/search/search_cpu.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

#include "kernels/cpu/prefetch.h"
#include "kernels/math.h"
#include "kernels/ops/low_rank/low_rank_products.h"
#include "kernels/ops/mass/zone_mass_cpu.h"
#include "kernels/ops/query/zone_mass.h"
#include "kernels/ops/rows/row_walk.h"
#include "kernels/ops/rows/rows.h"
#include "kernels/ops/scan/coarse_stage.h"
#include "kernels/ops/scan/scan_group.h"
#include "kernels/ops/search/survivors.h"
#include "kernels/ops/select/select.h"
#include "kernels/stop.h"

namespace seine::cpu {
namespace {

struct SearchWorkspace {
  QueryWork query[kMaxGroup];
  LogSumExp lse[kMaxGroup];
  std::vector<uint32_t> keys;     // zone keys scored exactly, ascending
  std::vector<uint32_t> members;  // which queries they survive with, a bit each
  SurvivorJoin join;
  std::vector<int32_t> positions;  // of `keys`
  std::vector<float> logits;       // [group][keys]
  std::vector<uint32_t> together;  // members of all heads' keys, ascending by key, and the logits [group][together]
  std::vector<float> logits_together;
  std::vector<float> combined;  // [keys] the reduced score
  std::vector<float> mass;      // [keys] mean softmax mass over the zone, if mass_p
  SampleFactors factors;
  std::vector<float> dots, estimates, scratch;
  std::vector<uint32_t> order;
  Candidates candidates;
};

SearchWorkspace& LocalWorkspace() {
  static thread_local SearchWorkspace workspace;
  return workspace;
}

float Scale(const SearchTask& task, const SearchParams& params) {
  if (params.softmax_scale > 0) return params.softmax_scale;
  return 1.0f / std::sqrt(static_cast<float>(task.codec->layout().head_dim));
}

// The set of row r: the best top_k (or fewer, by mass_p) of scores[n], ascending by position; score i is of
// position_of(i), called with ascending i.
template <typename PositionOf>
void Emit(const SearchTask& task, const SearchParams& params, const float* scores, size_t n, PositionOf position_of,
          SearchWorkspace* w, size_t r, SearchOutput* out) {
  SelectLargest(scores, n, params.top_k, &w->scratch, &w->order);
  if (params.mass_p > 0) {
    std::sort(w->order.begin(), w->order.end(),
              [&](uint32_t a, uint32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
    double sum = 0;
    size_t kept = 0;
    while (kept < w->order.size() && (kept < static_cast<size_t>(params.mass_floor) || sum < params.mass_p)) {
      sum += w->mass[w->order[kept++]];
    }
    w->order.resize(kept);
    std::sort(w->order.begin(), w->order.end());
    out->masses[r] = static_cast<float>(sum);
    out->capped[r] = sum < params.mass_p && kept < static_cast<size_t>(task.num_keys);
  }
  out->positions[r].resize(w->order.size());
  out->scores[r].resize(w->order.size());
  for (size_t i = 0; i < w->order.size(); ++i) {
    out->positions[r][i] = position_of(w->order[i]);
    out->scores[r][i] = scores[w->order[i]];
  }
}

// Adds the dense zones' logits to each head's log-sum-exp.
void AddDense(const SearchTask& task, float scale, SearchWorkspace* w) {
  for (const DenseRun& run : task.dense) {
    w->dots.resize(static_cast<size_t>(run.count) * task.group);
    DotRows(run.keys, run.count, task.codec->layout().head_dim, task.queries, task.group, w->dots.data(), run.count);
    for (int g = 0; g < task.group; ++g) w->lse[g].Add(w->dots.data() + int64_t{g} * run.count, run.count, scale);
  }
}

// Reduces w->logits [group][keys] to one score a key, given each head's log-sum-exp over the zone (zone) and in all
// (full).
void Reduce(const SearchTask& task, const SearchParams& params, const float* zone, const float* full,
            SearchWorkspace* w) {
  const size_t n = w->keys.size();
  w->combined.assign(n, params.gqa_reduce == GqaReduce::kMax ? -INFINITY : 0.0f);
  w->mass.assign(params.mass_p > 0 ? n : 0, 0.0f);
  const float share = 1.0f / static_cast<float>(task.group);
  for (int g = 0; g < task.group; ++g) {
    const float* l = w->logits.data() + g * n;
    if (params.gqa_reduce == GqaReduce::kSoftmaxSum) AddExp(l, n, full[g], 1.0f, w->combined.data());
    for (size_t i = 0; i < n && params.gqa_reduce == GqaReduce::kMean; ++i) w->combined[i] += l[i] * share;
    for (size_t i = 0; i < n && params.gqa_reduce == GqaReduce::kMax; ++i)
      w->combined[i] = std::max(w->combined[i], l[i]);
    AddExp(l, w->mass.size(), zone[g], share, w->mass.data());
  }
}

// w->logits [group][positions], of keys of which some are low-rank.
void DotLowRank(const SearchTask& task, SearchWorkspace* w) {
  const auto count = static_cast<int64_t>(w->positions.size());
  LowRankDots(*task.low_rank, task.queries, task.group)
      .Dot(w->positions.data(), count, 0, task.group, w->logits.data(), count);
}

// Logits of w->keys for every query into w->logits [group][keys]: exact from the store, else from the codes.
void Score(const SearchTask& task, const QueryWork* queries, float scale, SearchWorkspace* w, SearchStats* stats) {
  const size_t n = w->keys.size();
  w->logits.resize(n * task.group);
  if (task.low_rank != nullptr) {
    DotLowRank(task, w);
    stats->refined += static_cast<int64_t>(n) * task.group;
  } else if (task.keys.chunks != nullptr) {
    DotGather(task.keys, w->positions.data(), static_cast<int>(n), task.queries, task.group, w->logits.data());
    stats->refined += static_cast<int64_t>(n) * task.group;
  } else {
    w->order.resize(n);
    for (size_t i = 0; i < n; ++i) w->order[i] = static_cast<uint32_t>(i);
    for (int g = 0; g < task.group; ++g) {
      FillCandidates(task, queries[g], w->keys, nullptr, &w->candidates);
      task.codec->Rerank(queries[g].prepared, w->candidates, w->order.data(), n, task.segments, task.segment_keys,
                         w->logits.data() + g * n);
    }
  }
  for (float& logit : w->logits) logit *= scale;
}

void SetKeys(const SearchTask& task, SearchWorkspace* w) {
  w->positions.resize(w->keys.size());
  for (size_t i = 0; i < w->keys.size(); ++i) w->positions[i] = static_cast<int32_t>(task.zone_begin + w->keys[i]);
}

// All keys of the zone, and their positions.
void ListAll(const SearchTask& task, SearchWorkspace* w) {
  w->keys.resize(task.num_keys);
  std::iota(w->keys.begin(), w->keys.end(), 0u);
  SetKeys(task, w);
}

// Stage II of a query: estimates of its candidates and the survivors among them.
void RerankQuery(const SearchTask& task, size_t keep, bool with_mass, QueryWork* q) {
  if (q->chosen.size() <= keep && !with_mass) {  // all survive, and estimates serve the mass alone
    q->survivors.resize(q->chosen.size());
    std::iota(q->survivors.begin(), q->survivors.end(), 0u);
    return;
  }
  q->estimates.resize(q->chosen.size());
  task.codec->Rerank(q->prepared, q->found, q->chosen.data(), q->chosen.size(), task.segments, task.segment_keys,
                     q->estimates.data());
  SelectLargest(q->estimates.data(), q->estimates.size(), keep, &q->scratch, &q->survivors);
}

// Asks for the stored keys of a query's survivors, whose products come last: memory then works while other queries are
// reranked. What comes faster than memory answers is dropped, and asked for again with the products.
void FetchSurvivors(const SearchTask& task, const QueryWork& q) {
  if (task.group == 1 || task.low_rank != nullptr || task.keys.chunks == nullptr) return;
  const size_t bytes = BytesOf(task.keys.dtype, task.keys.head_dim);
  RowWalk walk(task.keys);
  for (const uint32_t s : q.survivors) {
    const uint8_t* row = walk.At(static_cast<int32_t>(task.zone_begin + q.found.index[q.chosen[s]]));
    for (size_t b = 0; b < bytes; b += 64) PrefetchFar(row + b);
  }
}

// Keys of the survivors of queries [begin, end) to w->keys, ascending and each once, and whose they are to w->members.
void JoinSurvivors(int begin, int end, SearchWorkspace* w) {
  w->join.Join(w->query, begin, end, &w->keys, &w->members);
}

// Adds query g's survivors to its log-sum-exp over the zone, given the logits of w->keys, which they are among. Returns
// its value.
float AddSurvivors(int g, const float* logits, SearchWorkspace* w) {
  TakeOwn(g, w->members, logits, &w->scratch);
  w->lse[g].Add(w->scratch.data(), w->scratch.size(), 1.0f);
  return w->lse[g].Value();
}

// Logits of every head's survivors with every head: a key that several heads want is read, and where it turns rebuilt,
// once for all of them.
void ScoreTogether(const SearchTask& task, float scale, SearchWorkspace* w) {
  JoinSurvivors(0, task.group, w);
  SetKeys(task, w);
  w->logits.resize(w->keys.size() * task.group);
  DotLowRank(task, w);
  for (float& logit : w->logits) logit *= scale;
  std::swap(w->members, w->together);
  std::swap(w->logits, w->logits_together);
}

// Those of w->keys with head g, of what was scored together.
void TakeLogits(int g, SearchWorkspace* w, SearchStats* stats) {
  TakeOwn(g, w->together, w->logits_together.data() + g * w->together.size(), &w->logits);
  stats->refined += static_cast<int64_t>(w->keys.size());
}

void SearchIndex(const SearchTask& task, const SearchParams& params, const Codec* next, SearchOutput* out,
                 SearchWorkspace* w) {
  const int64_t searched = task.searched_keys();
  const auto wanted = static_cast<size_t>(
      CandidatesWanted(params, task.codec->layout(), task.codec->DefaultCandidateFraction(searched), searched));
  const size_t keep = task.refine_all ? wanted : static_cast<size_t>(std::max(params.rescore_k, params.top_k));
  const float scale = Scale(task, params);
  SearchStats* stats = &out->stats;
  FindCandidates(task, params, wanted, w->query, stats);
  if (StopRequested()) return;
  const int64_t start = NowNs();
  for (int g = 0; g < task.group && !StopRequested(); ++g) {
    RerankQuery(task, keep, NeedsZoneMass(params), &w->query[g]);
    FetchSurvivors(task, w->query[g]);
    if (next != nullptr) next->FetchAhead(g, task.group);
  }
  if (StopRequested()) return;
  const int64_t reranked = NowNs();
  stats->rerank_ns += reranked - start;
  const bool joint = params.scope == Scope::kPerKvHead, with_mass = NeedsZoneMass(params);
  const auto position_of = [w](uint32_t i) { return w->positions[i]; };
  float zone[kMaxGroup] = {0}, full[kMaxGroup] = {0};
  if (with_mass) FindFactors(task, &w->factors);
  for (int g = 0; g < task.group && with_mass; ++g) {
    w->lse[g] = LogSumExp();
    AddUnscored(task, scale, w->factors, &w->query[g], &w->lse[g]);
  }
  if (joint) {
    JoinSurvivors(0, task.group, w);
    SetKeys(task, w);
    Score(task, w->query, scale, w, stats);
    for (int g = 0; g < task.group && with_mass; ++g)
      zone[g] = AddSurvivors(g, w->logits.data() + g * w->keys.size(), w);
    if (params.gqa_reduce == GqaReduce::kSoftmaxSum) AddDense(task, scale, w);
    for (int g = 0; g < task.group && with_mass; ++g) full[g] = w->lse[g].Value();
    Reduce(task, params, zone, full, w);
    Emit(task, params, w->combined.data(), w->keys.size(), position_of, w, 0, out);
  } else {
    SearchTask one = task;  // each head alone: a group of one
    SearchParams alone = params;
    one.group = 1;
    alone.gqa_reduce = GqaReduce::kMean;
    if (task.low_rank != nullptr) ScoreTogether(task, scale, w);
    for (int g = 0; g < task.group; ++g) {
      JoinSurvivors(g, g + 1, w);
      SetKeys(task, w);
      one.queries = task.queries + static_cast<size_t>(g) * task.codec->layout().head_dim;
      if (task.low_rank != nullptr) {
        TakeLogits(g, w, stats);
      } else {
        Score(one, &w->query[g], scale, w, stats);
      }
      if (with_mass) zone[g] = AddSurvivors(g, w->logits.data(), w);
      if (with_mass) Reduce(one, alone, zone + g, full + g, w);
      Emit(task, params, w->logits.data(), w->keys.size(), position_of, w, g, out);
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

// Products of every stored key that is searched, chunk by chunk, with every query: w->logits [group][searched_keys()].
void DotSearched(const SearchTask& task, SearchWorkspace* w) {
  const ChunkedRows& keys = task.keys;
  const size_t stride = keys.stride();
  float* out = w->logits.data();
  task.ForEachRun([&](int64_t first, int64_t last) {
    const int64_t end = task.zone_begin + last;
    for (int64_t p = task.zone_begin + first; p < end && !StopRequested();) {
      const int64_t count = std::min<int64_t>(keys.chunk_tokens - p % keys.chunk_tokens, end - p), next = p + count;
      RowsAhead ahead;
      if (next < end) {
        ahead = {{keys.row(next), stride, keys.dtype}, std::min<int64_t>(keys.chunk_tokens, end - next)};
      }
      DotRows({keys.row(p), stride, keys.dtype}, count, keys.head_dim, task.queries, task.group, out,
              task.searched_keys(), ahead);
      out += count;
      p = next;
    }
  });
}

// Exact logits of all that is searched into w->logits [group][searched_keys()], scaled.
void ExactLogits(const SearchTask& task, float scale, SearchWorkspace* w) {
  w->logits.resize(static_cast<size_t>(task.searched_keys()) * task.group);
  if (task.low_rank != nullptr) {
    DotLowRank(task, w);
  } else {
    DotSearched(task, w);
  }
  for (float& logit : w->logits) logit *= scale;
}

void SearchExact(const SearchTask& task, const SearchParams& params, SearchOutput* out, SearchWorkspace* w) {
  const int64_t start = NowNs();
  const size_t n = task.searched_keys();
  const float scale = Scale(task, params);
  const bool joint = params.scope == Scope::kPerKvHead;
  if (joint || task.low_rank != nullptr) ListAll(task, w);
  ExactLogits(task, scale, w);
  if (StopRequested()) return;
  const int64_t scored = NowNs();
  out->stats.refine_ns += scored - start;
  float zone[kMaxGroup] = {0}, full[kMaxGroup] = {0};
  for (int g = 0; g < task.group && (joint || params.mass_p > 0); ++g) {
    w->lse[g] = LogSumExp();
    w->lse[g].Add(w->logits.data() + g * n, n, 1.0f);
    zone[g] = w->lse[g].Value();
  }
  if (joint) {
    AddDense(task, scale, w);
    for (int g = 0; g < task.group; ++g) full[g] = w->lse[g].Value();
    Reduce(task, params, zone, full, w);
    const auto position_of = [&task](uint32_t i) { return static_cast<int32_t>(task.zone_begin + i); };
    Emit(task, params, w->combined.data(), n, position_of, w, 0, out);
  } else {
    for (int g = 0; g < task.group && !StopRequested(); ++g) {
      SearchedKeys searched(task);
      const auto position_of = [&](uint32_t i) { return static_cast<int32_t>(task.zone_begin + searched.Key(i)); };
      const float* logits = w->logits.data() + g * n;
      if (params.mass_p > 0) {
        w->mass.assign(n, 0.0f);
        AddExp(logits, n, zone[g], 1.0f, w->mass.data());
      }
      Emit(task, params, logits, n, position_of, w, g, out);
    }
  }
  out->stats.refined += static_cast<int64_t>(n) * task.group;
  out->stats.select_ns += NowNs() - scored;
}

}  // namespace

void SearchOne(const SearchTask& task, const SearchParams& params, SearchOutput* out, const Codec* next) {
  assert(task.group >= 1 && task.group <= kMaxGroup && params.top_k > 0);
  assert(task.runs == nullptr || (task.keys.chunks != nullptr && params.scope == Scope::kPerQHead &&
                                  params.mass_p == 0 && params.recall_target == 0 && params.coarse == Coarse::kSignIp));
  const size_t rows = params.scope == Scope::kPerKvHead ? 1 : task.group;
  out->positions.resize(rows);
  out->scores.resize(rows);
  out->masses.assign(params.mass_p > 0 ? rows : 0, 1.0f);
  out->capped.assign(out->masses.size(), 0);
  if (task.num_keys == 0) {
    for (size_t r = 0; r < rows; ++r) out->positions[r].clear(), out->scores[r].clear();
    return;
  }
  if (params.method == Method::kExact || task.whole) {
    assert(task.keys.chunks != nullptr || task.low_rank != nullptr);
    SearchExact(task, params, out, &LocalWorkspace());
  } else {
    SearchIndex(task, params, next, out, &LocalWorkspace());
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

void AttentionTimes::Add(const AttentionTimes& o) {
  dense_ns += o.dense_ns;
  chosen_ns += o.chosen_ns;
  tail_ns += o.tail_ns;
  softmax_ns += o.softmax_ns;
}

}  // namespace seine
