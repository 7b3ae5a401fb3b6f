// A cache whose zone is stored low-rank: what becomes so, and who reads it.
#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "index/sequence/head_group_cache.h"
#include "index/stop_status.h"
#include "kernels/host.h"
#include "kernels/stop.h"

namespace seine {

namespace {

// Why a backend has given none.
absl::Status NoBuffer(const Backend& backend) {
  return StatusOf(backend, backend.loss().empty() ? Outcome::kNoMemory : Outcome::kLost);
}

}  // namespace

// A head's rows for a search, with the dense keys that it needs rebuilt.
struct HeadGroupCache::SearchedRows : LowRankTokens {
  std::vector<Buffer> dense;
};

int64_t HeadGroupCache::LowEndAt(int64_t size) const {
  return context_->ZoneKeys(size) > 0 ? std::max(LowStart(), context_->ZoneEnd(size)) : LowStart();
}

// Rows of tokens that become low-rank come from the store, then from the input. Blocks end where update buffers do.
absl::Status HeadGroupCache::StageLow(int64_t first_position, int64_t count, const uint8_t* keys, const uint8_t* values,
                                      const LowRankAppend& low) {
  staged_.clear();
  if (low_.empty()) return absl::OkStatus();
  const int64_t begin = LowStart(), added = LowEndAt(size_ + count) - begin;
  if (added <= 0) return absl::OkStatus();
  const int64_t row_bytes = context_->row_bytes(), buffer = context_->config.zones.update_buffer;
  const int64_t into = ((begin - context_->config.zones.sink) % buffer + buffer) % buffer;
  const int64_t stored = std::clamp<int64_t>(size_ - begin, 0, added);
  std::vector<int32_t> positions(added);
  for (int64_t i = 0; i < added; ++i) {
    positions[i] = i < stored ? position(begin + i) : static_cast<int32_t>(first_position + begin + i - size_);
  }
  std::vector<std::vector<uint8_t>> rows;  // keys and values of each head
  std::vector<HeadRows> heads;
  for (int h = 0; h < static_cast<int>(low_.size()); ++h) {
    for (const auto& [store, input] : {std::pair{&keys_, keys}, std::pair{&values_, values}}) {
      if (StopRequested()) return StopStatus();
      std::vector<uint8_t>& out = rows.emplace_back(added * row_bytes);
      for (int64_t i = 0; i < added; ++i) {
        const uint8_t* token = input + (begin + i - size_) * context_->token_bytes() + head_offset();
        std::copy_n(i < stored ? store->Row(h, begin + i) : token + h * row_bytes, row_bytes, &out[i * row_bytes]);
      }
    }
    const auto view = [&](const std::vector<uint8_t>& x) {
      return ConstRows{x.data(), static_cast<size_t>(row_bytes), context_->config.geometry.dtype};
    };
    heads.push_back({view(rows[2 * h]), view(rows[2 * h + 1]), QueriesOf(low.queries, h)});
  }
  auto staged = LowRankStore::StageAll(low_, heads, positions.data(), added, buffer - into, low.prompt);
  if (!staged.ok()) return staged.status();
  staged_ = *std::move(staged);
  return absl::OkStatus();
}

RecentQueries HeadGroupCache::QueriesOf(const SeenQueries& seen, int head) const {
  const Geometry& g = context_->config.geometry;
  const int64_t group_floats = int64_t{g.group()} * g.head_dim;
  return {seen.rows.data() + (first_head_ + head) * group_floats, g.num_kv_heads * group_floats, g.group(),
          seen.positions.data(), static_cast<int64_t>(seen.positions.size())};
}

void HeadGroupCache::InstallLow() {
  if (staged_.empty()) return;
  low_begin_ = LowStart() - low_[0].size();
  for (size_t h = 0; h < low_.size(); ++h) low_[h].Install(std::move(staged_[h]));
  staged_.clear();
  LowRankChanged();
  keys_.Drop(low_begin_, low_end());
  values_.Drop(low_begin_, low_end());
}

void HeadGroupCache::SetLowRank(std::vector<LowRankStore> low) {
  low_ = std::move(low);
  LowRankChanged();
}

void HeadGroupCache::LowRankChanged() {
  if (low_.empty()) return;
  low_store_bytes_ = low_code_bytes_ = 0;
  for (const LowRankStore& low : low_) {
    const LowRankBytes bytes = low.bytes();
    low_store_bytes_ += bytes.total();
    low_code_bytes_ += bytes.device_bases;
  }
  published_low_ = std::make_shared<const std::vector<LowRankStore>>(low_);
}

std::pair<size_t, size_t> HeadGroupCache::LowAmong(absl::Span<const uint32_t> places) const {
  if (low_.empty()) return {0, 0};
  const auto at = [&](int64_t place) {
    return static_cast<size_t>(std::lower_bound(places.begin(), places.end(), place) - places.begin());
  };
  return {at(low_begin_), at(low_end())};
}

absl::Status HeadGroupCache::KeepLow(const HeadGroupCache& source, absl::Span<const uint32_t> places) {
  if (low_.empty()) return absl::OkStatus();
  const auto [first, last] = source.LowAmong(places);
  std::vector<int64_t> low;
  for (size_t i = first; i < last; ++i) low.push_back(places[i] - source.low_begin_);
  absl::StatusOr<LowRankStore> kept = source.low_[first_head_ - source.first_head_].Keep(low);
  if (!kept.ok()) return kept.status();
  low_[0] = *std::move(kept);
  LowRankChanged();
  low_begin_ = static_cast<int64_t>(first);
  return absl::OkStatus();
}

std::vector<uint8_t> HeadGroupCache::RebuildZone() {
  constexpr int64_t kPartTokens = 8 * kWindowTokens;  // that share an unpacked basis
  const Geometry& g = context_->config.geometry;
  const int64_t dim = g.head_dim, sink = context_->config.zones.sink, count = context_->ZoneKeys(size_);
  const auto record = static_cast<int64_t>(host::WindowMeansBytes(g.head_dim));
  std::vector<uint8_t> zone(count * context_->row_bytes()), windows(WindowsAt(size_) * record);
  if (count == 0) return zone;
  const int64_t parts = (count + kPartTokens - 1) / kPartTokens;
  context_->backend->Run(static_cast<int>(parts), [&](int part) {
    const int64_t begin = part * kPartTokens, end = std::min(begin + kPartTokens, count);
    std::vector<float> keys((end - begin) * dim), values(keys.size());
    ReadRange(0, sink + begin, sink + end, keys.data(), values.data());
    Narrow(keys.data(), (end - begin) * dim, g.dtype, zone.data() + begin * context_->row_bytes());
    for (int64_t w = begin / kWindowTokens; w < end / kWindowTokens; ++w) {
      const int64_t row = (w * kWindowTokens - begin) * dim;
      host::EncodeWindowMeans(keys.data() + row, values.data() + row, g.head_dim, windows.data() + w * record);
    }
  });
  windows_.Write(0, windows.data(), WindowsAt(size_), record);
  return zone;
}

void HeadGroupCache::ReadRows(int head, absl::Span<const int64_t> places, float* keys, float* values) const {
  const Geometry& g = context_->config.geometry;
  std::vector<int64_t> low;
  std::vector<int32_t> positions;
  for (size_t begin = 0; begin < places.size();) {
    size_t end = begin;
    const bool is_low = IsLow(places[begin]);
    low.clear(), positions.clear();
    for (; end < places.size() && IsLow(places[end]) == is_low; ++end) {
      if (!is_low) continue;
      low.push_back(places[end] - low_begin_);
      positions.push_back(position(places[end]));
    }
    const auto from = static_cast<int64_t>(begin) * g.head_dim;
    if (is_low) {
      low_[head].Read(low, positions.data(), keys == nullptr ? nullptr : keys + from,
                      values == nullptr ? nullptr : values + from);
    }
    for (const auto& [store, out] : {std::pair{&keys_, keys}, std::pair{&values_, values}}) {
      for (size_t i = begin; i < end && !is_low && out != nullptr; ++i) {
        const ConstRows row = {store->Row(head, places[i]), static_cast<size_t>(context_->row_bytes()), g.dtype};
        host::ToFloat(row, 1, g.head_dim, out + static_cast<int64_t>(i) * g.head_dim);
      }
    }
    begin = end;
  }
}

void HeadGroupCache::ReadRange(int head, int64_t begin, int64_t end, float* keys, float* values) const {
  std::vector<int64_t> places(end - begin);
  std::iota(places.begin(), places.end(), begin);
  ReadRows(head, places, keys, values);
}

// All rows as plain views, those that lie in chunks chunk by chunk.
void HeadGroupCache::ViewRows(int head, bool of_values, LowRankStore::Reader reader, LowRankTokens* tokens) const {
  const RowStore& store = of_values ? values_ : keys_;
  const auto add_chunks = [&](int64_t begin, int64_t end) {
    while (begin < end) {
      LowRankRun& run = tokens->runs.emplace_back();
      run.begin = begin;
      run.full = store.Row(head, begin);
      begin = std::min<int64_t>(end, (begin / store.chunk_tokens() + 1) * store.chunk_tokens());
    }
  };
  const bool any = low_[head].size() > 0;
  add_chunks(0, any ? low_begin_ : size_);
  low_[head].AppendRuns(of_values, reader, low_begin_, &tokens->runs);
  if (any) add_chunks(low_end(), size_);
  tokens->rows = low_[head].RowsShape(of_values);
  tokens->rows.runs = tokens->runs.data();
  tokens->rows.num_runs = static_cast<int32_t>(tokens->runs.size());
  if (whole_) return;
  tokens->position_chunks = positions_.HeadChunks(0);
  tokens->position_chunk_tokens = positions_.chunk_tokens();
}

// Keys of dense tokens [begin, end), read at once into memory that the backend reads.
absl::StatusOr<DenseRun> HeadGroupCache::RebuildDense(int head, int64_t begin, int64_t end,
                                                      std::vector<Buffer>* owner) const {
  const int64_t dim = context_->config.geometry.head_dim;
  owner->push_back(context_->backend->Allocate((end - begin) * dim * sizeof(float), MemorySpace::kStore));
  if (!owner->back()) return NoBuffer(*context_->backend);
  auto* const rows = reinterpret_cast<float*>(owner->back().data());
  ReadRange(head, begin, end, rows, nullptr);
  return DenseRun{{rows, dim * sizeof(float), DType::kFloat32}, static_cast<int>(end - begin)};
}

// All rows of a head, one chunk each of keys and values, in memory that the backend reads.
absl::Status HeadGroupCache::RebuildTokens(int head, HeadStorage* storage, HeadTokens* tokens) const {
  const Geometry& g = context_->config.geometry;
  Backend* const backend = context_->backend;
  const int chunk_tokens = std::max<int>(1, static_cast<int>(size_));
  std::vector<int32_t> places(size_), positions(size_);
  for (int64_t place = 0; place < size_; ++place) {
    places[place] = static_cast<int32_t>(place);
    positions[place] = position(place);
  }
  LowRankTokens views[2];
  std::vector<RebuildTask> tasks;
  for (const bool of_values : {false, true}) {
    Buffer* const out = of_values ? &storage->values : &storage->keys;
    *out = backend->Allocate(chunk_tokens * g.head_dim * sizeof(float), MemorySpace::kStore);
    if (!*out) return NoBuffer(*backend);
    (of_values ? storage->value_chunk : storage->key_chunk) = out->data();
    (of_values ? tokens->values : tokens->keys) = {of_values ? &storage->value_chunk : &storage->key_chunk,
                                                   chunk_tokens, g.head_dim, DType::kFloat32};
    ViewRows(head, of_values, LowRankStore::Reader::kBackend, &views[of_values]);
    tasks.push_back(
        {views[of_values].rows, places.data(), positions.data(), size_, reinterpret_cast<float*>(out->data())});
  }
  return StatusOf(*backend, backend->Rebuild(tasks.data(), static_cast<int>(tasks.size())));
}

void HeadGroupCache::GatherRebuilt(int head, absl::Span<const int64_t> places, std::string* keys,
                                   std::string* values) const {
  const Geometry& g = context_->config.geometry;
  std::vector<float> rows[2];
  if (keys != nullptr) rows[0].resize(places.size() * g.head_dim);
  if (values != nullptr) rows[1].resize(places.size() * g.head_dim);
  ReadRows(head, places, keys == nullptr ? nullptr : rows[0].data(), values == nullptr ? nullptr : rows[1].data());
  for (const auto& [out, from] : {std::pair{keys, &rows[0]}, std::pair{values, &rows[1]}}) {
    if (out == nullptr) continue;
    out->resize(places.size() * context_->row_bytes());
    Narrow(from->data(), static_cast<int64_t>(from->size()), g.dtype, reinterpret_cast<uint8_t*>(out->data()));
  }
}

absl::Status HeadGroupCache::FillLowSearch(int head, bool with_dense, SearchTask* task) const {
  auto rows = std::make_shared<SearchedRows>();
  ViewRows(head, false, LowRankStore::Reader::kBackend, rows.get());
  const int64_t zone_begin = task->zone_begin, zone_end = zone_begin + task->num_keys;
  for (const auto& [begin, end] : {std::pair{int64_t{0}, zone_begin}, std::pair{zone_end, size_}}) {
    if (!with_dense || begin >= end) continue;
    if (begin < low_end() && end > low_begin_) {  // after a cut, or where eviction has taken sinks
      absl::StatusOr<DenseRun> run = RebuildDense(head, begin, end, &rows->dense);
      if (!run.ok()) return run.status();
      task->dense.push_back(*run);
    } else {
      AddDense(head, begin, end, /*for_backend=*/true, &task->dense);
    }
  }
  task->low_rank = std::move(rows);
  return absl::OkStatus();
}

void HeadGroupCache::FillLowAttention(int head, host::AttentionTask* task) const {
  task->low = {low_begin_, low_end()};
  for (const auto& [of_values, out] : {std::pair{false, &task->low_keys}, std::pair{true, &task->low_values}}) {
    auto rows = std::make_shared<LowRankTokens>();
    ViewRows(head, of_values, LowRankStore::Reader::kHost, rows.get());
    *out = std::move(rows);
  }
}

}  // namespace seine
