// Moments and profiles to test with, the same on every run.
#ifndef SEINE_TESTS_PROFILE_TEST_UTIL_H_
#define SEINE_TESTS_PROFILE_TEST_UTIL_H_

#include <Eigen/Dense>
#include <cmath>
#include <random>
#include <vector>

#include "profile/profile.h"

namespace seine {

// Second moment of `count` Gaussian vectors whose coordinates are mixed, of spreads that fall off.
inline Eigen::MatrixXd RandomMoment(int dim, int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Eigen::MatrixXd x(dim, count);
  for (Eigen::Index j = 0; j < count; ++j) {
    for (Eigen::Index i = 0; i < dim; ++i) x(i, j) = normal(random) * std::exp(-3.0 * static_cast<double>(i) / dim);
  }
  Eigen::MatrixXd mix(dim, dim);
  for (Eigen::Index i = 0; i < mix.size(); ++i) mix.data()[i] = normal(random);
  x = Eigen::HouseholderQR<Eigen::MatrixXd>(mix).householderQ() * x;
  return x * x.transpose() / count;
}

inline std::vector<float> RandomFloats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& value : out) value = normal(random);
  return out;
}

inline Rope PlainRope(int head_dim, Rope::Style style = Rope::Style::kHalfSplit) {
  return ParseRope(R"({"rope_theta": 10000.0, "rope_type": "default"})", head_dim, style, 1).value();
}

}  // namespace seine

#endif  // SEINE_TESTS_PROFILE_TEST_UTIL_H_
