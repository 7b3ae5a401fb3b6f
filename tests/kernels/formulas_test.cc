// The scalar formulas and the quantiser, against float64 and the figures of the paper.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/codecs/rsq/lloyd_max.h"
#include "kernels/math.h"
#include "kernels/ops/scan/collision.h"
#include "kernels/ops/select/select.h"
#include "tests/kernels/test_util.h"

namespace seine {
namespace {

TEST(LloydMax, ReachesTheExactOptimum) {
  const double tau[] = {.085276, .171622, .260263, .352798, .451647, .561185, .692091};
  const double a[] = {.042509, .128044, .215201, .305324, .400271, .503022, .619348, .764835};
  for (int t = 0; t < 7; ++t) EXPECT_NEAR(RsqQuantiser().thresholds[t], tau[t], 1e-6) << t;
  for (int t = 0; t < 8; ++t) EXPECT_NEAR(RsqQuantiser().levels[t], a[t], 1e-6) << t;
}

TEST(LloydMax, BeatsTheAuthorsMonteCarloTable) {
  const float tau[] = {.0843f, .1698f, .2578f, .3499f, .4487f, .5585f, .6901f};
  const float a[] = {.0420f, .1266f, .2130f, .3025f, .3973f, .5001f, .6169f, .7633f};
  double ours = 0, theirs = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<float> v = Gaussian(8, i);
    const double norm = std::sqrt(Dot64(v.data(), v.data(), 8));
    const auto distortion = [&](const float* thresholds, const float* levels) {
      double sum = 0;
      for (float& x : v) {
        const double u = std::fabs(x) / norm;
        const auto t = std::lower_bound(thresholds, thresholds + 7, u) - thresholds;
        sum += (u - levels[t]) * (u - levels[t]);
      }
      return sum;
    };
    ours += distortion(RsqQuantiser().thresholds.data(), RsqQuantiser().levels.data());
    theirs += distortion(tau, a);
  }
  EXPECT_LT(ours, theirs);
}

TEST(Half, AllPatternsAgreeWithArithmetic) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const int exponent = (h >> 10) & 31, mantissa = h & 1023;
    if (exponent == 31) {
      EXPECT_FALSE(std::isfinite(HalfToFloat(static_cast<uint16_t>(h))));
      continue;
    }
    const double size = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(HalfToFloat(static_cast<uint16_t>(h)), static_cast<float>(h & 0x8000 ? -size : size)) << h;
  }
}

TEST(Formulas, FloatToHalfRoundsToTheNearestHalf) {
  for (uint32_t h = 0; h < 0x7C00; ++h) {  // every finite half, and the numbers between it and the next
    const float low = HalfToFloat(static_cast<uint16_t>(h)), high = HalfToFloat(static_cast<uint16_t>(h + 1));
    ASSERT_EQ(FloatToHalf(low), h);
    ASSERT_EQ(FloatToHalf(-low), h | 0x8000u);
    if (h == 0x7BFF) break;
    const float middle = low + (high - low) / 2;  // exact
    ASSERT_EQ(FloatToHalf(middle), h + (h & 1));  // ties to even
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, low)), h);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, high)), h + 1);
  }
  EXPECT_EQ(FloatToHalf(65519.f), 0x7BFF);
  EXPECT_EQ(FloatToHalf(65520.f), 0x7C00);
  EXPECT_EQ(FloatToHalf(-1e30f), 0xFC00);
}

TEST(Factor, RelativeErrorIsBelowOneIn64WithinEightOctaves) {
  std::mt19937 rng(3);
  std::uniform_real_distribution<float> octaves(-7.9f, 0);
  for (int i = 0; i < 10000; ++i) {
    const float largest = std::exp2(octaves(rng) * 5), f = largest * std::exp2(octaves(rng));
    const uint32_t base = FactorBase(largest, f);
    EXPECT_EQ(base & kWideFactors, 0u);
    EXPECT_LE(std::fabs(DecodeFactor(EncodeFactor(f, base), base) / f - 1), 1 / 64.0 + 1e-6);
  }
  EXPECT_EQ(DecodeFactor(EncodeFactor(0, FactorBase(0, 0)), FactorBase(0, 0)), 0);
  EXPECT_EQ(EncodeFactor(5.0f, FactorBase(1.0f, .5f)), 255);
}

