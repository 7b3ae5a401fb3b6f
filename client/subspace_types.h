// Subspaces as plain C++ values: settings, bases and measures. Included by types.h.
#ifndef SEINE_CLIENT_SUBSPACE_TYPES_H_
#define SEINE_CLIENT_SUBSPACE_TYPES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace seine::client {

// kDefault, and absent optionals, take the server's default.
enum class KeyFrame : uint8_t { kDefault = 0, kPostRope = 1, kPreRope = 2 };

// An index that keeps the keys and values of its zone low-rank; needs KvStore::kKeysValues and the cpu backend.
struct Subspace {
  int key_rank = 0, value_rank = 0;  // 1 to head_dim; of an index described, those that it has
  // In (0, 1], in place of both ranks, with a profile: the smallest that hold this share of its energy in every layer
  // and head.
  std::optional<double> energy;
  KeyFrame frame = KeyFrame::kDefault;
  std::vector<int> key_ranks, value_ranks;  // a layer each, in place of the rank of that name
  bool energy_by_layer = false;             // energy finds these
  std::optional<int> interval;              // tokens between updates, and in one; 1 to 256
  std::optional<double> learning_rate;      // relative to the covariance's trace
  bool absolute_rate = false;               // learning rates are the paper's eta, without a bound
  // Above 0: a prompt makes one step with its rows' moment, averaged over so many neighbours first.
  std::optional<int> prompt_pool;
  std::optional<double> prompt_learning_rate;
  std::optional<double> max_gain;         // bound of a step
  std::optional<double> error_threshold;  // above 0: only intervals update that leave out more; 1: none
  std::optional<int64_t> min_spacing;     // tokens between such updates
  std::optional<double> full_rank;        // share of the tokens that stay full-rank
  std::optional<int> full_rank_queries;   // positions whose queries choose them, the last ones; 0: the profile's moment
  std::optional<int> full_rank_pool;      // neighbours that what they lose is averaged over; odd
  std::optional<int64_t> version_tokens;  // that share a version of a basis
  std::string profile;                    // that bases begin with; empty: a sequence's first tokens
  std::optional<int64_t> carried_to;      // post_rope: positions that its moments are carried to
  bool stack_queries = false;             // bases of keys begin with the profile's of queries and keys stacked
};

// The bases of every KV head of a layer, columns orthonormal: fp32 [num_kv_heads, head_dim, rank], row-major.
struct LayerBases {
  KeyFrame frame = KeyFrame::kDefault;
  int num_kv_heads = 0, head_dim = 0, key_rank = 0, value_rank = 0;
  std::vector<float> keys, values;
};

struct SubspaceMetrics {
  int64_t low_rank_tokens = 0, full_rank_tokens = 0;             // the latter among the former
  int64_t code_bytes = 0, full_rank_bytes = 0, basis_bytes = 0;  // part of store_bytes
  int64_t versions = 0;                                          // of the basis, that tokens are stored in
  // What the updates saw: the share of the rows' energy that the basis of their time left out, over all and lately.
  struct Learning {
    int64_t rows = 0, updates = 0;
    double residual = 0, last_residual = 0;
  } keys, values;
  double angle = 0, overlap = 1;       // of the keys' newest basis to the first version
  int64_t blocks_without_queries = 0;  // full_rank_queries: blocks that no kept query sees
};

struct CalibrateRequest {
  std::string index;  // its geometry and frame
  int layer = 0;
  std::string profile;               // one of ServerInfo::profiles
  int key_rank = 0, value_rank = 0;  // of 0, the smallest that holds `energy`
  double energy = 0;
  int64_t carried_to = 0;  // post_rope: positions that the profile's moments are carried to
  bool stack_queries = false;
};

struct LayerSubspace {
  LayerBases bases;
  std::vector<SubspaceMetrics> heads;  // one a KV head
};

}  // namespace seine::client

#endif  // SEINE_CLIENT_SUBSPACE_TYPES_H_
