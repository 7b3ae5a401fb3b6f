// What all layers of one index share: settings, codec, backend, ledger and the shapes that follow from them.
#ifndef SEINE_INDEX_CONTEXT_H_
#define SEINE_INDEX_CONTEXT_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "index/config/config.h"
#include "index/counts/counts.h"
#include "index/eviction/policy.h"
#include "index/eviction/score_room.h"
#include "index/memory/memory.h"
#include "index/memory/memory_budget.h"
#include "index/memory/slab_pool.h"
#include "index/storage/code_store.h"
#include "index/storage/piece_list.h"
#include "index/storage/row_store.h"
#include "index/subspace/shapes.h"
#include "index/transforms/transforms.h"
#include "index/types.h"
#include "kernels/backend.h"

namespace seine {

class IdleTier;        // index/idle/idle_tier.h
class QualityMonitor;  // index/quality/monitor.h

// Immutable but for the ledger, the transforms, the count and the pools, which are thread-safe. Outlives all sequences.
class Context {
 public:
  Context(const IndexConfig& index_config, LowRankShapes low_rank_shapes, Backend* index_backend,
          std::shared_ptr<MemoryBudget> budget, std::shared_ptr<Counts> shared_counts,
          std::shared_ptr<QualityMonitor> shared_quality, std::shared_ptr<IdleTier> shared_idle);

  const IndexConfig config;
  Backend* const backend;
  const std::shared_ptr<IdleTier> idle;  // thread-safe; nullptr: sequences stay in memory
  mutable MemoryLedger ledger;
  mutable Transforms transforms;  // thread-safe
  const EvictionPolicy eviction;
  const LowRankShapes low_rank;  // [num_layers][num_kv_heads]; empty: all that is stored is full-rank
  mutable ScoreRoom score_room;  // thread-safe
  mutable std::atomic<int64_t> dropped_queries{0};  // steps, for want of memory
  const std::shared_ptr<Counts> counts;             // thread-safe; nullptr: nothing is counted, here and below
  const std::unique_ptr<IndexCounts> own_counts;    // thread-safe
  const std::shared_ptr<QualityMonitor> quality;    // thread-safe; nullptr: no item is sampled
  mutable std::deque<LayerGate> gates;              // [num_layers]; thread-safe; empty: nothing is watched

  // Whether the backend's device attends what it finds (DeviceAttention); else the host does.
  const bool attends_on_device;

  // The gate that watches an item of Attend, and that may have it attended exactly. nullptr: nothing is lost, or it is
  // on purpose: sets of a share of mass, fewer candidates than usual, positions given or wanted, part of the tokens.
  LayerGate* GateOf(const RetrieveItem& item, const SearchParams& params, const AttentionParams& attention,
                    int64_t num_tokens) const;

  // Layers cut back by `scorer`, and tokens of all their heads.
  void CountEvicted(absl::string_view scorer, int64_t layers, int64_t tokens) const {
    eviction.Count(layers, tokens);
    if (counts != nullptr && layers > 0) counts->Evicted(scorer, layers, tokens);
  }

  // Positions whose queries each layer keeps, for scorers and for low-rank stores; 0: none.
  int64_t kept_queries() const;

  // Bytes of one head's row, and of one token's rows of all KV heads.
  int row_bytes() const { return rows.row_bytes(); }
  int64_t token_bytes() const { return int64_t{rows.heads()} * rows.row_bytes(); }

  // Keys in the zone, and its end, with n tokens: a function of n alone.
  int64_t ZoneKeys(int64_t n) const;
  int64_t ZoneEnd(int64_t n) const { return config.zones.sink + ZoneKeys(n); }

  const RowFormat rows;
  const RowFormat checksums;
  mutable SlabPool row_pool;  // thread-safe
  const PieceList::Shape row_shape;
  const PieceList::Shape checksum_shape;
  const RowFormat windows;  // window_means.h, by window of the zone, where values are kept
  const PieceList::Shape window_shape;
  const PieceList::Shape earlier_window_shape;  // of sequences that a snapshot of version 1 has brought
  const CodeShape codes;

  // Shapes of one head alone, once tokens were evicted.
  const RowFormat head_rows, head_checksums, head_positions, head_windows;
  mutable SlabPool head_row_pool;  // thread-safe
  const PieceList::Shape head_row_shape, head_checksum_shape, head_position_shape, head_window_shape;
  const PieceList::Shape earlier_head_window_shape;
  const CodeShape head_codes;
};

}  // namespace seine

#endif  // SEINE_INDEX_CONTEXT_H_
