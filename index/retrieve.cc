// Retrieval of a batch: checks, locks, one search task for each (item, KV head), and the answers put together.
#include <algorithm>
#include <shared_mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "index/index_impl.h"
#include "kernels/cpu/ops.h"

namespace seine {

namespace {

// An item that has passed its checks.
struct Target {
  std::shared_ptr<Sequence> sequence;
  const Layer* layer = nullptr;
  size_t item = 0;
};

// One KV head of a target.
struct SearchedHead {
  const Target* target = nullptr;
  int kv_head = 0;
};

// Shared locks on the layers of all targets, each once, in the order that every holder of several keeps.
std::vector<std::shared_lock<std::shared_mutex>> LockLayers(const std::vector<Target>& targets,
                                                            absl::Span<const RetrieveItem> items) {
  std::vector<const Target*> order;
  order.reserve(targets.size());
  for (const Target& target : targets) order.push_back(&target);
  const auto key = [&items](const Target* t) { return std::pair(t->sequence->generation, items[t->item].layer); };
  std::sort(order.begin(), order.end(), [&key](const Target* a, const Target* b) { return key(a) < key(b); });
  std::vector<std::shared_lock<std::shared_mutex>> locks;
  locks.reserve(order.size());
  const Layer* last = nullptr;
  for (const Target* target : order) {
    if (target->layer != last) locks.emplace_back(target->layer->mutex());
    last = target->layer;
  }
  return locks;
}

// Whether a head has a zone to search; else all that it holds is dense.
bool Searched(const IndexConfig& config, const Strip& strip) {
  return strip.codes().visible() > 0 && strip.size() >= config.zones.dense_threshold;
}

// Positions that a head of an evicted layer shows besides its answer, ascending.
std::vector<int32_t> DensePositions(const IndexConfig& config, const Strip& strip) {
  std::vector<int32_t> positions;
  const bool searched = Searched(config, strip);
  const int64_t zone_begin = searched ? config.zones.sink : strip.size();
  const int64_t zone_end = searched ? zone_begin + strip.codes().visible() : strip.size();
  for (int64_t place = 0; place < zone_begin; ++place) positions.push_back(strip.position(place));
  for (int64_t place = zone_end; place < strip.size(); ++place) positions.push_back(strip.position(place));
  return positions;
}

// Fills in what does not depend on the search, and makes room for each head's sets.
void StartAnswer(const IndexConfig& config, const Layer& layer, const SearchParams& params, ItemAnswer* answer) {
  const Geometry& g = config.geometry;
  answer->num_tokens = layer.length();
  answer->path = Path::kDense;
  answer->all_returned = true;
  answer->positions.resize(params.scope == Scope::kPerKvHead ? g.num_kv_heads : g.num_q_heads);
  answer->scores.resize(answer->positions.size());
  for (int h = 0; h < g.num_kv_heads; ++h) {
    const Strip& strip = layer.strip(h);
    if (layer.evicted()) answer->dense_positions.push_back(DensePositions(config, strip));
    if (!Searched(config, strip)) continue;
    answer->path = params.method == Method::kExact ? Path::kExact : Path::kIndex;
    answer->all_returned = answer->all_returned && params.top_k >= strip.codes().visible();
  }
  if (params.with_candidates && answer->path != Path::kDense) answer->candidates.resize(g.num_q_heads);
  const bool dense = answer->path == Path::kDense;
  answer->dense_begin = layer.evicted() ? 0 : dense ? answer->num_tokens : config.zones.sink;
  answer->dense_end =
      layer.evicted() || dense ? answer->num_tokens : answer->dense_begin + layer.strip(0).codes().visible();
}

// Places of a head to positions.
void ToPositions(const Strip& strip, std::vector<std::vector<int32_t>>* sets) {
  if (strip.whole()) return;
  for (auto& set : *sets) {
    for (int32_t& place : set) place = strip.position(place);
  }
}

// Moves one head's output to where the answer has it.
void Collect(const Strip& strip, int kv_head, int group, SearchOutput* output, ItemAnswer* answer) {
  ToPositions(strip, &output->positions);
  ToPositions(strip, &output->candidates);
  const size_t sets = output->positions.size();
  std::move(output->positions.begin(), output->positions.end(), answer->positions.begin() + kv_head * sets);
  std::move(output->scores.begin(), output->scores.end(), answer->scores.begin() + kv_head * sets);
  std::move(output->candidates.begin(), output->candidates.end(), answer->candidates.begin() + kv_head * group);
  answer->stats.Add(output->stats);
}

}  // namespace

absl::Status IndexImpl::CheckQueries(const RetrieveItem& item) const {
  const Geometry& g = context_.config.geometry;
  if (absl::Status s = CheckLayer(item.layer); !s.ok()) return s;
  if (item.queries == nullptr) return absl::InvalidArgumentError("queries: no data");
  const ConstRows rows{item.queries, g.head_dim * sizeof(float), DType::kFloat32};
  const int64_t bad = cpu::FirstNonFinite(rows, g.num_q_heads, g.head_dim);
  if (bad < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("queries: head ", bad, " holds NaN or infinity, or its norm overflows"));
}

// A decode step asks at the position of the token that it has just appended. One that asks first is a token early,
// which matters to no moment.
void IndexImpl::Asked(const SequenceRef& sequence, const RetrieveItem& item, const ItemAnswer& answer) const {
  if (sequence->layers[item.layer]->Asked(answer.num_tokens - 1, item.queries)) reencoder_.Add(sequence, item.layer);
}

absl::StatusOr<std::vector<ItemAnswer>> IndexImpl::Retrieve(absl::Span<const RetrieveItem> items,
                                                            const SearchParams& params) const {
  if (absl::Status s = Validate(params, context_.config); !s.ok()) return s;
  const Geometry& g = context_.config.geometry;
  std::vector<ItemAnswer> answers(items.size());
  std::vector<Target> targets;
  targets.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    absl::StatusOr<SequenceRef> sequence = Find(items[i].sequence);
    answers[i].status = sequence.ok() ? CheckQueries(items[i]) : sequence.status();
    if (!answers[i].status.ok()) continue;
    const Layer* layer = (*sequence)->layers[items[i].layer].get();
    targets.push_back({*std::move(sequence), layer, i});
  }

