// Synthetic keys and queries of one head, for scale and for tests. Never a stand-in for real ones: every output that
// comes from them says `synthetic`.
//
// With z ~ N(0, I) per token, U a random orthonormal basis, spectrum lambda_i ~ (i + .5)^-1.1, i = 0 .. D - 1:
//   gaussian     k = z                                          q = z'
//   anisotropic  k = mu_k + U_k (sqrt(lambda_k) * z)            q = mu_q + U_q (sqrt(lambda_q) * z')
//   rope         as anisotropic, with z correlated in time and three quarters of |mu|^2 in the slower half of the
//   pairs;
//                then rotated: pair (x_i, x_{i + D/2}) at position p by the angle p * 500000^(-2i/D)
//   drift        as anisotropic, with mu_k(p) turning half a circle, from one random direction to its opposite
// E|k|^2 = 4.7 D, four fifths of it the mean; E|q|^2 = 3.4 D, three quarters of it the mean; correlation of z at lag s
// .2 e^(-s/3) + .1 e^(-s/40). These are what the pre-RoPE keys of SmolLM2-135M show (bench/data): mean share .68-.86,
// top 1 / 4 / 8 / 16 / 32 of 64 eigenvalues .15 / .38 / .54 / .73 / .90 of the variance, lag 1 / 4 / 16 / 64
// correlation .35 / .15 / .08 / .04, softmax logits of standard deviation 2.3-4.7.
#ifndef SEINE_BENCH_INPUTS_SYNTHETIC_H_
#define SEINE_BENCH_INPUTS_SYNTHETIC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace seine::bench {

enum class SyntheticKind : uint8_t { kGaussian, kAnisotropic, kRope, kDrift };

// INVALID_ARGUMENT naming the flag.
absl::StatusOr<SyntheticKind> SyntheticKindOf(const std::string& name);

struct SyntheticOptions {
  SyntheticKind kind = SyntheticKind::kRope;
  int64_t num_keys = 0;     // positions 0 .. num_keys - 1
  int64_t num_queries = 0;  // positions num_keys ..
  int head_dim = 128;       // even
  uint64_t seed = 1;
};

struct SyntheticHead {
  std::vector<float> keys;     // [num_keys, head_dim]
  std::vector<float> queries;  // [num_queries, head_dim]
};

// The same bits for the same options, whatever the number of threads that make them.
SyntheticHead MakeSynthetic(const SyntheticOptions& options);

}  // namespace seine::bench

#endif  // SEINE_BENCH_INPUTS_SYNTHETIC_H_
