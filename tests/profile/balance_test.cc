// The balanced transform: inner products stay, both moments become one diagonal, and bits add up, pack and pay.
#include "profile/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/match.h"
#include "tests/profile/test_util.h"

namespace seine {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

int Sum(const std::vector<uint8_t>& bits) { return std::accumulate(bits.begin(), bits.end(), 0); }

MatrixXd Shrunk(const MatrixXd& moment, double share) {
  const double dim = static_cast<double>(moment.rows());
  return (1 - share) * dim / moment.trace() * moment + share * MatrixXd::Identity(moment.rows(), moment.rows());
}

void ExpectSound(const Balance& balance, int dim, const BalanceOptions& options) {
  ASSERT_EQ(balance.lambda.size(), dim);
  EXPECT_TRUE(balance.key_map.allFinite() && balance.query_map.allFinite());
  EXPECT_LT((balance.key_map * balance.query_map.transpose() - MatrixXd::Identity(dim, dim)).norm(), 1e-7 * dim);
  for (int i = 0; i < dim; ++i) {
    EXPECT_GT(balance.lambda(i), 0) << i;
    if (i > 0) {
      EXPECT_LE(balance.lambda(i), balance.lambda(i - 1)) << i;
    }
    EXPECT_LE(balance.coarse_bits[i], kMaxCoarseBits) << i;
    EXPECT_LE(balance.total_bits[i], kMaxTotalBits) << i;
    EXPECT_GE(balance.total_bits[i], balance.coarse_bits[i]) << i;
  }
  EXPECT_EQ(Sum(balance.coarse_bits), options.coarse_bits * dim);
  EXPECT_EQ(Sum(balance.total_bits), options.total_bits * dim);
  EXPECT_TRUE(Packs(balance.coarse_bits));
}

TEST(Balance, InnerProductsStayAndBothMomentsBecomeOneDiagonal) {
  for (const int dim : {16, 64, 80, 96, 128, 192, 256}) {
    for (const double coarse : {.5, 1.0, 2.0}) {
      const MatrixXd key = RandomMoment(dim, 3 * dim, 1) * 40, query = RandomMoment(dim, 2 * dim, 2) * 1e-3;
      const BalanceOptions options = {coarse, coarse == 2 ? 2.5 : 2};
      const absl::StatusOr<Balance> balance = MakeBalance(key, query, options);
      ASSERT_TRUE(balance.ok()) << balance.status();
      ExpectSound(*balance, dim, options);

      const std::vector<float> values = RandomFloats(2 * dim, 9);
      const Eigen::RowVectorXd q = Eigen::Map<const Eigen::RowVectorXf>(values.data(), dim).cast<double>();
      const Eigen::RowVectorXd x = Eigen::Map<const Eigen::RowVectorXf>(values.data() + dim, dim).cast<double>();
      EXPECT_NEAR((q * balance->query_map).dot(x * balance->key_map), q.dot(x), 1e-10 * q.norm() * x.norm());

      const MatrixXd diagonal = balance->lambda.asDiagonal();
      const MatrixXd y = balance->key_map.transpose() * Shrunk(key, kKeyShrink) * balance->key_map;
      const MatrixXd p = balance->query_map.transpose() * Shrunk(query, kQueryShrink) * balance->query_map;
      EXPECT_LT((y - diagonal).norm(), 1e-9 * diagonal.norm()) << dim;
      EXPECT_LT((p - diagonal).norm(), 1e-9 * diagonal.norm()) << dim;
    }
  }
}

// The same two moments in numpy: sum over r of decay^r v v^T, v_i = sin(seed + 1.7 r i + .3 i + r).
MatrixXd SineMoment(int dim, double seed, double decay) {
  MatrixXd sum = MatrixXd::Zero(dim, dim);
  for (int r = 0; r < dim; ++r) {
    VectorXd v(dim);
    for (int i = 0; i < dim; ++i) v(i) = std::sin(seed + 1.7 * r * i + .3 * i + r);
    sum += std::pow(decay, r) * v * v.transpose();
  }
  return sum;
}

// Figures of the numpy prototype, run once on these moments.
TEST(Balance, AgreesWithThePrototype) {
  const auto small = MakeBalance(SineMoment(16, .5, .9), SineMoment(16, 2, .7), {1, 2});
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_NEAR(small->lambda(0), 2.216745109, 1e-8);
  EXPECT_NEAR(small->lambda(4), 1.100963488, 1e-8);
  EXPECT_NEAR(small->lambda(15), .01149377323, 1e-9);
  EXPECT_NEAR(small->lambda.sum(), 12.16847674, 1e-7);
  EXPECT_EQ(small->coarse_bits, (std::vector<uint8_t>{3, 3, 3, 2, 2, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(small->total_bits, (std::vector<uint8_t>{5, 4, 4, 4, 3, 3, 3, 3, 1, 1, 1, 0, 0, 0, 0, 0}));

  const auto half = MakeBalance(SineMoment(64, .5, .9), SineMoment(64, 2, .7), {.5, 2});
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_NEAR(half->lambda(0), 2.444312786, 1e-8);
  EXPECT_NEAR(half->lambda(32), .154945156, 1e-8);
  EXPECT_NEAR(half->lambda(63), .005481656178, 1e-9);
  std::vector<uint8_t> coarse = {4, 4, 4, 3, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1};
  coarse.resize(64, 0);
  EXPECT_EQ(half->coarse_bits, coarse);
  std::vector<uint8_t> total = {6, 6, 6, 5, 5, 5, 5, 4, 4, 4, 4, 4};
  total.resize(26, 3);
  total.resize(35, 2);
  total.resize(45, 1);
  total.resize(64, 0);
  EXPECT_EQ(half->total_bits, total);
}

// Packing by search: fill nibbles one after another.
bool PacksBySearch(int n4, int n3, int n2, int n1) {
  if (n4 < 0 || n3 < 0 || n2 < 0 || n1 < 0) return false;
  if (n4 + n3 + n2 + n1 == 0) return true;
  return PacksBySearch(n4 - 1, n3, n2, n1) || PacksBySearch(n4, n3 - 1, n2, n1 - 1) ||
         PacksBySearch(n4, n3, n2 - 2, n1) || PacksBySearch(n4, n3, n2 - 1, n1 - 2) ||
         PacksBySearch(n4, n3, n2, n1 - 4);
}

TEST(Balance, PacksKnowsEveryMixOfWidths) {
  for (int code = 0; code < 2 * 5 * 5 * 7; ++code) {
    const int n4 = code % 2, n3 = code / 2 % 5, n2 = code / 10 % 5, n1 = code / 50;
    std::vector<uint8_t> bits(3, 0);
    bits.insert(bits.end(), n4, 4);
    bits.insert(bits.end(), n3, 3);
    bits.insert(bits.end(), n2, 2);
    bits.insert(bits.end(), n1, 1);
    EXPECT_EQ(Packs(bits), PacksBySearch(n4, n3, n2, n1)) << n4 << " " << n3 << " " << n2 << " " << n1;
  }
  EXPECT_FALSE(Packs({5, 3}));
}

absl::StatusOr<Balance> OfSpectrum(const std::vector<double>& spectrum, const BalanceOptions& options) {
  const MatrixXd moment = Eigen::Map<const VectorXd>(spectrum.data(), spectrum.size()).asDiagonal();
  return MakeBalance(moment, moment, options);
}

// The greedy bits are 3, 3, 2; a four and two twos lose least (.083 - .025 of the distortion, against .088 and .083).
TEST(Balance, AnAllocationThatDoesNotPackMovesItsLeastValuableBit) {
  const auto balance = OfSpectrum({1, 1, .6, .001, .001, .001, .001, .001}, {1, 2});
  ASSERT_TRUE(balance.ok()) << balance.status();
  EXPECT_EQ(balance->coarse_bits, (std::vector<uint8_t>{4, 2, 2, 0, 0, 0, 0, 0}));
  ExpectSound(*balance, 8, {1, 2});
}

// Bits by sorting what each is worth: the same as giving them one by one, as a coordinate's next bit is worth less.
std::vector<uint8_t> ByWorth(const VectorXd& lambda, int sum, int most) {
  std::vector<std::pair<double, int>> worth;  // negative, so that ties sort by index
  for (int i = 0; i < lambda.size(); ++i) {
    for (int bit = 0; bit < most; ++bit) {
      worth.emplace_back(-lambda(i) * lambda(i) * (kDistortion[bit] - kDistortion[bit + 1]), i);
    }
  }
  std::sort(worth.begin(), worth.end());
  std::vector<uint8_t> bits(lambda.size(), 0);
  for (int i = 0; i < sum; ++i) ++bits[worth[i].second];
  return bits;
}

TEST(Balance, BitsAreSoundForManySpectra) {
  int repacked = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    const std::vector<float> noise = RandomFloats(40, seed);
    std::vector<double> spectrum(8 * (1 + seed % 5));
    const double spread = .2 + (seed % 7) * .5;
    for (size_t i = 0; i < spectrum.size(); ++i) spectrum[i] = std::exp(spread * noise[i]);
    for (const BalanceOptions& options : {BalanceOptions{.5, 1}, {.5, 2}, {1, 1.5}, {1, 2}, {1, 4}, {2, 2.5}}) {
      const auto balance = OfSpectrum(spectrum, options);
      ASSERT_TRUE(balance.ok()) << balance.status();
      ExpectSound(*balance, static_cast<int>(spectrum.size()), options);
      const std::vector<uint8_t> greedy = ByWorth(balance->lambda, Sum(balance->coarse_bits), kMaxCoarseBits);
      repacked += !Packs(greedy);
      if (Packs(greedy)) {
        EXPECT_EQ(balance->coarse_bits, greedy);
      }
    }
  }
  EXPECT_GT(repacked, 0);  // the cases reach the repacking
}

TEST(Balance, DegenerateMoments) {
  for (const int dim : {64, 80, 96, 128, 256}) {
    MatrixXd huge = MatrixXd::Identity(dim, dim);
    huge(3, 3) = 1e30;
    MatrixXd one = MatrixXd::Zero(dim, dim);
    one(5, 5) = 1e-30;
    const MatrixXd low_rank = RandomMoment(dim, 3, 1), even = MatrixXd::Identity(dim, dim);
    const std::vector<const MatrixXd*> moments = {&huge, &one, &low_rank, &even};
    for (const MatrixXd* key : moments) {
      for (const MatrixXd* query : moments) {
        if (dim > 128 && key != query) continue;  // in seconds
        const BalanceOptions options = {key == query ? .5 : 1, 2};
        const auto balance = MakeBalance(*key, *query, options);
        ASSERT_TRUE(balance.ok()) << balance.status();
        ExpectSound(*balance, dim, options);
      }
    }
  }
  // Equal coordinates: ties go to the lower index.
  const auto even = OfSpectrum(std::vector<double>(16, 2.5), {.5, 2});
  ASSERT_TRUE(even.ok());
  EXPECT_EQ(even->coarse_bits, (std::vector<uint8_t>{1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(Balance, TheSameEachTimeWithSignsFixed) {
  const MatrixXd key = RandomMoment(64, 90, 4), query = RandomMoment(64, 200, 5);
  const auto first = MakeBalance(key, query, {}), second = MakeBalance(key, query, {});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->key_map, second->key_map);
  EXPECT_EQ(first->query_map, second->query_map);
  const auto scaled = MakeBalance(key * 4, query * .25, {});  // powers of two: exact
  ASSERT_TRUE(scaled.ok());
  EXPECT_EQ(first->key_map, scaled->key_map);
}

TEST(Balance, NamesWhatIsWrong) {
  const MatrixXd good = RandomMoment(16, 40, 1);
  MatrixXd nan = good, asymmetric = good, negative = good;
  nan(2, 3) = std::numeric_limits<double>::quiet_NaN();
  asymmetric(2, 3) += good.trace();
  negative.diagonal().array() -= good.trace() / 32;
  const MatrixXd zero = MatrixXd::Zero(16, 16), odd = MatrixXd::Identity(12, 12), flat = MatrixXd::Zero(16, 8);
  const struct {
    const MatrixXd* key;
    const MatrixXd* query;
    BalanceOptions options;
    const char* message;
  } cases[] = {
      {&nan, &good, {}, "key_moment: holds a value that is not finite"},
      {&good, &nan, {}, "query_moment: holds a value that is not finite"},
      {&zero, &good, {}, "key_moment: is all zeros"},
      {&good, &zero, {}, "query_moment: is all zeros"},
      {&asymmetric, &good, {}, "key_moment: is not symmetric"},
      {&good, &negative, {}, "query_moment: is not positive semi-definite"},
      {&odd, &odd, {}, "key_moment: must be [head_dim, head_dim], a multiple of 8, not [12, 12]"},
      {&flat, &good, {}, "key_moment: must be [head_dim, head_dim], a multiple of 8, not [16, 8]"},
      {&good, &flat, {}, "query_moment: must be [16, 16] as key_moment, not [16, 8]"},
      {&good, &good, {.75, 2}, "coarse_bits: must be .5, 1 or 2, not 0.75"},
      {&good, &good, {std::nan(""), 2}, "coarse_bits: must be .5, 1 or 2"},
      {&good, &good, {1, 1}, "total_bits: must be above coarse_bits, 1, and at most 4, not 1"},
      {&good, &good, {1, 4.5}, "total_bits: must be above"},
      {&good, &good, {1, std::nan("")}, "total_bits: must be above"},
      {&good, &good, {1, 1.7}, "total_bits: 1.7 a coordinate of 16 make no whole number of bits"},
  };
  for (const auto& test : cases) {
    const absl::Status status = MakeBalance(*test.key, *test.query, test.options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.message;
    EXPECT_TRUE(absl::StartsWith(status.message(), test.message)) << status << " for " << test.message;
  }
}

}  // namespace
}  // namespace seine