  auto locks = LockLayers(targets, items);
  std::vector<SearchTask> tasks;
  std::vector<SearchedHead> heads;  // of each task
  tasks.reserve(targets.size() * g.num_kv_heads);
  for (const Target& target : targets) {
    StartAnswer(context_.config, *target.layer, params, &answers[target.item]);
    for (int h = 0; h < g.num_kv_heads; ++h) {
      if (!Searched(context_.config, target.layer->strip(h))) continue;
      SearchTask& task = tasks.emplace_back();
      target.layer->FillTask(h, params, &task);
      task.group = g.group();
      task.queries = items[target.item].queries + int64_t{h} * g.group() * g.head_dim;
      heads.push_back({&target, h});
    }
  }
  if (tasks.empty()) return answers;
  std::vector<SearchOutput> outputs(tasks.size());
  const Outcome outcome =
      context_.backend->Search(tasks.data(), static_cast<int>(tasks.size()), params, outputs.data());
  for (size_t i = 0; i < tasks.size() && outcome == Outcome::kDone; ++i) {
    const auto& [target, kv_head] = heads[i];
    Collect(target->layer->strip(kv_head), kv_head, g.group(), &outputs[i], &answers[target->item]);
  }
  locks.clear();
  if (absl::Status s = StatusOf(*context_.backend, outcome); !s.ok()) return s;
  for (const Target& target : targets) {
    const ItemAnswer& answer = answers[target.item];
    if (answer.path != Path::kDense) Asked(target.sequence, items[target.item], answer);
  }
  return answers;
}

}  // namespace seine
