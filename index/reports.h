// What an Index tells of itself: its sequences, memory and counts, the scores of a layer, the state of a head.
#ifndef SEINE_INDEX_REPORTS_H_
#define SEINE_INDEX_REPORTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "index/types.h"
#include "kernels/codecs/code.h"

namespace seine {

struct SequenceInfo {
  SequenceHandle handle;
  std::vector<int64_t> layer_tokens;  // [num_layers]
  int64_t code_bytes = 0;             // capacity held for codes (shared segments counted whole)
  int64_t store_bytes = 0;            // capacity held for keys and values
  bool on_disk = false;               // the idle tier has it (index/idle/), and no bytes are held
};

struct IndexStats {
  int64_t num_sequences = 0;
  int64_t code_bytes = 0;  // shared segments counted once
  int64_t store_bytes = 0;
  int64_t subspace_bytes = 0;  // of store_bytes: low-rank tokens, bases and what they learn from
  int64_t other_bytes = 0;     // of the index's and its sequences' own objects
  int64_t query_bytes = 0;     // of queries kept for scorers; shared ones counted once
  // The balanced code's since the index was made: layers that got a new transform in the background, since their
  // sequences outgrew the horizon or, of them, since it did not fit the queries that they were asked; and their keys,
  // each counted once for all heads.
  int64_t reencoded_layers = 0;
  int64_t reencoded_unfit_layers = 0;
  int64_t reencoded_keys = 0;
  int64_t dropped_queries =
      0;  // times that a step's queries found no memory: in the sample that tells of fit, for scorers
  // Since the index was made: layers cut back, and tokens dropped, each counted once a head.
  int64_t evictions = 0;
  int64_t evicted_tokens = 0;
  // Figures of the layers' gates (index/layer_gate.h): checks, and shares of attention that they found lost, summed;
  // answers of layers that attend exactly; and the layers that do now, with what they lost.
  int64_t gate_checks = 0;
  double gate_lost = 0;
  int64_t gate_answers = 0;
  std::vector<std::pair<int, double>> gate_layers;
};

// Scores of one layer, by KV head; positions ascending.
struct LayerScores {
  std::vector<std::vector<int32_t>> positions;
  std::vector<std::vector<float>> scores;  // beside them, higher is kept
};

// State of a head whose zone is kept low-rank. Bytes are of this sequence; rows, positions and checksums are in
// store_bytes besides.
struct SubspaceInfo {
  int key_rank = 0, value_rank = 0;
  std::string frame, profile;                                    // profile: "" where bases begin with the first tokens
  int64_t low_rank_tokens = 0;                                   // of those retained
  int64_t full_rank_tokens = 0;                                  // of them, kept full-rank besides
  int64_t code_bytes = 0, full_rank_bytes = 0, basis_bytes = 0;  // bases: versions, and what is learnt
  int64_t versions = 0;                                          // of the basis, that tokens are stored in
  // What the updates saw of keys and values: rows, updates, and the share of the rows' energy that the basis of their
  // time left out, over all and in the last interval.
  struct Learning {
    int64_t rows = 0, updates = 0;
    double residual = 0, last_residual = 0;
  } keys, values;
  // From the keys' newest basis to the first version: principal angle in radians, overlap in [0, 1].
  double angle = 0, overlap = 1;
  // Blocks whose full-rank tokens were to be chosen by queries, and were not: none that was kept sees the block.
  int64_t blocks_without_queries = 0;
};

struct HeadInfo {
  int64_t num_tokens = 0;
  int64_t num_retained = 0;              // num_tokens less what was evicted
  int64_t zone_begin = 0, zone_end = 0;  // places among the retained tokens: positions while nothing was evicted
  int64_t num_segments = 0;
  int64_t code_bytes = 0, store_bytes = 0;
  double bytes_per_key = 0;  // code bytes (all planes, centres, capacity not yet used) / zone keys
  CodeLayout layout;
  std::string codec, coarse, centre;
  // The balanced code's; nothing under rsq.
  std::string profile;
  int64_t position = -1;  // p: queries are expected at [p, p + horizon]. -1: nothing is encoded, or RoPE not stated
  int64_t horizon = 0;    // 0: RoPE is not stated, so that moments are used as observed
  double coarse_bits = 0, total_bits = 0;  // a coordinate
  std::vector<float> lambda;               // [head_dim] descending; empty before the first key is encoded
  std::string query_moments;  // what the transform was made for: "profile", or "live", the queries asked; empty: none
  // How much more noise the scanned plane gives the queries asked than those that the transform was made for, as a
  // share: 0 where it fits (query_fit.h). Not stated before 64 steps have asked.
  std::optional<double> predicted_loss;
  std::optional<SubspaceInfo> subspace;
};

// What CompareExact is to ask.
struct ComparisonParams {
  SearchParams search;
  std::vector<int> layers = {};  // empty: all
  int samples = 200;             // items, spread evenly over sequences, layers and steps: 1 to kMostComparisons
};
inline constexpr int kMostComparisons = 10'000;

// Means over the sets of one KV head that were compared (index/quality/judge.h).
struct HeadComparison {
  int layer = 0, kv_head = 0;
  int64_t sets = 0;  // at least 1
  double recall = 0, least_recall = 1;
  double attention_mass = 0;
  std::optional<double> predicted_recall;  // where the codec predicts it
};

struct ComparisonReport {
  std::vector<HeadComparison> heads;  // by layer and KV head; without those that had nothing to search
  int64_t compared = 0;               // items
  int64_t dropped = 0;                // items whose layer changed, or sequence went, while they were compared
};

// What one set of the latest step that a layer keeps finds, asked again (Index::DescribeStep).
struct StepSet {
  int kv_head = 0;
  int q_head = 0;  // the first that shares the set
  std::vector<int32_t> positions;
  std::vector<float> weights;  // beside them, shares of the exact softmax
  // Shares of it that lie before the zone, after it, on what was found, and on the zone's other keys: 1 together.
  double sink = 0, local = 0, found = 0, tail = 0;
  double recall = 0;
};

struct StepInfo {
  int64_t position = 0;    // that the step asked from
  int64_t num_tokens = 0;  // held now
  std::vector<StepSet> sets;
};

}  // namespace seine

#endif  // SEINE_INDEX_REPORTS_H_
