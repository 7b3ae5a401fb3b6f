// The balanced code's transform of one head: coordinates in which keys and queries have the same diagonal second
// moment, and the bits that each coordinate gets (docs/codecs.md, "balanced").
#ifndef SEINE_PROFILE_BALANCE_H_
#define SEINE_PROFILE_BALANCE_H_

#include <Eigen/Core>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace seine {

inline constexpr int kMaxCoarseBits = 4;  // on one coordinate
inline constexpr int kMaxTotalBits = 6;
inline constexpr double kKeyShrink = .001, kQueryShrink = .03;  // towards the identity

// Lloyd-Max distortion of a Gaussian by bits 0..6, of variance 1.
inline constexpr double kDistortion[7] = {1.0, .3634, .1175, .03454, .009497, .002499, .00064};

struct Balance {
  // Row vectors: y = x * key_map, q' = q * query_map; <q, x> = <q', y>. Both have second moment diag(lambda) up to
  // scale.
  Eigen::MatrixXd key_map, query_map;  // [head_dim, head_dim]
  Eigen::VectorXd lambda;              // descending, positive
  std::vector<uint8_t> coarse_bits;    // [head_dim] sum = coarse share * head_dim, at most 4 each; packs into nibbles
  std::vector<uint8_t> total_bits;  // [head_dim] sum = total share * head_dim, at most 6 each, never below coarse_bits
};

struct BalanceOptions {
  double coarse_bits = 1;  // a coordinate, of the plane that is scanned: .5, 1 or 2
  double total_bits = 2;   // a coordinate, of the whole code: above coarse_bits, at most 4
};

// key_moment: of centred keys; query_moment: uncentred; both [head_dim, head_dim], symmetric, positive semi-definite,
// carried to where they are used. INVALID_ARGUMENT for other shapes, a NaN, a moment of nothing but zeros, or options
// out of range. Deterministic.
absl::StatusOr<Balance> MakeBalance(const Eigen::MatrixXd& key_moment, const Eigen::MatrixXd& query_moment,
                                    const BalanceOptions& options);

// Whether the coordinates' coarse bits fill nibbles with whole coordinates: 4 | 3+1 | 2+2 | 2+1+1 | 1+1+1+1.
bool Packs(const std::vector<uint8_t>& coarse_bits);

}  // namespace seine

#endif  // SEINE_PROFILE_BALANCE_H_
