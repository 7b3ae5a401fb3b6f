#include "kernels/device/launch_cache.h"

#include <algorithm>
#include <span>
#include <type_traits>

namespace seine::cuda {

template <typename... Fields>
void LaunchKey::Put(const Fields&... fields) {
  static_assert((std::is_scalar_v<Fields> && ...), "a struct may have padding");
  const auto put = [this](std::span<const std::byte> bytes) {
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + used_);
    used_ += bytes.size();
  };
  (put(std::as_bytes(std::span(&fields, 1))), ...);
}

// Every field by a name: one more in any of the structs, and this does not compile.
void LaunchKey::PutParams(const SearchParams& params) {
  const auto& [top_k, mass_p, mass_floor, candidate_fraction, recall_target, candidates, collision_fraction, rescore_k,
               coarse, scope, gqa_reduce, softmax_scale, method, with_candidates] = params;
  Put(top_k, mass_p, mass_floor, candidate_fraction, recall_target, candidates, collision_fraction, rescore_k, coarse,
      scope, gqa_reduce, softmax_scale, method, with_candidates);
}

LaunchKey::LaunchKey(const SearchParams& planned, const SearchGrids& grids, const SearchArgs& args) {
  PutParams(planned);
  const auto& [queries, scan, choose, sets, dots, rescore, low_rank, wide, coarse_groups] = grids;
  for (const BlockIndex& grid : {queries, scan, choose, sets, dots, rescore}) {
    const auto& [x, y] = grid;
    Put(x, y);
  }
  Put(low_rank, wide, coarse_groups);
  const auto& [params, items, query_plans, set_plans] = args;
  PutParams(params);
  Put(items, query_plans, set_plans);
}

LaunchCache::LaunchCache(GraphCalls* calls) : calls_(calls) {
  kept_.reserve(kKept);
  seen_.reserve(kSeen);
}

LaunchCache::~LaunchCache() {
  while (!kept_.empty()) DropLast();
}

GraphCalls::Error LaunchCache::Launch(const LaunchKey& key, const std::function<GraphCalls::Error()>& enqueue) {
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.key == key; });
  if (found != kept_.end()) {
    std::rotate(kept_.begin(), found, found + 1);
  } else if (!MayCapture(key) || !SeenBefore(key) || !Capture(key, enqueue)) {
    return enqueue();
  }
  if (calls_->Launch(kept_.front().ready) == 0) {
    ++counts_.launched;
    return 0;
  }
  // What it may have started does no harm: a search works in memory of any content, and the stream keeps the order.
  std::rotate(kept_.begin(), kept_.begin() + 1, kept_.end());
  DropLast();
  Refuse(key);
  return enqueue();
}

// Keys that never come again push out one another alone, no graph.
bool LaunchCache::SeenBefore(const LaunchKey& key) {
  const auto found = std::find(seen_.begin(), seen_.end(), key);
  if (found != seen_.end()) {
    seen_.erase(found);
    return true;
  }
  if (seen_.size() == kSeen) seen_.pop_back();
  seen_.insert(seen_.begin(), key);
  return false;
}

bool LaunchCache::MayCapture(const LaunchKey& key) const {
  return refused_.size() < kMostFailures && std::find(refused_.begin(), refused_.end(), key) == refused_.end();
}

// Leaves the key's graph at kept_.front().
bool LaunchCache::Capture(const LaunchKey& key, const std::function<GraphCalls::Error()>& enqueue) {
  void *graph = nullptr, *ready = nullptr;
  GraphCalls::Error error = calls_->Begin();
  if (error == 0) {
    const GraphCalls::Error enqueued = enqueue();
    error = calls_->End(&graph);  // in any case: the stream must not go on recording
    if (enqueued != 0) error = enqueued;
  }
  if (error == 0) error = calls_->Instantiate(graph, &ready);
  if (graph != nullptr) calls_->Drop(graph);
  if (error != 0) {
    Refuse(key);
    return false;
  }
  if (kept_.size() == kKept) DropLast();
  kept_.insert(kept_.begin(), {key, ready});
  ++counts_.captured;
  return true;
}

void LaunchCache::DropLast() {
  calls_->DropReady(kept_.back().ready);
  kept_.pop_back();
}

void LaunchCache::Refuse(const LaunchKey& key) {
  ++counts_.failed;
  refused_.push_back(key);
}

bool ReadGraphsSetting(const char* value, bool* on, std::string* why) {
  const std::string setting = value == nullptr ? "ON" : value;
  *on = setting == "ON";
  if (*on || setting == "OFF") return true;
  *why = "SEINE_CUDA_GRAPHS=" + setting + ": it is ON or OFF";
  return false;
}

}  // namespace seine::cuda
