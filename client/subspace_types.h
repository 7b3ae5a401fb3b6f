// Subspaces as plain C++ values: bases and measures. Included by types.h.
#ifndef SEINE_CLIENT_SUBSPACE_TYPES_H_
#define SEINE_CLIENT_SUBSPACE_TYPES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace seine::client {

// kDefault takes the server's.
enum class KeyFrame : uint8_t { kDefault = 0, kPostRope = 1, kPreRope = 2 };

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
  std::string profile;               // one of GetServerInfoResponse.profiles
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