TEST(Factor, RelativeErrorIsBelowOneIn32WithinSixteenOctavesAndNothingIsNothing) {
  std::mt19937 rng(4);
  std::uniform_real_distribution<float> octaves(-15.87f, 0), more(-40, 0);
  for (int i = 0; i < 10000; ++i) {
    const float largest = std::exp2(octaves(rng) * 5), f = largest * std::exp2(octaves(rng));
    for (const float smallest : {0.0f, largest * 1e-4f, std::min(f, largest / 300)}) {
      const uint32_t base = FactorBase(largest, smallest);
      EXPECT_EQ(base & kWideFactors, kWideFactors);
      EXPECT_LE(std::fabs(DecodeFactor(EncodeFactor(f, base), base) / f - 1), 1 / 32.0 + 1e-6);
      EXPECT_EQ(DecodeFactor(EncodeFactor(0, base), base), 0);
      const float far = largest * std::exp2(more(rng));  // no farther off than the least that can be said
      EXPECT_NEAR(DecodeFactor(EncodeFactor(far, base), base), far, std::max(far / 32, largest / 65536) * 1.1f);
    }
  }
  EXPECT_EQ(EncodeFactor(5.0f, FactorBase(1.0f, 0)), 255);
}

TEST(Exp, CloseToStdExpAndZeroFarDown) {
  for (float x = 0; x > -86; x -= .0137f) {
    EXPECT_NEAR(ExpNonPositive(x) / std::exp(static_cast<double>(x)), 1, 3e-7) << x;
  }
  EXPECT_EQ(ExpNonPositive(0), 1);
  EXPECT_EQ(ExpNonPositive(-100), 0);
  EXPECT_EQ(ExpNonPositive(-INFINITY), 0);
}

TEST(Log, CloseToStdLogFromTheSmallestNormalToTheLargest) {
  for (float x = 1.2e-38f; x < 3e38f; x *= 1.0007f) {
    const double want = std::log(static_cast<double>(x));
    ASSERT_NEAR(LogPositive(x), want, 2e-7 + std::fabs(want) * 1.2e-7) << x;
  }
  EXPECT_EQ(LogPositive(1.0f), 0.0f);
}

TEST(OrderedBits, OrderAsFloatsDoAndComeBack) {
  const float values[] = {-INFINITY, -3e38f, -1.5f, -1e-40f, 0.0f, 1e-40f, 2.0f, 3e38f, INFINITY};
  for (size_t i = 0; i < std::size(values); ++i) {
    EXPECT_EQ(OrderedFloat(OrderedBits(values[i])), values[i]);
    if (i == 0) continue;
    EXPECT_LT(OrderedBits(values[i - 1]), OrderedBits(values[i]));
  }
  EXPECT_EQ(OrderedBits(-0.0f), OrderedBits(0.0f));
}

// A vector's scale, or a table's, is 0 both ways where it is zero or its inverse is beyond fp32.
TEST(Scales, TinyVectorsAreZeroAndTheLargestIsTheEnd) {
  for (const float largest : {0.0f, 1e-44f}) {
    EXPECT_EQ(Scale8Of(largest).inverse, 0.0f);
    EXPECT_EQ(Scale8Of(largest).step, 0.0f);
    EXPECT_EQ(TableScaleOf(largest).inverse, 0.0f);
    EXPECT_EQ(TableScaleOf(largest).step, 0.0f);
  }
  for (const float largest : {1e-30f, 1.0f, 3e38f}) {
    EXPECT_EQ(ToInt8(largest, Scale8Of(largest).inverse), 127);
    EXPECT_EQ(ToInt8(-largest, Scale8Of(largest).inverse), -127);
    EXPECT_EQ(TableEntry(largest, TableScaleOf(largest).inverse), kTableBias + kTableMax);
    EXPECT_EQ(TableEntry(-largest, TableScaleOf(largest).inverse), kTableBias - kTableMax);
    EXPECT_NEAR(TableScaleOf(largest).step * kTableMax / largest, 1, 1e-6);
  }
}

TEST(RotationSign, IsBalancedAndDependsOnTheSeed) {
  int sum = 0, differ = 0;
  for (int i = 0; i < 4096; ++i) {
    sum += static_cast<int>(RotationSign(1, i));
    differ += RotationSign(1, i) != RotationSign(2, i);
  }
  EXPECT_LT(std::abs(sum), 200);
  EXPECT_NEAR(differ, 2048, 200);
  EXPECT_EQ(SplitMix64(0, 0), 0xE220A8397B1DCDAFull);  // the generator's published first output
}

