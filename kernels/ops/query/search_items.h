// What a search hands to a device: the tasks as plain views, and where each of its steps leaves its results. SearchPlan
// (ops/search/search_plan.h) places them.
#ifndef SEINE_KERNELS_OPS_QUERY_SEARCH_ITEMS_H_
#define SEINE_KERNELS_OPS_QUERY_SEARCH_ITEMS_H_

#include <cstdint>

#include "kernels/codecs/code.h"
#include "kernels/codecs/codec.h"
#include "kernels/codecs/kinds/registry.h"
#include "kernels/cuda/block.h"
#include "kernels/ops/query/recall_target.h"
#include "kernels/ops/query/search.h"
#include "kernels/types.h"

namespace seine::cuda {

// A run of dense keys: search.h, DenseRun, in memory that the device reads.
struct DenseRows {
  const uint8_t* data = nullptr;
  uint64_t stride_bytes = 0;
  int32_t count = 0;
  DType dtype = DType::kFloat32;
};

// search.h, SearchTask, with every pointer readable by the device (its own memory, or page-locked host memory).
struct SearchItem {
  const CodecTables* codec = nullptr;
  CodeLayout layout;                           // of that codec, for the plan
  CodecKind kind = CodecKind::kRsq;            // of that codec, likewise
  const ConstCodePlanes* segments = nullptr;   // [ceil(max(num_keys, counted_keys) / segment_keys)]
  int32_t segment_keys = 0;                    // a multiple of 64
  int64_t num_keys = 0;                        // a multiple of 64
  int64_t zone_begin = 0;                      // position of key 0 of the zone
  const int8_t* shared_centre = nullptr;       // [head_dim] of Centre::kGlobal
  float shared_scale = 0;                      // of shared_centre
  const uint32_t* collision_counts = nullptr;  // [head_dim / 8][256], Coarse::kCollision only: of the first
  int64_t counted_keys = 0;                    // >= num_keys keys
  const uint8_t* const* chunks = nullptr;      // stored keys by position (types.h, ChunkedRows); nullptr: none
  int32_t chunk_tokens = 1;
  DType key_dtype = DType::kFloat32;
  // In place of chunks: keys of which some are low-rank, and the positions of places, by chunk.
  LowRankRows low_rank;
  const uint8_t* const* position_chunks = nullptr;
  int32_t position_chunk_tokens = 1;
  const DenseRows* dense = nullptr;  // [num_dense]
  int32_t num_dense = 0;
  int32_t dense_tokens = 0;  // of all runs together
  SEINE_HD bool stored() const { return chunks != nullptr || low_rank.num_runs > 0; }
  const float* queries = nullptr;  // [group, head_dim]
  int32_t group = 1;
  bool refine_all = false;  // every candidate survives

  double usual_share = kDefaultCandidateFraction;  // Codec::DefaultCandidateFraction of num_keys

