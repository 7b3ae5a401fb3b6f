// Locks, one search task for each (item, KV head), and answers in positions.
#include "index/retrieval/search_batch.h"

#include <algorithm>
#include <utility>

#include "profile/field_error.h"

namespace seine {

namespace {

// Keys to search of a head's zone; 0: all that it holds is dense.
int64_t KeysToSearch(const IndexConfig& config, const HeadGroupCache& cache, const RetrieveItem& item) {
  return cache.size() >= config.zones.dense_threshold ? cache.ZoneKeys(item.dense_from) : 0;
}

// Places of a head to positions.
void ToPositions(const HeadGroupCache& cache, std::vector<std::vector<int32_t>>* sets) {
  if (cache.whole()) return;
  for (auto& set : *sets) {
    for (int32_t& place : set) place = cache.position(place);
  }
}

// Moves one head's output to where the answer has it.
void ReadHead(const HeadGroupCache& cache, int kv_head, int group, SearchOutput* output, ItemAnswer* answer) {
  ToPositions(cache, &output->positions);
  ToPositions(cache, &output->candidates);
  const size_t sets = output->positions.size();
  std::move(output->positions.begin(), output->positions.end(), answer->positions.begin() + kv_head * sets);
  std::move(output->scores.begin(), output->scores.end(), answer->scores.begin() + kv_head * sets);
  std::copy(output->masses.begin(), output->masses.end(), answer->masses.begin() + kv_head * output->masses.size());
  for (const uint8_t capped : output->capped) answer->capped = answer->capped || capped != 0;
  std::move(output->candidates.begin(), output->candidates.end(), answer->candidates.begin() + kv_head * group);
  answer->stats.Add(output->stats);
}

// Positions that a head of an evicted layer shows besides its answer, ascending.
std::vector<int32_t> DensePositions(const HeadGroupCache& cache, int64_t zone_begin, int64_t zone_end) {
  std::vector<int32_t> positions;
  for (int64_t place = 0; place < zone_begin; ++place) positions.push_back(cache.position(place));
  for (int64_t place = zone_end; place < cache.size(); ++place) positions.push_back(cache.position(place));
  return positions;
}

// What the thread's last batch has found, whose memory serves the next: a head has a dozen small vectors.
std::vector<SearchOutput>& SpareOutputs() {
  static thread_local std::vector<SearchOutput> spare;
  return spare;
}

constexpr size_t kMostSpareBytes = size_t{1} << 20;  // of a thread

size_t SetBytes(const std::vector<SearchOutput>& outputs) {
  size_t bytes = 0;
  for (const SearchOutput& output : outputs) {
    for (const auto& set : output.positions) bytes += set.capacity() * sizeof(int32_t);
    for (const auto& set : output.scores) bytes += set.capacity() * sizeof(float);
    for (const auto& set : output.candidates) bytes += set.capacity() * sizeof(int32_t);
  }
  return bytes;
}

}  // namespace

SearchBatch::SearchBatch(const Context* context, bool counted) : context_(*context), counted_(counted) {
  outputs_.swap(SpareOutputs());
}

SearchBatch::~SearchBatch() {
  if (SetBytes(outputs_) <= kMostSpareBytes) outputs_.swap(SpareOutputs());
}

// Each layer once, in the order that every holder of several keeps.
absl::Status SearchBatch::Lock() {
  std::vector<const Target*> order;
  order.reserve(targets_.size());
  for (const Target& target : targets_) order.push_back(&target);
  const auto key = [](const Target* t) { return std::pair(t->sequence->generation, t->item->layer); };
  std::sort(order.begin(), order.end(), [&key](const Target* a, const Target* b) { return key(a) < key(b); });
  locks_.reserve(order.size());
  const Layer* last = nullptr;
  for (const Target* target : order) {
    if (&target->layer() == last) continue;
    last = &target->layer();
    absl::StatusOr<ReadLock> lock = ReadLock::Of(*last);
    if (!lock.ok()) {
      Unlock();
      return lock.status();
    }
    locks_.push_back(*std::move(lock));
  }
  return absl::OkStatus();
}

// A task for each head that has something to search and is not told what it would find.
absl::Status SearchBatch::PrepareSearches() {
  const Geometry& g = context_.config.geometry;
  for (size_t t = 0; t < targets_.size(); ++t) {
    const RetrieveItem& item = *targets_[t].item;
    for (int h = 0; h < g.num_kv_heads && item.positions == nullptr; ++h) {
      const Layer& layer = targets_[t].layer();
      const int64_t zone_keys = KeysToSearch(context_.config, layer.cache(h), item);
      if (zone_keys == 0) continue;
      slots_[t * g.num_kv_heads + h] = static_cast<int>(tasks_.size());
      SearchTask& task = tasks_.emplace_back();
      if (absl::Status s = layer.PrepareSearch(h, params_, zone_keys, &task); !s.ok()) return s;
      task.group = g.group();
      task.queries = QueriesOf(item) + int64_t{h} * g.group() * g.head_dim;
      task.device_queries = item.device != nullptr;
      if (item.device != nullptr) task.stream = item.device->stream;
      // Plain keys are held for every place. So it is on a device too, whose answers are the CPU's.
      const bool beside = task.keys.chunks != nullptr && task.low_rank == nullptr;
      task.whole = beside && ReadsWhole(params_, task.group, zone_keys);
      task.refine_all =
          beside && RefinesAll(params_, CandidatesWanted(params_, task.codec->layout(),
                                                         task.codec->DefaultCandidateFraction(zone_keys), zone_keys));
      whole_.push_back(task.whole);
    }
  }
  return absl::OkStatus();
}

absl::Status SearchBatch::Prepare(const SearchParams& params) {
  const Geometry& g = context_.config.geometry;
  params_ = params;
  if (absl::Status s = Lock(); !s.ok()) return s;
  RefuseWrong();
  tasks_.reserve(targets_.size() * g.num_kv_heads);
  slots_.assign(targets_.size() * g.num_kv_heads, -1);
  if (absl::Status s = PrepareSearches(); !s.ok()) {
    Unlock();
    return s;
  }
  outputs_.resize(tasks_.size());
  for (SearchOutput& output : outputs_) output.Clear();
  for (size_t t = 0; t < targets_.size(); ++t) {
    for (int h = 0; h < g.num_kv_heads; ++h) TakeGiven(t, h);
  }
  return absl::OkStatus();
}

absl::Status SearchBatch::After(Outcome outcome) {
  if (outcome == Outcome::kDone && counted_ && context_.counts != nullptr) Count();
  absl::Status status = StatusOf(*context_.backend, outcome);
  if (!status.ok()) Unlock();
  return status;
}

absl::Status SearchBatch::Search(const SearchParams& params, const ProgressCallback& progress) {
  if (absl::Status s = Prepare(params); !s.ok()) return s;
  if (tasks_.empty()) return absl::OkStatus();
  return After(
      context_.backend->Search(tasks_.data(), static_cast<int>(tasks_.size()), params, outputs_.data(), progress));
}

absl::Status SearchBatch::Attend(DeviceAttention* device, std::vector<AttendTask>* tasks) {
  if (tasks->empty()) return absl::OkStatus();
  return After(device->Attend(tasks_.data(), static_cast<int>(tasks_.size()), params_, outputs_.data(), tasks->data(),
                              static_cast<int>(tasks->size())));
}

int64_t SearchBatch::ZoneKeys(size_t target, int kv_head) const {
  if (!Searched(target, kv_head)) return 0;
  return targets_[target].layer().cache(kv_head).ZoneKeys(targets_[target].item->dense_from);
}

absl::Status SearchBatch::CheckPositions(const Target& target) const {
  const RetrieveItem& item = *target.item;
  if (item.positions == nullptr) return absl::OkStatus();
  const size_t sets = context_.config.geometry.num_kv_heads * SetsOfHead();
  if (item.positions->size() != sets) return BadField("positions", "has ", item.positions->size(), " sets, not ", sets);
  for (size_t s = 0; s < sets; ++s) {
    const HeadGroupCache& cache = target.layer().cache(static_cast<int>(s / SetsOfHead()));
    int64_t next = context_.config.zones.sink;
    const int64_t end = next + KeysToSearch(context_.config, cache, item);
    for (const int32_t position : (*item.positions)[s]) {
      const int64_t place = cache.PlaceOf(position);
      if (place < next || place >= end || cache.position(place) != position) {
        return BadField("positions", "set ", s, ": ", position,
                        " is outside the zone, was evicted, or does not ascend");
      }
      next = place + 1;
    }
  }
  return absl::OkStatus();
}

// Leaves out the targets whose positions are wrong.
void SearchBatch::RefuseWrong() {
  std::vector<Target> right;
  right.reserve(targets_.size());
  for (Target& target : targets_) {
    absl::Status status = CheckPositions(target);
    if (status.ok()) {
      right.push_back(std::move(target));
    } else {
      refused_.push_back({target.place, std::move(status)});
    }
  }
  targets_ = std::move(right);
}

// What the item gives is taken for found, where there is a zone that it could be of.
void SearchBatch::TakeGiven(size_t target, int kv_head) {
  const RetrieveItem& item = *targets_[target].item;
  const HeadGroupCache& cache = targets_[target].layer().cache(kv_head);
  if (item.positions == nullptr || KeysToSearch(context_.config, cache, item) == 0) return;
  slots_[target * context_.config.geometry.num_kv_heads + kv_head] = static_cast<int>(outputs_.size());
  SearchOutput& output = outputs_.emplace_back();
  const auto first = item.positions->begin() + static_cast<int64_t>(kv_head * SetsOfHead());
  output.positions.assign(first, first + static_cast<int64_t>(SetsOfHead()));
  for (auto& set : output.positions) {
    for (int32_t& position : set) position = static_cast<int32_t>(cache.PlaceOf(position));
  }
}

void SearchBatch::Count() const {
  SearchStats all;
  for (const SearchOutput& output : outputs_) all.Add(output.stats);
  context_.counts->Searched(all);
  context_.own_counts->Candidates(all.candidates);
}

SearchMode SearchBatch::ModeOf(size_t target) const {
  SearchMode path = SearchMode::kDense;
  for (int h = 0; h < context_.config.geometry.num_kv_heads; ++h) {
    if (!Searched(target, h)) continue;
    if (params_.method == Method::kExact || targets_[target].item->positions != nullptr) return SearchMode::kExact;
    if (!whole_[Slot(target, h)]) return SearchMode::kIndex;
    path = SearchMode::kExact;
  }
  return path;
}

bool SearchBatch::CodesStale(size_t target) const {
  return ModeOf(target) == SearchMode::kIndex && targets_[target].layer().Outgrown();
}

// Fills in what does not depend on the search, and makes room for each head's sets.
void SearchBatch::StartAnswer(size_t target, ItemAnswer* answer) const {
  const Geometry& g = context_.config.geometry;
  const Layer& layer = targets_[target].layer();
  answer->num_tokens = layer.length();
  answer->path = ModeOf(target);
  answer->all_returned = true;
  answer->positions.resize(params_.scope == Scope::kPerKvHead ? g.num_kv_heads : g.num_q_heads);
  answer->scores.resize(answer->positions.size());
  if (params_.mass_p > 0) answer->masses.assign(answer->positions.size(), 1.0f);
  const bool dense = answer->path == SearchMode::kDense;
  answer->codes_stale = CodesStale(target);
  answer->zone_begin = layer.evicted() ? 0 : dense ? answer->num_tokens : context_.config.zones.sink;
  answer->zone_end = layer.evicted() || dense ? answer->num_tokens : answer->zone_begin + ZoneKeys(target, 0);
  if (params_.with_candidates && !dense) answer->candidates.resize(g.num_q_heads);
}

void SearchBatch::ReadAnswer(size_t target, ItemAnswer* answer) {
  StartAnswer(target, answer);
  const Layer& layer = targets_[target].layer();
  for (int h = 0; h < context_.config.geometry.num_kv_heads; ++h) {
    const HeadGroupCache& cache = layer.cache(h);
    const bool searched = Searched(target, h);
    const int64_t zone_begin = searched ? context_.config.zones.sink : cache.size();
    const int64_t zone_end = zone_begin + ZoneKeys(target, h);
    if (layer.evicted()) answer->dense_positions.push_back(DensePositions(cache, zone_begin, zone_end));
    if (!searched) continue;
    answer->all_returned = answer->all_returned && params_.top_k >= zone_end - zone_begin;
    ReadHead(cache, h, context_.config.geometry.group(), &outputs_[Slot(target, h)], answer);
  }
}

}  // namespace seine