// The tiers read straight from the paper's words: a cluster is in tier t iff fewer than ceil(n rho cut_t) keys rank
// before it.
TEST(Collision, TiersAreWhatThePaperSays) {
  const double cuts[] = {.05, .15, .30, .50, .75, 1.0};
  for (const int dim : {64, 80, 128}) {
    const std::vector<float> query = Gaussian(dim, 5);
    std::mt19937 rng(7);
    std::vector<uint32_t> counts(static_cast<size_t>(dim) / 8 * 256);
    for (uint32_t& c : counts) c = rng() % 3 == 0 ? 0 : rng() % 40;
    for (int b = 1; b < dim / 8; ++b) {  // every subvector counts the same keys
      std::copy(counts.begin(), counts.begin() + 256, counts.begin() + b * 256);
      std::shuffle(counts.begin() + b * 256, counts.begin() + (b + 1) * 256, rng);
    }
    int64_t n = 0;
    for (int i = 0; i < 256; ++i) n += counts[i];
    const double rho = .25;
    std::vector<uint8_t> tiers;
    const int table_bytes = (dim / 8 + 3) / 4 * 4;
    MakeTiers(query.data(), dim, counts.data(), n, rho, table_bytes, &tiers);
    for (int b = 0; b < dim / 8; ++b) {
      for (int id = 0; id < 256; ++id) {
        const auto score = [&](int c) {
          float sum = 0;
          for (int j = 0; j < 8; ++j) sum += (c >> j) & 1 ? query[b * 8 + j] : -query[b * 8 + j];
          return sum;
        };
        int64_t before = 0;
        for (int other = 0; other < 256; ++other) {
          const bool first = score(other) > score(id) || (score(other) == score(id) && other < id);
          if (first) before += counts[b * 256 + other];
        }
        int weight = 0;
        for (int t = 5; t >= 0; --t) {
          if (before < std::ceil(static_cast<double>(n) * rho * cuts[t])) weight = 6 - t;
        }
        ASSERT_EQ(tiers[b * 256 + id], weight) << "subvector " << b << " centroid " << id;
      }
    }
    for (size_t i = static_cast<size_t>(dim) / 8 * 256; i < tiers.size(); ++i) ASSERT_EQ(tiers[i], 0);
  }
}

TEST(Select, EqualsAFullSortWithTiesToTheLowestPlace) {
  std::mt19937 rng(11);
  std::vector<float> scratch;
  std::vector<uint32_t> got;
  for (const size_t n : {1, 2, 15, 16, 17, 255, 2048, 2049, 5000, 40001}) {
    for (const int distinct : {1, 3, 50, 1 << 30}) {
      std::vector<float> scores(n);
      for (float& s : scores) s = static_cast<float>(static_cast<int>(rng() % distinct)) - distinct / 2.0f;
      std::vector<uint32_t> order(n);
      for (size_t i = 0; i < n; ++i) order[i] = static_cast<uint32_t>(i);
      std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
      for (const size_t m : {size_t{0}, size_t{1}, n / 20, n / 2, n - 1, n, n + 5}) {
        std::vector<uint32_t> want(order.begin(), order.begin() + std::min(m, n));
        std::sort(want.begin(), want.end());
        OnEveryTarget([&](const std::string&) {
          SelectLargest(scores.data(), n, m, &scratch, &got);
          ASSERT_EQ(got, want) << "n " << n << " m " << m << " distinct " << distinct;
        });
      }
    }
  }
}

// Samples that mislead: sorted scores, and scores whose sampled places tell nothing of the others.
TEST(Select, IsExactWhateverASampleSays) {
  constexpr size_t kCount = 65536;
  std::vector<std::vector<float>> cases(3, std::vector<float>(kCount));
  for (size_t i = 0; i < kCount; ++i) {
    cases[0][i] = static_cast<float>(i);
    cases[1][i] = i % 256 == 0 ? 1e30f : static_cast<float>(i * 7919 % kCount);
    cases[2][i] = i % 256 == 0 ? -1e30f : static_cast<float>(i * 7919 % 97);
  }
  std::vector<float> scratch;
  std::vector<uint32_t> got;
  for (const auto& scores : cases) {
    std::vector<uint32_t> order(kCount);
    for (size_t i = 0; i < kCount; ++i) order[i] = static_cast<uint32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
    for (const size_t m : {size_t{1}, size_t{1000}, kCount / 4, kCount - 1}) {
      std::vector<uint32_t> want(order.begin(), order.begin() + static_cast<int64_t>(m));
      std::sort(want.begin(), want.end());
      OnEveryTarget([&](const std::string&) {
        SelectLargest(scores.data(), kCount, m, &scratch, &got);
        ASSERT_EQ(got, want) << m;
      });
    }
  }
}

TEST(Select, SurvivesScoresThatSpanManyOrdersOfMagnitude) {
  std::vector<float> scores(10240), scratch;
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = std::ldexp(1.0f, static_cast<int>(i % 200) - 100);
  scores[7] = 3e38f;
  scores[8] = -3e38f;
  std::vector<uint32_t> got;
  SelectLargest(scores.data(), scores.size(), 103, &scratch, &got);
  ASSERT_EQ(got.size(), 103u);
  EXPECT_EQ(got.front(), 7u);
  for (const uint32_t i : got) EXPECT_TRUE(i == 7 || i % 200 >= 198) << i;
}

}  // namespace
}  // namespace seine