  // Set by the plan.
  int32_t wanted = 0;                   // candidates of each query; under a recall target the least,
  int32_t most = 0;                     // and the most
  int32_t keep = 0;                     // survivors of each query, where it has as many candidates
  int32_t capacity = 0;                 // keys at or above the threshold that a query has room for
  int32_t splits = 1;                   // blocks that choose among the finds of a query
  int32_t first_query = 0;              // of queries()
  int32_t first_set = 0, num_sets = 0;  // of sets()
  uint32_t* nibble_tables = nullptr;    // [ceil(group / 4)][2 coarse_bytes][16]: byte q of a word is query q's entry
  uint32_t* tier_tables = nullptr;      // collision: [ceil(group / 4)][coarse_bytes][256], likewise
};

struct FoundKey {
  uint32_t index;  // key in the zone
  float score;
};

// A run of a query's list: the finds of one block of the scan, ascending.
struct FoundPiece {
  uint32_t start, count;
};
inline constexpr int kPieceKeys = 4096;  // of the zone, that a block of the scan looks at

// A log-sum-exp as a sum of e^(x - largest) in 16 lanes: the CPU's order of addition, so that runs can be added.
struct LseState {
  float largest;
  float lanes[16];
};

// Scalars of one query, written by one step and read by the next.
struct QueryState {
  float coarse_step, query8_step, fine8_step;  // PreparedQuery
  float shared_base;                           // <q, shared centre> in units of coarse_step
  PredictedErrors errors;                      // where the zone's mass is needed
  float noise;                                 // Codec::CoarseNoise, as the next under a recall target only
  ScoreSpread spread;                          // of the coarse scores
  float threshold;                             // scores at or above it are found
  uint32_t found;                              // how many were, also where that is more than the capacity
  uint32_t blocks_done;                        // of those that choose for the query
  uint32_t queries_done;                       // of the set whose first query this is
  uint32_t rescanned;                          // 1 where the threshold misled and the zone was searched again
  uint32_t num_candidates, num_survivors;
  LseState lse;  // of the zone but the survivors
};

// One query of one item.
struct QueryPlan {
  int32_t item = 0, place = 0;   // place: in the item's group
  int8_t* query8 = nullptr;      // [head_dim rounded up to 64] of PreparedQuery, as the next two
  float* transformed = nullptr;  // [head_dim]
  int8_t* fine8 = nullptr;       // [head_dim rounded up to 64]
  QueryState* state = nullptr;
  float* bases = nullptr;             // [num_keys / 64]
  FoundKey* found = nullptr;          // [capacity] in pieces, one behind another in any order
  FoundPiece* pieces = nullptr;       // [ceil(num_keys / kPieceKeys)] in the order of the keys
  uint32_t* best = nullptr;           // [max(4, top_k)] ordered bits of the best scores; a recall target's only
  uint32_t* chosen = nullptr;         // [most] candidates, ascending
  float* estimates = nullptr;         // [most]; in the end the survivors' logits
  uint32_t* survivors = nullptr;      // [keep] keys, ascending
  int32_t* num_candidates = nullptr;  // for the answer, as the next
  int32_t* candidates = nullptr;      // [most] positions, nullptr if not asked for
};

struct SetAnswer {
  int32_t count;    // positions and scores
  int32_t scored;   // keys scored after the candidates, by each query of the set
  int32_t rescans;  // queries of the set whose threshold misled
  float mass;       // under mass_p: SearchOutput::masses and capped
  int32_t capped;
};

// One set of the answer: all queries of an item (Scope::kPerKvHead), or one.
struct SetPlan {
  int32_t item = 0, first = 0, count = 0;  // queries [first, first + count) of the item's group
  int32_t capacity = 0;                    // keys that may be scored exactly
  int32_t most = 0;                        // keys that may be answered: min(top_k, capacity)
  float scale = 0;                         // of logits
  bool with_dense = false;                 // dense runs count in the log-sum-exps that reduce the set
  uint32_t* num_keys = nullptr;
  uint32_t* keys = nullptr;    // [capacity] ascending; nullptr: every key of the zone
  uint32_t* ranks = nullptr;   // [count * the item's keep] sets of several queries only: survivors not seen before
  float* logits = nullptr;     // [count][capacity]
  float* dense = nullptr;      // [count][dense_tokens] dots of the dense runs
  float* combined = nullptr;   // [capacity]
  float* mass = nullptr;       // [capacity], mass_p only
  uint32_t* order = nullptr;   // [most] places of the best, ascending
  uint32_t* ranked = nullptr;  // [2][most] mass_p only: rank of each, and the places by rank
  SetAnswer* answer = nullptr;
  int32_t* positions = nullptr;  // [most] ascending
  float* scores = nullptr;       // [most]
};

// What every kernel is given, by value. All pointers readable by it.
struct SearchArgs {
  SearchParams params;
  const SearchItem* items = nullptr;
  const QueryPlan* queries = nullptr;
  const SetPlan* sets = nullptr;
};

// Shapes of the grids, {x, y} each (the kernels' headers say of what); sized for the batch's largest, so that a block
// may find nothing to do.
struct SearchGrids {
  BlockIndex queries, scan, choose, sets, dots, rescore;
  bool low_rank = false;       // some item's keys are
  bool wide = false;           // some item's heads are above kNarrowHeadDim
  uint32_t coarse_groups = 0;  // bit g: some item has coarse_bytes 4 g; one scan kernel each
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_QUERY_SEARCH_ITEMS_H_
