// Weighted sums of rows and attention: on every target the bits of the plain twin, and near float64.
#include "kernels/ops/attend/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include "kernels/codecs/codec_util.h"
#include "kernels/ops/attend/window_means.h"
#include "kernels/ops/rows/weighted_rows.h"
#include "tests/kernels/low_rank_data.h"
#include "tests/kernels/same_bits.h"

namespace seine {
namespace {

TEST(WeightedRows, OnEveryTargetAndNearFloat64) {
  for (const int dim : kTestHeadDims) {
    for (const DType dtype : RowTypesOf(dim)) {
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

TEST(WeightedRows, Int8RowsEqualTheSameRowsInFloat) {
  for (const int dim : kTestHeadDims) {
    constexpr int kRows = 130, kGroup = 6;
    const size_t stride = WindowMeansBytes(dim);
    std::vector<int8_t> rows(kRows * stride), queries(kGroup * dim);
    std::mt19937 random(dim);
    for (int8_t& x : rows) x = static_cast<int8_t>(random() % 255 - 127);
    for (int8_t& x : queries) x = static_cast<int8_t>(random() % 255 - 127);
    const std::vector<float> weights = Gaussian(kGroup * kRows, 1);
    std::vector<float> sums, dots(kGroup * kRows), floats;
    ExpectSameBits([&] {
      sums.assign(kGroup * dim, 0.5f);
      cpu::AddRows8(rows.data(), stride, kRows, dim, weights.data(), kGroup, kRows, sums.data());
      cpu::DotRows8(rows.data(), stride, kRows, dim, queries.data(), kGroup, kRows, dots.data());
      std::vector<uint8_t> bits;
      Put(&bits, sums.data(), sums.size());
      Put(&bits, dots.data(), dots.size());
      return bits;
    });
    for (int i = 0; i < kRows; ++i) floats.insert(floats.end(), &rows[i * stride], &rows[i * stride] + dim);
    std::vector<float> want(kGroup * dim, 0.5f);
    cpu::AddRows({floats.data(), dim * sizeof(float), DType::kFloat32}, kRows, dim, weights.data(), kGroup, kRows,
                 want.data());
    EXPECT_EQ(sums, want);
    for (int g = 0; g < kGroup; ++g) {
      for (int i = 0; i < kRows; ++i) {
        int32_t dot = 0;
        for (int j = 0; j < dim; ++j) dot += rows[i * stride + j] * queries[g * dim + j];
        ASSERT_EQ(dots[g * kRows + i], static_cast<float>(dot));
      }
    }
  }
}

TEST(WindowMeans, AreTheMeansToAnEightBit) {
  for (const int dim : kTestHeadDims) {
    const std::vector<float> keys = Keys(kWindowTokens, dim, 1), values = Gaussian(kWindowTokens * dim, 2);
    std::vector<uint8_t> record(WindowMeansBytes(dim));
    ExpectSameBits([&] {
      EncodeWindowMeans(keys.data(), values.data(), dim, record.data());
      return record;
    });
    const WindowSteps steps = StepsOf(record.data(), dim);
    const auto* means = reinterpret_cast<const int8_t*>(record.data());
    for (int j = 0; j < dim; ++j) {
      double key = 0, value = 0;
      for (int i = 0; i < kWindowTokens; ++i) {
        key += keys[i * dim + j] / double{kWindowTokens};
        value += values[i * dim + j] / double{kWindowTokens};
      }
      EXPECT_NEAR(means[j] * steps.key, key, .51 * steps.key);
      EXPECT_NEAR(means[dim + j] * steps.value, value, .51 * steps.value);
    }
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
      auto& chunk = chunks.emplace_back(kChunk * BytesOf(dtype, dim));
      for (int i = first; i < std::min(first + kChunk, n); ++i) {
        memcpy(chunk.data() + (i - first) * BytesOf(dtype, dim), typed.rows.row(i), BytesOf(dtype, dim));
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
    double logit = double{task.scale} * Dot64(&keys.values[i * dim], task.queries + g * dim, dim);
    if (task.softcap > 0) logit = task.softcap * std::tanh(logit / task.softcap);
    const double weight = std::exp(logit);
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
  for (const int dim : kTestHeadDims) {
    const std::vector<DType> types = RowTypesOf(dim);
    for (size_t i = 0; i < types.size(); ++i) {  // values of another type than keys
      constexpr int kRows = 150, kGroup = 5;
      const Store keys(kRows, dim, types[i], 1), values(kRows, dim, types[(i + 1) % types.size()], 2);
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

// A soft cap bends every logit, those that the search has computed too.
TEST(Attention, SoftCapsBendLogits) {
  constexpr int kRows = 150, kGroup = 3, kDim = 64;
  const Store keys(kRows, kDim, DType::kFloat16, 1), values(kRows, kDim, DType::kFloat16, 2);
  const std::vector<float> queries = Gaussian(kGroup * kDim, 3);
  const std::vector<std::vector<int32_t>> own = {{13, 14}, {}, {20, 21, 22}};
  for (const float cap : {.5f, 5.0f, 50.0f}) {
    cpu::AttentionTask task;
    task.queries = queries.data(), task.group = kGroup;
    task.scale = .5f, task.softcap = cap;
    task.keys = keys.rows, task.values = values.rows;
    task.dense = {{0, 13}, {100, 150}};
    task.sets = &own;
    ExpectExact(task, keys, values);
    std::vector<std::vector<float>> logits(kGroup);
    for (int g = 0; g < kGroup; ++g) {
      for (const int32_t i : own[g]) {
        logits[g].push_back(task.scale *
                            static_cast<float>(Dot64(&keys.values[i * kDim], task.queries + g * kDim, kDim)));
      }
    }
    task.logits = &logits;
    ExpectExact(task, keys, values);
  }
}

// Keys or values of which places [kBegin, kEnd) are low-rank, as codes or full-rank, in several bases; the others lie
// in chunks, where the low-rank ones are holes.
struct LowStore {
  static constexpr int kRows = 1400, kBegin = 13, kEnd = 1200;
  LowStore(Backend* backend, int dim, int rank, DType dtype, int seed, const RopeTurns& rope)
      : head(backend, dim, rank, dtype, {300, 400, 30, 57, 400}, kBegin, seed), plain(kRows, dim, dtype, seed) {
    tokens = std::make_shared<LowRankTokens>();
    const auto chunk_of = [&](int place) {
      LowRankRun& run = tokens->runs.emplace_back();
      run.begin = place;
      run.full = static_cast<const uint8_t*>(plain.rows.row(place));
    };
    chunk_of(0);
    tokens->runs.insert(tokens->runs.end(), head.runs.begin(), head.runs.end());
    for (int place = kEnd; place < kRows; place = (place / 48 + 1) * 48) chunk_of(place);
    tokens->rows = head.rows;
    tokens->rows.runs = tokens->runs.data();
    tokens->rows.num_runs = static_cast<int32_t>(tokens->runs.size());
    tokens->rows.rope = rope;
    for (int c = 0; c < static_cast<int>(plain.pointers.size());
         ++c) {  // an access to one that is low-rank is an error
      if (c * 48 >= kBegin && (c + 1) * 48 <= kEnd) plain.pointers[c] = nullptr;
    }
    std::vector<int32_t> places(kEnd - kBegin);
    std::iota(places.begin(), places.end(), kBegin);
    cpu::Rebuild({tokens->rows, places.data(), places.data(), static_cast<int64_t>(places.size()),
                  &plain.values[int64_t{kBegin} * dim]});
  }
  LowRankHead head;
  Store plain;  // its values are all rows as they read
  std::shared_ptr<LowRankTokens> tokens;
};

// Codes are multiplied, rows beside them read as they are: all is as over the rebuilt rows.
TEST(Attention, RowsThatAreLowRank) {
  const auto backend = MakeCpuBackend(1);
  for (const int dim : {64, 80}) {
    const std::vector<double> frequencies = Frequencies(dim);
    for (const int rank : {1, 33, 48}) {
      for (const DType dtype : kDTypes) {
        constexpr int kGroup = 5;
        const RopeTurns turns = {rank == 33 ? frequencies.data() : nullptr, false};  // keys before RoPE
        LowStore keys(backend.get(), dim, rank, dtype, 1, turns), values(backend.get(), dim, rank, dtype, 7, {});
        const std::vector<float> queries = Gaussian(kGroup * dim, 3);
        std::vector<std::vector<int32_t>> shared(1), own = {{20}, {}, {30, 31, 700}, {1199}, {}};
        for (int i = LowStore::kBegin; i < LowStore::kEnd; i += 1 + i % 3) shared[0].push_back(i), own[4].push_back(i);
        cpu::AttentionTask task;
        task.queries = queries.data();
        task.group = kGroup;
        task.scale = 0.5f / std::sqrt(static_cast<float>(dim));
        task.keys = keys.plain.rows;
        task.values = values.plain.rows;
        task.low_keys = keys.tokens;
        task.low_values = values.tokens;
        task.low = {LowStore::kBegin, LowStore::kEnd};
        task.dense = {{0, 40}, {1100, LowStore::kRows}};  // part of it low-rank, as after a cut
        ExpectExact(task, keys.plain, values.plain);
        for (const auto* sets : {&shared, &own}) {
          task.sets = sets;
          task.dense = {{0, 13}, {1200, LowStore::kRows}};
          ExpectExact(task, keys.plain, values.plain);
          task.dense = {{1300, 1301}};
          ExpectExact(task, keys.plain, values.plain);
        }
        const std::vector<std::vector<int32_t>> beyond = {{0, 5, 12, 13, 1199, 1200, 1300, 1399}};  // not low-rank yet
        task.sets = &beyond;
        ExpectExact(task, keys.plain, values.plain);
      }
    }
  }
}

// Windows of a zone of 192 rows from place 13 on, as records in chunks of two.
struct Windows {
  static constexpr int kCount = 3, kBegin = 13;
  Windows(const Store& keys, const Store& values, int dim) {
    for (int w = 0; w < kCount; ++w) {
      if (w % 2 == 0) chunks.emplace_back(2 * WindowMeansBytes(dim));
      const int64_t first = int64_t{kBegin + w * kWindowTokens} * dim;
      EncodeWindowMeans(&keys.values[first], &values.values[first], dim,
                        chunks.back().data() + w % 2 * WindowMeansBytes(dim));
    }
    for (const auto& chunk : chunks) pointers.push_back(chunk.data());
  }
  std::vector<std::vector<uint8_t>> chunks;
  std::vector<const uint8_t*> pointers;
};

// The tail against float64 from the records as stored: window 0 wholly chosen by head 0, some of it by head 1, the
// others by nobody.
TEST(Attention, TheTailStandsForWhatIsNotChosen) {
  for (const int dim : kTestHeadDims) {
    constexpr int kRows = 240, kGroup = 2;
    const Store keys(kRows, dim, DType::kFloat16, 1), values(kRows, dim, DType::kFloat16, 2);
    const Windows windows(keys, values, dim);
    const std::vector<float> queries = Gaussian(kGroup * dim, 3, .2f);
    std::vector<std::vector<int32_t>> sets(2);
    for (int i = 0; i < kWindowTokens; ++i) sets[0].push_back(Windows::kBegin + i);
    sets[1] = {Windows::kBegin + 2, Windows::kBegin + 63};
    cpu::AttentionTask task;
    task.queries = queries.data();
    task.group = kGroup;
    task.scale = 1 / std::sqrt(static_cast<float>(dim));
    task.softcap = dim % 3 == 0 ? 0 : .25f;
    task.keys = keys.rows;
    task.values = values.rows;
    task.dense = {{0, 13}, {205, 240}};
    task.sets = &sets;
    task.num_windows = Windows::kCount;
    task.zone_begin = Windows::kBegin;
    task.windows = {windows.pointers.data(), 2};
    std::vector<float> output(kGroup * dim), lse(kGroup);
    ExpectSameBits([&] {
      EXPECT_EQ(cpu::Attend(task, output.data(), lse.data()), 2 * 48 + 64 + 2);
      std::vector<uint8_t> bits;
      Put(&bits, output.data(), output.size());
      Put(&bits, lse.data(), lse.size());
      return bits;
    });
    for (int g = 0; g < kGroup; ++g) {
      std::vector<double> seen, want(dim, 0.0);
      std::vector<int8_t> query8(dim);  // centres see the query in int8
      const double step8 = Quantise8(&queries[g * dim], dim, query8.data());
      const double seen_lse = Exact(task, keys, values, g, &seen);
      double sum = std::exp(seen_lse);
      for (int j = 0; j < dim; ++j) want[j] = sum * seen[j];
      for (int w = 0; w < Windows::kCount; ++w) {
        const int left = w > 0 ? 64 : g == 0 ? 0 : 62;
        const uint8_t* record = windows.pointers[w / 2] + w % 2 * WindowMeansBytes(dim);
        const auto* means = reinterpret_cast<const int8_t*>(record);
        const WindowSteps steps = StepsOf(record, dim);
        double dot = 0;
        for (int j = 0; j < dim; ++j) dot += query8[j] * step8 * means[j] * double{steps.key};
        double logit = dot * task.scale;
        if (task.softcap > 0) logit = task.softcap * std::tanh(logit / task.softcap);
        const double weight = left * std::exp(logit);
        sum += weight;
        for (int j = 0; j < dim; ++j) want[j] += weight * means[dim + j] * double{steps.value};
      }
      EXPECT_NEAR(lse[g], std::log(sum), 1e-5) << g;
      for (int j = 0; j < dim; ++j) ASSERT_NEAR(output[g * dim + j], want[j] / sum, 1e-5) << g << " " << j;
    }
    // A set that leaves nothing over: as without the tail.
    std::vector<int32_t> all(Windows::kCount * kWindowTokens);
    std::iota(all.begin(), all.end(), Windows::kBegin);
    sets = {all};
    std::vector<float> plain(kGroup * dim), plain_lse(kGroup);
    cpu::Attend(task, output.data(), lse.data());
    task.num_windows = 0;
    cpu::Attend(task, plain.data(), plain_lse.data());
    EXPECT_EQ(output, plain);
    EXPECT_EQ(lse, plain_lse);
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
