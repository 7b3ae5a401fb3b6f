// Weighted sums of rows and attention: on every target the bits of the plain twin, and near float64.
#include "kernels/cpu/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/cpu/weighted_rows.h"
#include "tests/kernels/same_bits.h"

namespace seine {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

TEST(WeightedRows, OnEveryTargetAndNearFloat64) {
  for (const int dim : kHeadDims) {
    for (const DType dtype : kTypes) {
      for (const int n : {1, 63, 64, 65, 200}) {
        constexpr int kGroup = 7;  // four, then three
        const Typed typed(Keys(n, dim, dim), dim, dtype);
        const int stride = n + 3;
        const std::vector<float> weights = Gaussian(kGroup * stride, n);
        std::vector<float> out(kGroup * dim);
        ExpectSameBits([&] {
          std::fill(out.begin(), out.end(), 0.5f);
          cpu::AddRows(typed.rows, n, dim, weights.data(), kGroup, stride, out.data());
          std::vector<uint8_t> bits;
          Put(&bits, out.data(), out.size());
          return bits;
        });
        for (int g = 0; g < kGroup; ++g) {
          for (int j = 0; j < dim; ++j) {
            double want = 0.5, size = 0.5;
            for (int i = 0; i < n; ++i) {
              const double term = double{weights[g * stride + i]} * typed.values[static_cast<size_t>(i) * dim + j];
              want += term;
              size += std::fabs(term);
            }
            ASSERT_NEAR(out[g * dim + j], want, 1e-6 * size) << dim << " " << n << " " << g << " " << j;
          }
        }
      }
    }
  }
}

TEST(ExpInPlace, OnEveryTargetAndNearMath) {
  for (const size_t n : {0, 1, 15, 16, 17, 100}) {
    const std::vector<float> x = Gaussian(static_cast<int>(n), 3);
    std::vector<float> out, lanes;
    ExpectSameBits([&] {
      out = x;
      lanes.assign(16, 0.5f);
      cpu::ExpInPlace(out.data(), n, 0.25f, lanes.data());
      std::vector<uint8_t> bits;
      Put(&bits, out.data(), n);
      Put(&bits, lanes.data(), 16);
      return bits;
    });
    double sum = 8;
    for (size_t i = 0; i < n; ++i) {
      EXPECT_NEAR(out[i], std::exp(std::min(x[i] - 0.25, 0.0)), 1e-6);
      sum += out[i];
    }
    EXPECT_NEAR(std::accumulate(lanes.begin(), lanes.end(), 0.0), sum, 1e-4);
  }
}

// Stored rows of one head in chunks of 48, as an index keeps them.
struct Store {
  Store(int n, int dim, DType dtype, int seed) {
    const std::vector<float> x = Keys(n, dim, seed);
    const Typed typed(x, dim, dtype);
    values = typed.values;
    constexpr int kChunk = 48;
    for (int first = 0; first < n; first += kChunk) {
      auto& chunk = chunks.emplace_back(kChunk * dim * SizeOf(dtype));
      for (int i = first; i < std::min(first + kChunk, n); ++i) {
        memcpy(chunk.data() + (i - first) * dim * SizeOf(dtype), typed.rows.row(i), dim * SizeOf(dtype));
      }
    }
    for (const auto& chunk : chunks) pointers.push_back(chunk.data());
    rows = {pointers.data(), kChunk, dim, dtype};
  }
  std::vector<float> values;
  std::vector<std::vector<uint8_t>> chunks;
  std::vector<const uint8_t*> pointers;
  ChunkedRows rows;
};

// Attention of head g over its dense rows and its set, in float64. Returns the log-sum-exp.
double Exact(const cpu::AttentionTask& task, const Store& keys, const Store& values, int g, std::vector<double>* out) {
  const int dim = task.keys.head_dim;
  std::vector<int64_t> seen;
  for (const cpu::PlaceRun& run : task.dense) {
    for (int64_t i = run.begin; i < run.end; ++i) seen.push_back(i);
  }
  if (task.sets != nullptr) {
    for (const int32_t i : (*task.sets)[task.sets->size() == 1 ? 0 : g]) seen.push_back(i);
  }
  double sum = 0;
  out->assign(dim, 0.0);
  for (const int64_t i : seen) {
    const double weight = std::exp(double{task.scale} * Dot64(&keys.values[i * dim], task.queries + g * dim, dim));
    sum += weight;
    for (int j = 0; j < dim; ++j) (*out)[j] += weight * values.values[i * dim + j];
  }
  for (double& x : *out) x /= sum;
  return std::log(sum);
}

void ExpectExact(const cpu::AttentionTask& task, const Store& keys, const Store& values) {
  const int dim = task.keys.head_dim;
  std::vector<float> output(task.group * dim), lse(task.group);
  ExpectSameBits([&] {
    cpu::Attend(task, output.data(), lse.data());
    std::vector<uint8_t> bits;
    Put(&bits, output.data(), output.size());
    Put(&bits, lse.data(), lse.size());
    return bits;
  });
  for (int g = 0; g < task.group; ++g) {
    std::vector<double> want;
    EXPECT_NEAR(lse[g], Exact(task, keys, values, g, &want), 1e-5) << g;
    for (int j = 0; j < dim; ++j) ASSERT_NEAR(output[g * dim + j], want[j], 1e-5) << g << " " << j;
  }
}

TEST(Attention, DenseRunsAndSetsOfEveryKind) {
  for (const int dim : kHeadDims) {
    for (const DType dtype : kTypes) {
      constexpr int kRows = 150, kGroup = 5;
      const Store keys(kRows, dim, dtype, 1), values(kRows, dim, dtype, 2);
      const std::vector<float> queries = Gaussian(kGroup * dim, 3);
      cpu::AttentionTask task;
      task.queries = queries.data();
      task.group = kGroup;
      task.scale = 0.5f / std::sqrt(static_cast<float>(dim));
      task.keys = keys.rows;
      task.values = values.rows;
      task.dense = {{0, 13}, {100, 150}};
      ExpectExact(task, keys, values);
      const std::vector<std::vector<int32_t>> shared = {{13, 47, 48, 99}},
                                              own = {{13}, {}, {20, 21, 22}, {95, 96, 99}, {14}};
      task.sets = &shared;
      ExpectExact(task, keys, values);
      task.sets = &own;
      ExpectExact(task, keys, values);
      task.dense = {{0, 0}, {150, 150}};
      task.sets = &shared;
      ExpectExact(task, keys, values);
    }
  }
}

TEST(Attention, KnownLogitsSpareTheKeys) {
  constexpr int kDim = 64;
  const Store keys(64, kDim, DType::kFloat16, 1), values(64, kDim, DType::kFloat16, 2);
  const std::vector<float> queries = Gaussian(2 * kDim, 3);
  const std::vector<std::vector<int32_t>> sets = {{3, 9}, {50}};
  cpu::AttentionTask task;
  task.queries = queries.data();
  task.group = 2;
  task.keys = keys.rows;
  task.values = values.rows;
  task.sets = &sets;
  const std::vector<std::vector<float>> logits = {{1.0f, 0.0f}, {-2.0f}};
  task.logits = &logits;
  std::vector<float> output(2 * kDim), lse(2);
  EXPECT_EQ(cpu::Attend(task, output.data(), lse.data()), 3);
  EXPECT_NEAR(lse[0], std::log(std::exp(1.0) + 1), 1e-6);
  EXPECT_NEAR(lse[1], -2, 1e-6);
  const double share = 1 / (1 + std::exp(-1.0));
  for (int j = 0; j < kDim; ++j) {
    EXPECT_NEAR(output[j], share * values.values[3 * kDim + j] + (1 - share) * values.values[9 * kDim + j], 1e-6);
    EXPECT_EQ(output[kDim + j], values.values[50 * kDim + j]);
  }
}

TEST(Attention, NothingSeenIsZeroAndMinusInfinity) {
  constexpr int kDim = 64;
  const std::vector<float> queries = Gaussian(kDim, 3);
  const std::vector<std::vector<int32_t>> none = {{}};
  cpu::AttentionTask task;
  task.queries = queries.data();
  task.keys = task.values = {nullptr, 64, kDim, DType::kFloat32};
  task.dense = {{0, 0}};
  for (const auto* sets : {static_cast<const std::vector<std::vector<int32_t>>*>(nullptr), &none}) {
    task.sets = sets;
    std::vector<float> output(kDim, 7.0f), lse(1);
    EXPECT_EQ(cpu::Attend(task, output.data(), lse.data()), 0);
    EXPECT_EQ(lse[0], -INFINITY);
    EXPECT_EQ(output, std::vector<float>(kDim, 0.0f));
  }
}

// Logits far apart neither overflow nor lose the smaller ones.
TEST(Attention, LargeLogits) {
  constexpr int kDim = 64;
  const Store keys(64, kDim, DType::kFloat32, 1), values(64, kDim, DType::kFloat32, 2);
  std::vector<float> queries = Gaussian(kDim, 3);
  for (float& x : queries) x *= 1000;
  cpu::AttentionTask task;
  task.queries = queries.data();
  task.keys = keys.rows;
  task.values = values.rows;
  task.dense = {{0, 64}};
  std::vector<float> output(kDim), lse(1);
  cpu::Attend(task, output.data(), lse.data());
  EXPECT_TRUE(std::isfinite(lse[0]));
  for (const float x : output) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace seine
