// Sizes and places of a search's intermediate results.
#include <algorithm>
#include <cassert>
#include <cmath>

#include "kernels/ops/mass/log_sum_exp_cuda.h"
#include "kernels/ops/query/search_items.h"
#include "kernels/ops/scan/sample_cuda.h"
#include "kernels/ops/scan/scan_cuda.h"
#include "kernels/ops/search/choose_cuda.h"
#include "kernels/ops/search/dots_cuda.h"
#include "kernels/ops/search/rerank_cuda.h"
#include "kernels/ops/search/search_plan.h"

namespace seine::cuda {
namespace {

// Room for half as many more as the threshold is expected to let through; beyond, the zone is searched again.
int32_t CapacityOf(int64_t wanted, int64_t num_keys) {
  if (num_keys == 0) return 0;
  const int64_t sample = static_cast<int64_t>(SampleOf(num_keys).count) * kWindowTokens;
  const int64_t place = SampledPlace(wanted, num_keys, sample);
  if (place >= sample) return static_cast<int32_t>(num_keys);
  return static_cast<int32_t>(std::min(num_keys, (place + 1) * num_keys / sample * 3 / 2 + 1024));
}

int Blocks(int64_t n, int each) { return static_cast<int>((n + each - 1) / each); }

// Blocks that share a query's candidates: each finds the cut by itself, so that a few of them cost the time of one.
// Under a recall target they would share the query's memory of the best.
int Splits(const SearchParams& params, int64_t most) {
  constexpr int kLeast = 2, kMost = 16;
  if (params.recall_target > 0) return 1;
  return std::clamp(Blocks(most, kChooseKeys), kLeast, kMost);
}

// Numbers of an item's keys that each step leaves, of each query.
struct Numbers {
  Numbers(const SearchParams& params, const CodeLayout& layout, double usual_share, int64_t n, bool refine_all)
      : wanted(static_cast<int32_t>(CandidatesWanted(params, layout, usual_share, n))), most(wanted) {
    if (params.recall_target > 0) {
      most = std::max(wanted, static_cast<int32_t>(kMostCandidates * static_cast<double>(n)));
    }
    keep = refine_all ? most : std::min(std::max(params.rescore_k, params.top_k), most);
    capacity = CapacityOf(most, n);
  }
  int32_t wanted, most, keep, capacity;
};

}  // namespace

size_t WorkspaceAtMost(const SearchParams& params, const CodeLayout& layout, double usual_share, int64_t num_keys,
                       int group, int64_t dense_tokens, bool refine_all) {
  constexpr size_t kAlign = 256, kWords = sizeof(uint32_t), kViews = 12;  // of a query or set, each at a multiple
  const Numbers of(params, layout, usual_share, num_keys, refine_all);
  const bool index = params.method == Method::kIndex, joint = params.scope == Scope::kPerKvHead;
  const size_t n = num_keys, keep = of.keep, most = of.most, capacity = of.capacity, top_k = params.top_k;
  const size_t queries = group, sets = joint ? 1 : queries, count = queries / sets;
  const size_t keys = index ? std::min(n, keep * count) : n;
  const size_t rows = count + 1 + (params.mass_p > 0) + (index && count > 1);
  const size_t set = kWords * (rows * keys + count * (keep + dense_tokens) + 3 * std::min(top_k, keys));
  if (!index) return sets * (set + kViews * kAlign);
  const size_t query = n / 16 + kWords * (2 * capacity + n / kPieceKeys * 2 + 2 * most + keep + top_k) +
                       6 * (layout.head_dim + 64) + sizeof(QueryState) + kViews * kAlign;
  const size_t tables = (queries / kScanQueries + 1) * (layout.coarse_bytes * (32 + 256) * kWords + 2 * kAlign);
  return sets * (set + kViews * kAlign) + queries * query + tables;
}

// Hands out 256-byte aligned pieces of a buffer, or counts them where there is none yet.
struct SearchPlan::Cursor {
  uint8_t* base;
  size_t used = 0;
  template <typename T>
  T* Take(size_t count) {
    T* at = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
    used += (count * sizeof(T) + 255) / 256 * 256;
    return at;
  }
};

SearchPlan::SearchPlan(const SearchParams& params, std::vector<SearchItem> items)
    : params_(params), items_(std::move(items)) {
  const bool joint = params_.scope == Scope::kPerKvHead;
  for (size_t i = 0; i < items_.size(); ++i) {
    SearchItem& item = items_[i];
    assert(item.group >= 1 && item.group <= kMaxGroup && item.num_keys % kWindowTokens == 0);
    assert(item.num_keys < INT32_MAX && (params_.method == Method::kIndex || item.stored()));
    const int64_t n = item.num_keys;
    const Numbers of(params_, item.layout, item.usual_share, n, item.refine_all);
    item.wanted = of.wanted;
    item.most = of.most;
    item.keep = of.keep;
    item.capacity = of.capacity;
    item.splits = Splits(params_, item.most);
    item.first_query = static_cast<int32_t>(queries_.size());
    item.first_set = static_cast<int32_t>(sets_.size());
    item.num_sets = joint ? 1 : item.group;
    for (int g = 0; g < item.group; ++g) {
      QueryPlan& q = queries_.emplace_back();
      q.item = static_cast<int32_t>(i);
      q.place = g;
    }
    for (int s = 0; s < item.num_sets; ++s) {
      SetPlan& set = sets_.emplace_back();
      set.item = static_cast<int32_t>(i);
      set.first = s;
      set.count = joint ? item.group : 1;
      set.capacity = static_cast<int32_t>(
          params_.method == Method::kExact ? n : std::min(n, static_cast<int64_t>(item.keep) * set.count));
      set.most = std::min(params_.top_k, set.capacity);
      set.scale = SetScale(params_, item);
      set.with_dense = joint && params_.gqa_reduce == GqaReduce::kSoftmaxSum;
    }
  }
  assert(sets_.size() < 65536);
  SizeGrids();
  Place(nullptr, nullptr);
}

void SearchPlan::SizeGrids() {
  const int items = static_cast<int>(items_.size()), sets = static_cast<int>(sets_.size());
  grids_.queries = grids_.scan = grids_.choose = {0, items};
  grids_.sets = {1, sets};
  grids_.dots = grids_.rescore = {0, sets};
  for (const SearchItem& item : items_) {
    const int quads = (item.group + kScanQueries - 1) / kScanQueries;
    grids_.queries.x = std::max(grids_.queries.x, item.group);
    grids_.scan.x = std::max(grids_.scan.x, Blocks(item.num_keys, kScanWindows * kWindowTokens) * quads);
    grids_.choose.x = std::max(grids_.choose.x, item.splits * item.group);
    grids_.low_rank = grids_.low_rank || item.low_rank.num_runs > 0;
    grids_.wide = grids_.wide || item.layout.head_dim > kNarrowHeadDim;
    const int groups = item.layout.coarse_bytes / 4;
    assert(groups <= kNarrowHeadDim / 32 || groups == kMaxHeadDim / 32);  // widths that a scan is compiled for
    grids_.coarse_groups |= 1u << groups;
  }
  for (const SetPlan& set : sets_) {
    const SearchItem& item = items_[set.item];
    const bool stored = item.stored();
    const int64_t rows = (stored ? set.capacity : 0) + (set.with_dense ? item.dense_tokens : 0);
    // Without stored keys the dense rows still come after the set's.
    grids_.dots.x = std::max(grids_.dots.x, rows > 0 ? Blocks(rows + (stored ? 0 : set.capacity), kDotRows) : 0);
    if (!stored) grids_.rescore.x = std::max(grids_.rescore.x, Blocks(set.capacity, kRerankKeys) * set.count);
  }
}

void SearchPlan::Place(uint8_t* workspace, uint8_t* answers) {
  Cursor work{workspace}, out{answers};
  for (SearchItem& item : items_) {
    if (params_.method == Method::kIndex) PlaceItem(&item, &work, &out);
  }
  for (SetPlan& set : sets_) PlaceSet(&set, &work, &out);
  workspace_bytes_ = work.used;
  answer_bytes_ = out.used;
}

void SearchPlan::PlaceItem(SearchItem* item, Cursor* work, Cursor* answers) {
  const size_t quads = (item->group + kScanQueries - 1) / kScanQueries, n = item->num_keys;
  const size_t dim = (item->layout.head_dim + 63) / 64 * 64, bytes = item->layout.coarse_bytes;
  item->nibble_tables = work->Take<uint32_t>(quads * bytes * 32);
  if (params_.coarse == Coarse::kCollision) item->tier_tables = work->Take<uint32_t>(quads * bytes * 256);
  for (int g = 0; g < item->group; ++g) {
    QueryPlan& q = queries_[item->first_query + g];
    q.query8 = work->Take<int8_t>(dim);
    q.transformed = work->Take<float>(dim);
    q.fine8 = work->Take<int8_t>(dim);
    q.state = work->Take<QueryState>(1);
    q.bases = work->Take<float>(n / kWindowTokens);
    q.found = work->Take<FoundKey>(item->capacity);
    q.pieces = work->Take<FoundPiece>((n + kPieceKeys - 1) / kPieceKeys);
    if (params_.recall_target > 0) q.best = work->Take<uint32_t>(std::max(params_.top_k, kLeastSampledBest));
    q.chosen = work->Take<uint32_t>(item->most);
    q.estimates = work->Take<float>(item->most);
    q.survivors = work->Take<uint32_t>(item->keep);
    q.num_candidates = answers->Take<int32_t>(1);
    if (params_.with_candidates) q.candidates = answers->Take<int32_t>(item->most);
  }
}

void SearchPlan::PlaceSet(SetPlan* set, Cursor* work, Cursor* answers) {
  const SearchItem& item = items_[set->item];
  const size_t capacity = set->capacity, most = set->most;
  if (params_.method == Method::kIndex) {
    const QueryPlan& first = queries_[item.first_query + set->first];
    if (set->count == 1) {
      set->keys = first.survivors;
      set->num_keys = first.state == nullptr ? nullptr : &first.state->num_survivors;
    } else {
      set->keys = work->Take<uint32_t>(capacity);
      set->num_keys = work->Take<uint32_t>(1);
      set->ranks = work->Take<uint32_t>(static_cast<size_t>(item.keep) * set->count);
    }
  }
  set->logits = work->Take<float>(capacity * set->count);
  if (set->with_dense) set->dense = work->Take<float>(static_cast<size_t>(item.dense_tokens) * set->count);
  set->combined = work->Take<float>(capacity);
  if (params_.mass_p > 0) {
    set->mass = work->Take<float>(capacity);
    set->ranked = work->Take<uint32_t>(2 * most);
  }
  set->order = work->Take<uint32_t>(most);
  set->answer = answers->Take<SetAnswer>(1);
  set->positions = answers->Take<int32_t>(most);
  set->scores = answers->Take<float>(most);
}

void SearchPlan::Read(int i, SearchOutput* out) const {
  const SearchItem& item = items_[i];
  out->positions.resize(item.num_sets);
  out->scores.resize(item.num_sets);
  out->masses.resize(params_.mass_p > 0 ? item.num_sets : 0);
  out->capped.resize(out->masses.size());
  for (int s = 0; s < item.num_sets; ++s) {
    const SetPlan& set = sets_[item.first_set + s];
    out->positions[s].assign(set.positions, set.positions + set.answer->count);
    out->scores[s].assign(set.scores, set.scores + set.answer->count);
    if (params_.mass_p > 0) out->masses[s] = set.answer->mass, out->capped[s] = set.answer->capped != 0;
    if (item.stored()) out->stats.refined += int64_t{set.answer->scored} * set.count;
    out->stats.rescans += set.answer->rescans;
    out->stats.scanned_keys += set.answer->rescans * item.num_keys;
  }
  if (params_.method == Method::kExact || item.num_keys == 0) return;
  out->stats.scanned_keys += item.num_keys * item.group;
  if (params_.with_candidates) out->candidates.resize(item.group);
  for (int g = 0; g < item.group; ++g) {
    const QueryPlan& q = queries_[item.first_query + g];
    out->stats.candidates += *q.num_candidates;
    if (params_.with_candidates) out->candidates[g].assign(q.candidates, q.candidates + *q.num_candidates);
  }
}

}  // namespace seine::cuda
