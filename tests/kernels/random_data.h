// Random keys, queries and codecs for tests, with and without a test framework.
#ifndef SEINE_TESTS_KERNELS_RANDOM_DATA_H_
#define SEINE_TESTS_KERNELS_RANDOM_DATA_H_

#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/codecs/code.h"
#include "kernels/codecs/kinds/balanced.h"
#include "kernels/ops/score_keys/score_keys.h"

namespace seine {

inline constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
// A dim's types of rows that are read in an engine's cache.
inline std::vector<DType> RowTypesOf(int dim) {
  std::vector<DType> types(std::begin(kDTypes), std::end(kDTypes));
  if (dim % kScaledValues == 0) types.insert(types.end(), {DType::kQ8, DType::kQ4});
  return types;
}
// Under a sanitizer, where each takes ten times as long: a power of two, none, and the largest; where a test says so by
// DTypesOf, each of the three with a type of its own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline const int kTestHeadDims[] = {64, 80, 512};
inline std::vector<DType> DTypesOf(int dim) { return {kDTypes[dim == 64 ? 0 : dim == 80 ? 1 : 2]}; }
#else
inline constexpr auto& kTestHeadDims = kHeadDims;
inline std::vector<DType> DTypesOf(int /*dim*/) { return {std::begin(kDTypes), std::end(kDTypes)}; }
#endif

inline std::vector<float> Gaussian(size_t n, uint64_t seed, float scale = 1, float mean = 0) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(mean, scale);
  std::vector<float> out(n);
  for (float& x : out) x = normal(rng);
  return out;
}

// Keys with a mean offset and slow drift, as post-RoPE keys have. [n, dim]
inline std::vector<float> Keys(int n, int dim, uint64_t seed) {
  std::vector<float> keys = Gaussian(static_cast<size_t>(n) * dim, seed);
  const std::vector<float> offset = Gaussian(dim, seed + 1, 2), drift = Gaussian(dim, seed + 2, .5f);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < dim; ++j) keys[static_cast<size_t>(i) * dim + j] += offset[j] + drift[j] * std::sin(i * .003f);
  }
  return keys;
}

// Rows of any values; bits of every width in places that straddle nibbles, bytes and words. At head_dim 512 half a bit
// is scanned whatever is asked, as more is not allowed, and the code has as many bytes as there are.
inline BalancedOptions RandomBalanced(int dim, uint64_t seed, bool half_bit) {
  BalancedOptions o;
  o.head_dim = dim;
  o.key_map = Gaussian(static_cast<size_t>(dim) * dim, seed, .1f);
  o.query_map = Gaussian(static_cast<size_t>(dim) * dim, seed + 1, .1f);
  for (int i = 0; i < dim; ++i) o.lambda.push_back(4.0f / static_cast<float>(i + 1));
  // Coarse: one coordinate of 4 bits, one of 3 with one of 1, two of 2, then single bits; total up to 6, some 0.
  std::vector<uint8_t> coarse = {4, 3, 2, 2, 1};
  int left = (half_bit || dim > 256 ? dim / 2 : dim) - 12;
  for (; left > 0; --left) coarse.push_back(1);
  coarse.resize(dim, 0);
  o.coarse_bits = coarse;
  o.total_bits = coarse;
  o.total_bits[0] = o.total_bits[1] = 6;
  o.total_bits[2] = 5;
  for (int i = 3; i < dim * 3 / 4 && i < 200; ++i) o.total_bits[i] = static_cast<uint8_t>(o.total_bits[i] + i % 2);
  int bits = std::accumulate(o.total_bits.begin(), o.total_bits.end(), 0);
  for (int i = 0; dim > 256 && i < dim && bits < kMaxBalancedBytes * 8; ++i) {
    if (o.total_bits[i] == 0) o.total_bits[i] = 1, ++bits;
  }
  return o;
}

// Windows of 1 to `longest` of `count` keys, as where tokens were evicted; seed 0: of `longest` each. longest 0: one.
struct MadeUpWindows {
  MadeUpWindows(int64_t count, int64_t longest, uint32_t seed) : one(longest == 0) {
    std::mt19937 random(seed);
    for (int64_t i = 0; i < count && !one; i += seed == 0 ? longest : 1 + static_cast<int64_t>(random() % longest)) {
      begins.push_back(static_cast<int32_t>(i));
    }
  }
  KeyWindows view() const {
    return one ? KeyWindows() : KeyWindows{begins.data(), static_cast<int64_t>(begins.size())};
  }
  bool one;
  std::vector<int32_t> begins;
};

}  // namespace seine

#endif  // SEINE_TESTS_KERNELS_RANDOM_DATA_H_
