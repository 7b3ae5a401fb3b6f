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
  size_t first_task = 0;
  bool searched = false;
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

// Fills in what does not depend on the search. False where there is nothing to search: everything is dense.
bool StartAnswer(const IndexConfig& config, const Layer& layer, const SearchParams& params, ItemAnswer* answer) {
  const int64_t zone_keys = layer.zone_keys();
  answer->num_tokens = layer.length();
  if (zone_keys == 0 || answer->num_tokens < config.zones.dense_threshold) {
    const Geometry& g = config.geometry;
    answer->path = Path::kDense;
    answer->dense_begin = answer->dense_end = answer->num_tokens;
    answer->all_returned = true;
    answer->positions.resize(params.scope == Scope::kPerKvHead ? g.num_kv_heads : g.num_q_heads);
    answer->scores.resize(answer->positions.size());
    return false;
  }
  answer->path = params.method == Method::kExact ? Path::kExact : Path::kIndex;
  answer->dense_begin = config.zones.sink;
  answer->dense_end = answer->dense_begin + zone_keys;
  answer->all_returned = params.top_k >= zone_keys;
  return true;
}

// Moves one head's output behind what the answer holds already.
void Collect(SearchOutput* output, ItemAnswer* answer) {
  for (auto& positions : output->positions) answer->positions.push_back(std::move(positions));
  for (auto& scores : output->scores) answer->scores.push_back(std::move(scores));
  for (auto& candidates : output->candidates) answer->candidates.push_back(std::move(candidates));
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
    targets.push_back({*std::move(sequence), layer, i, 0, false});
  }

  auto locks = LockLayers(targets, items);
  std::vector<SearchTask> tasks;
  tasks.reserve(targets.size() * g.num_kv_heads);
  for (Target& target : targets) {
    target.first_task = tasks.size();
    target.searched = StartAnswer(context_.config, *target.layer, params, &answers[target.item]);
    if (!target.searched) continue;
    for (int h = 0; h < g.num_kv_heads; ++h) {
      SearchTask& task = tasks.emplace_back();
      target.layer->FillTask(h, params, &task);
      task.group = g.group();
      task.queries = items[target.item].queries + int64_t{h} * g.group() * g.head_dim;
    }
  }
  if (tasks.empty()) return answers;
  std::vector<SearchOutput> outputs(tasks.size());
  const Outcome outcome =
      context_.backend->Search(tasks.data(), static_cast<int>(tasks.size()), params, outputs.data());
  locks.clear();
  if (absl::Status s = StatusOf(*context_.backend, outcome); !s.ok()) return s;
  for (const Target& target : targets) {
    if (!target.searched) continue;
    for (int h = 0; h < g.num_kv_heads; ++h) Collect(&outputs[target.first_task + h], &answers[target.item]);
    Asked(target.sequence, items[target.item], answers[target.item]);
  }
  return answers;
}

}  // namespace seine
