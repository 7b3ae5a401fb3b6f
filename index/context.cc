// Derives shapes from settings.
#include "index/context.h"

#include <algorithm>
#include <utility>

#include "index/idle/idle_tier.h"
#include "kernels/host.h"

namespace seine {

namespace {

// Positions in a full chunk of stored rows, and in the smallest last chunk. Where rows are dropped once they are
// encoded or stored low-rank, chunks are small, so that little more is held than what is needed.
constexpr int kChunkTokens = 2048;
constexpr int kTransientChunkTokens = 256;
constexpr int kMinChunkTokens = 64;
// Windows in a full chunk of means: many, for a read that jumps waits for memory anew. At 131,072 keys, chunks of 32
// took the tail 1.7 times as long (docs/decisions/attention/0099-means-in-long-runs.md).
constexpr int kChunkWindows = 512;
constexpr int kEarlierChunkWindows = 32;
constexpr int kWindowGrowth = 4;  // a layer of 2,000 tokens has 32 windows

int ChunkTokens(const IndexConfig& config) {
  if (config.subspace) return kMinChunkTokens;
  return config.kv_store == KvStore::kNone ? kTransientChunkTokens : kChunkTokens;
}

// One of a token's keys of all heads, or of their keys and values.
RowFormat ChecksumFormat(const IndexConfig& config) {
  return {1, config.subspace ? static_cast<int>(sizeof(uint32_t)) : static_cast<int>(sizeof(uint64_t))};
}

PieceList::Shape RowShape(const RowFormat* format, const IndexConfig& config, bool mirrored, SlabPool* pool) {
  const int length = ChunkTokens(config);
  const bool pooled = format->Bytes(length) < SlabPool::kSlabBytes / 2;  // larger ones fill huge pages themselves
  return {format, MemoryKind::kStore, length, kMinChunkTokens, 1, pooled ? pool : nullptr, 0, mirrored};
}

RowFormat WindowFormat(int heads, const Geometry& geometry) {
  return RowFormat(heads, static_cast<int>(host::WindowMeansBytes(geometry.head_dim)));
}

// Low-rank rows are the host's to attend, and so is attention whose weights are added up.
bool AttendsOnDevice(const IndexConfig& config, const EvictionPolicy& eviction, Backend* backend) {
  return backend->attention() != nullptr && config.kv_store == KvStore::kKeysValues && !config.subspace &&
         !eviction.accumulates();
}

// Means lie on the device too where that attends: of a layer it would read more of them than of all else.
PieceList::Shape WindowShape(const RowFormat* format, int length, bool mirrored) {
  return {format, MemoryKind::kStore, length, 1, 1, nullptr, kWindowGrowth, mirrored};
}

}  // namespace

Context::Context(const IndexConfig& index_config, LowRankShapes low_rank_shapes, Backend* index_backend,
                 std::shared_ptr<MemoryBudget> budget, std::shared_ptr<Counts> shared_counts,
                 std::shared_ptr<QualityMonitor> shared_quality, std::shared_ptr<IdleTier> shared_idle)
    : config(index_config),
      backend(index_backend),
      idle(std::move(shared_idle)),
      ledger(index_backend, index_config.memory_limit_bytes, index_config.device_memory_limit_bytes, std::move(budget),
             idle.get()),
      transforms(&config, &ledger),
      eviction(&config),
      low_rank(std::move(low_rank_shapes)),
      counts(std::move(shared_counts)),
      own_counts(counts == nullptr ? nullptr : std::make_unique<IndexCounts>()),
      quality(std::move(shared_quality)),
      attends_on_device(AttendsOnDevice(config, eviction, index_backend)),
      rows(config.geometry.num_kv_heads, config.geometry.head_dim * static_cast<int>(SizeOf(config.geometry.dtype))),
      checksums(ChecksumFormat(config)),
      row_pool(backend, MemorySpace::kStore),
      row_shape(RowShape(&rows, config, attends_on_device, &row_pool)),
      checksum_shape{&checksums, MemoryKind::kStore, kChunkTokens, kMinChunkTokens, 1, nullptr},
      windows(WindowFormat(config.geometry.num_kv_heads, config.geometry)),
      window_shape(WindowShape(&windows, kChunkWindows, attends_on_device)),
      earlier_window_shape(WindowShape(&windows, kEarlierChunkWindows, attends_on_device)),
      codes(backend, transforms.layout(), config.geometry.num_kv_heads, config.search.coarse == Coarse::kCollision),
      head_rows(1, rows.row_bytes()),
      head_checksums(1, sizeof(uint32_t)),
      head_positions(1, sizeof(int32_t)),
      head_windows(WindowFormat(1, config.geometry)),
      head_row_pool(backend, MemorySpace::kStore),
      head_row_shape(RowShape(&head_rows, config, attends_on_device, &head_row_pool)),
      head_checksum_shape{&head_checksums, MemoryKind::kStore, kChunkTokens, kMinChunkTokens, 1, nullptr},
      head_position_shape{&head_positions, MemoryKind::kStore, kChunkTokens, kMinChunkTokens, 1, nullptr},
      head_window_shape(WindowShape(&head_windows, kChunkWindows, attends_on_device)),
      earlier_head_window_shape(WindowShape(&head_windows, kEarlierChunkWindows, attends_on_device)),
      head_codes(backend, transforms.layout(), 1, config.search.coarse == Coarse::kCollision) {
  const bool whole = config.kv_store == KvStore::kKeysValues && !config.eviction && !config.subspace;
  if (quality == nullptr || config.gate <= 0 || !whole) return;
  for (int layer = 0; layer < config.geometry.num_layers; ++layer) gates.emplace_back(config.gate, layer);
}

int64_t Context::ZoneKeys(int64_t n) const {
  const Zones& zones = config.zones;
  const int64_t beyond = n - zones.sink - zones.local;
  return beyond > 0 ? beyond / zones.update_buffer * zones.update_buffer : 0;
}

LayerGate* Context::GateOf(const RetrieveItem& item, const SearchParams& params, const AttentionParams& attention,
                           int64_t num_tokens) const {
  const bool of_all = item.prompt_tokens == 0 && item.positions == nullptr && item.dense_from < 0;
  const bool usual = params.method == Method::kIndex && params.mass_p == 0 && params.recall_target == 0 &&
                     params.candidates == 0 && !attention.with_positions;
  const bool searched = num_tokens >= config.zones.dense_threshold && ZoneKeys(num_tokens) > 0;
  return !gates.empty() && of_all && usual && searched ? &gates[item.layer] : nullptr;
}

int64_t Context::kept_queries() const {
  return std::max<int64_t>(eviction.kept_queries(), config.subspace ? QueriesKept(*config.subspace) : 0);
}

}  // namespace seine
