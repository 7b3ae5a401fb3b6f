// Scores and sums of keys: on every target the bits of the plain twin, and near the papers' formulas in float64.
#include "kernels/ops/score_keys/score_keys_cpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/same_bits.h"

namespace seine {
namespace {

constexpr KeyScore kKinds[] = {KeyScore::kNegNorm, KeyScore::kDot,  KeyScore::kNegCosine, KeyScore::kL2,
                               KeyScore::kL1,      KeyScore::kLinf, KeyScore::kUnitL2};
constexpr DType kKeyTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

double Exact(KeyScore kind, const float* k, const float* a, int dim) {
  const double norm = std::sqrt(Dot64(k, k, dim));
  double l1 = 0, l2 = 0, largest = 0, unit = 0;
  for (int j = 0; j < dim; ++j) {
    const double away = std::fabs(static_cast<double>(k[j]) - a[j]);
    l1 += away;
    l2 += away * away;
    largest = std::max(largest, away);
    const double d = (norm > 0 ? k[j] / norm : 0) - a[j];
    unit += d * d;
  }
  switch (kind) {
    case KeyScore::kNegNorm:
      return -norm;
    case KeyScore::kDot:
      return Dot64(k, a, dim);
    case KeyScore::kNegCosine:
      return norm > 0 ? -Dot64(k, a, dim) / norm : 0;
    case KeyScore::kL2:
      return std::sqrt(l2);
    case KeyScore::kL1:
      return l1;
    case KeyScore::kLinf:
      return largest;
    case KeyScore::kUnitL2:
      return std::sqrt(unit);
  }
  return 0;
}

// n keys, one of them zero; an anchor of norm 1 near their mean, as the scorers have.
std::vector<float> WithAZero(int n, int dim) {
  std::vector<float> keys = Keys(n, dim, dim + n);
  std::fill_n(keys.begin() + static_cast<int64_t>(n / 2) * dim, dim, 0.0f);
  return keys;
}
std::vector<float> Anchor(int dim) {
  std::vector<float> a = Gaussian(dim, 5);
  const float norm = static_cast<float>(std::sqrt(Dot64(a.data(), a.data(), dim)));
  for (float& x : a) x /= norm;
  return a;
}

TEST(KeyScores, EveryKindOnEveryTarget) {
  for (const int dim : kTestHeadDims) {
    const std::vector<float> anchor = Anchor(dim);
    for (const DType dtype : kKeyTypes) {
      for (const int n : {1, 15, 16, 17, 37}) {
        const Typed typed(WithAZero(n, dim), dim, dtype);
        for (const KeyScore kind : kKinds) {
          SCOPED_TRACE(testing::Message()
                       << "dim " << dim << " type " << int(dtype) << " n " << n << " kind " << int(kind));
          std::vector<float> out(n);
          ExpectSameBits([&] {
            std::fill(out.begin(), out.end(), -7.0f);
            cpu::ScoreKeys(typed.rows, n, dim, kind, anchor.data(), out.data());
            std::vector<uint8_t> bits;
            Put(&bits, out.data(), out.size());
            return bits;
          });
          for (int i = 0; i < n; ++i) {
            const float* row = typed.values.data() + static_cast<size_t>(i) * dim;
            const double want = Exact(kind, row, anchor.data(), dim);
            const double size = 1 + std::sqrt(Dot64(row, row, dim));
            EXPECT_NEAR(out[i], want, 3e-7 * std::sqrt(dim) * (kind == KeyScore::kL1 ? dim : size)) << i;
          }
        }
      }
    }
  }
}

TEST(KeyScores, FiniteForEveryKeyThatAnIndexTakes) {
  constexpr int kDim = 64;
  std::vector<float> keys(2 * kDim, 0.0f);
  keys[0] = 1.8e19f;  // its square is finite, that of twice as much is not
  const std::vector<float> anchor = {keys.begin(), keys.begin() + kDim};
  std::vector<float> opposite = anchor;
  opposite[0] = -opposite[0];
  const ConstRows rows = {keys.data(), kDim * sizeof(float), DType::kFloat32};
  for (const KeyScore kind : kKinds) {
    if (kind == KeyScore::kDot || kind == KeyScore::kNegCosine || kind == KeyScore::kUnitL2) continue;  // unit anchors
    OnEveryTarget([&](const std::string&) {
      float out[2];
      cpu::ScoreKeys(rows, 2, kDim, kind, opposite.data(), out);
      EXPECT_TRUE(std::isfinite(out[0])) << int(kind);
      EXPECT_TRUE(std::isfinite(out[1])) << int(kind);
    });
  }
}

TEST(KeyScores, SumsOnEveryTargetAndInAnySplit) {
  for (const int dim : kTestHeadDims) {
    for (const DType dtype : kKeyTypes) {
      for (const bool unit : {false, true}) {
        const int n = 131;
        const Typed typed(WithAZero(n, dim), dim, dtype);
        std::vector<double> sums(dim);
        ExpectSameBits([&] {
          std::fill(sums.begin(), sums.end(), 0.25);
          cpu::AddKeys(typed.rows, n, dim, unit, sums.data());
          std::vector<uint8_t> bits;
          Put(&bits, sums.data(), sums.size());
          return bits;
        });
        std::vector<double> split(dim, 0.25);
        for (int first = 0, count = 1; first < n; first += count, count = count * 2 + 1) {
          const ConstRows rest = {typed.rows.row(first), typed.rows.stride_bytes, dtype};
          cpu::AddKeys(rest, std::min(count, n - first), dim, unit, split.data());
        }
        EXPECT_EQ(split, sums);
        for (int j = 0; j < dim; ++j) {
          double want = 0.25;
          for (int i = 0; i < n; ++i) {
            const float* row = typed.values.data() + static_cast<size_t>(i) * dim;
            const double norm = unit ? std::sqrt(Dot64(row, row, dim)) : 1;
            want += norm > 0 ? row[j] / norm : 0;
          }
          EXPECT_NEAR(sums[j], want, 1e-6 * n);
        }
      }
    }
  }
}

// Groups of kSumGroup by place in a window, each from nothing, then the groups in order: by hand.
std::vector<double> SumsByHand(const std::vector<float>& values, int n, int dim, const KeyWindows& windows) {
  std::vector<double> sums(windows.count * dim);
  for (int64_t w = 0; w < windows.count; ++w) {
    const int64_t end = w + 1 < windows.count ? windows.begins[w + 1] : n;
    for (int64_t first = windows.count == 1 ? 0 : windows.begins[w]; first < end; first += kSumGroup) {
      for (int j = 0; j < dim; ++j) {
        double group = 0;
        for (int64_t i = first; i < std::min(end, first + kSumGroup); ++i) group += values[i * dim + j];
        sums[w * dim + j] += group;
      }
    }
  }
  return sums;
}

// A head's keys in chunks of a length that divides nothing.
struct ChunkedKeys {
  static constexpr int kChunk = 90;
  ChunkedKeys(const std::vector<float>& keys, int n, int dim) {
    for (int i = 0; i < n; i += kChunk) chunks.push_back(reinterpret_cast<const uint8_t*>(&keys[size_t(i) * dim]));
    rows = {chunks.data(), kChunk, dim, DType::kFloat32};
  }
  std::vector<const uint8_t*> chunks;
  ChunkedRows rows;
};

TEST(KeyScores, SumsRunByGroupsOfAWindowsPlaces) {
  constexpr int kDim = 80;
  for (const int n : {0, 1, 255, 256, 257, 1400}) {
    const std::vector<float> keys = Keys(n, kDim, 3 + n);
    const ChunkedKeys chunked(keys, n, kDim);
    for (const int64_t window : {0, 1, 64, 256, 400, 512, 2000}) {
      for (const uint32_t seed : {0, 7}) {
        SCOPED_TRACE(testing::Message() << n << " keys, window " << window << ", seed " << seed);
        const MadeUpWindows windows(n, window, seed);
        std::vector<double> sums(windows.view().count * kDim, -7.0);
        const SumTask task = {chunked.rows, n, /*unit=*/false, windows.view(), sums.data()};
        const std::vector<double> want = SumsByHand(keys, n, kDim, windows.view());
        OnEveryTarget([&](const std::string&) {
          cpu::SumKeys(task);
          EXPECT_EQ(sums, want);
        });
      }
    }
  }
}

TEST(KeyScores, KeysOfAWindowShareItsAnchor) {
  constexpr int kDim = 64, kKeys = 700;
  const std::vector<float> keys = Keys(kKeys, kDim, 4);
  const ChunkedKeys chunked(keys, kKeys, kDim);
  for (const int64_t window : {1, 50, 256, 2000}) {
    const MadeUpWindows windows(kKeys, window, 5);
    const KeyWindows view = windows.view();
    const std::vector<float> anchors = Gaussian(static_cast<size_t>(view.count) * kDim, 6);
    std::vector<float> out(kKeys);
    cpu::ScoreKeys({chunked.rows, kKeys, KeyScore::kL2, anchors.data(), view, out.data()});
    for (int64_t w = 0, i = 0; i < kKeys; ++i) {
      if (w + 1 < view.count && view.begins[w + 1] == i) ++w;
      EXPECT_NEAR(out[i], Exact(KeyScore::kL2, &keys[i * kDim], &anchors[w * kDim], kDim), 1e-4) << i;
    }
  }
}

TEST(KeyScores, SumsThatRunOnAreThoseOfOnePass) {
  constexpr int kDim = 64, kKeys = 1100;
  const Typed typed(WithAZero(kKeys, kDim), kDim, DType::kBFloat16);
  for (const bool unit : {false, true}) {
    std::vector<double> want(kDim), open(kDim), all(kDim), rest(kDim);
    cpu::AddToSums(typed.rows, kKeys, kDim, unit, 0, want.data(), open.data());
    for (int first = 0, count = 1; first < kKeys; first += count, count = count * 2 + 1) {
      const ConstRows rows = {typed.rows.row(first), typed.rows.stride_bytes, typed.rows.dtype};
      cpu::AddToSums(rows, std::min(count, kKeys - first), kDim, unit, first, all.data(), rest.data());
    }
    EXPECT_EQ(all, want);
    EXPECT_EQ(rest, open);
  }
}

}  // namespace
}  // namespace seine
