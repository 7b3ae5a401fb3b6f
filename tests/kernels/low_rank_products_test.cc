// Products with low-rank rows against float64 over the rows as they read, and the same bits on every target.
#include "kernels/ops/low_rank/low_rank_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "tests/kernels/low_rank_data.h"
#include "tests/kernels/same_bits.h"

namespace seine {
namespace {

constexpr int kQueryHeads = 5;

// Tokens of two bases, some of them full-rank, one run without a basis; rows as they read beside them.
struct Case {
  Case(Backend* backend, int dim, int rank, DType dtype, const RopeTurns& rope)
      : head(backend, dim, rank, dtype, {3, 300, 40, 6, 9}, 7, dim + rank), queries(Gaussian(kQueryHeads * dim, 4)) {
    tokens.runs = head.runs;
    tokens.rows = head.rows;
    tokens.rows.runs = tokens.runs.data();
    tokens.rows.rope = rope;
    for (int32_t p = 0; p < 400; ++p) positions.push_back(3 * p + 1);
    for (int c = 0; c < 4; ++c) chunks.push_back(reinterpret_cast<const uint8_t*>(&positions[c * 100]));
    tokens.position_chunks = chunks.data();
    tokens.position_chunk_tokens = 100;
    for (int64_t place = 7; place < head.end; ++place) {
      if (place % 4 != 2) places.push_back(static_cast<int32_t>(place));
    }
    std::vector<int32_t> at;
    for (const int32_t place : places) at.push_back(tokens.position(place));
    rows.resize(places.size() * dim);
    cpu::Rebuild({tokens.rows, places.data(), at.data(), static_cast<int64_t>(places.size()), rows.data()});
    weights = Gaussian(static_cast<int>(kQueryHeads * places.size()), 5);
  }
  LowRankHead head;
  std::vector<float> queries, rows, weights;
  std::vector<int32_t> positions, places;
  std::vector<const uint8_t*> chunks;
  LowRankTokens tokens;
};

class LowRankProducts : public ::testing::TestWithParam<DType> {
 protected:
  const std::unique_ptr<Backend> backend = MakeCpuBackend(1);
};

TEST_P(LowRankProducts, DotsAreThoseOfTheRows) {
  for (const int dim : {64, 80, 256}) {
    const std::vector<double> frequencies = Frequencies(dim);
    for (const int rank : {1, 16, 33, dim}) {
      for (const bool turns : {false, true}) {
        const Case c(backend.get(), dim, rank, GetParam(), {turns ? frequencies.data() : nullptr, false});
        const auto n = static_cast<int64_t>(c.places.size());
        std::vector<float> out(kQueryHeads * n), few(2 * n);
        ExpectSameBits([&] {
          cpu::LowRankDots dots(c.tokens, c.queries.data(), kQueryHeads);
          dots.Dot(c.places.data(), n, 0, kQueryHeads, out.data(), n);
          dots.Dot(c.places.data(), n, 3, 2, few.data(), n);
          std::vector<uint8_t> bits;
          Put(&bits, out.data(), out.size());
          return bits;
        });
        EXPECT_EQ(few, std::vector<float>(out.begin() + 3 * n, out.end()));  // whatever heads come with it
        for (int g = 0; g < kQueryHeads; ++g) {
          for (int64_t i = 0; i < n; ++i) {
            double want = 0, size = 0;
            for (int j = 0; j < dim; ++j) {
              const double term = double{c.queries[g * dim + j]} * c.rows[i * dim + j];
              want += term, size += std::fabs(term);
            }
            ASSERT_NEAR(out[g * n + i], want, 2e-6 * size) << dim << " " << rank << " " << g << " " << i;
          }
        }
      }
    }
  }
}

TEST_P(LowRankProducts, SumsAreThoseOfTheRows) {
  for (const int dim : {64, 80, 256}) {
    for (const int rank : {1, 16, 33, dim}) {
      const Case c(backend.get(), dim, rank, GetParam(), {});
      const auto n = static_cast<int64_t>(c.places.size());
      std::vector<float> out(kQueryHeads * dim);
      ExpectSameBits([&] {
        std::fill(out.begin(), out.end(), .5f);
        cpu::LowRankSums sums(c.tokens, kQueryHeads, out.data());
        sums.Add(c.places.data(), n, c.weights.data(), 0, kQueryHeads, n);
        sums.Add(c.places.data() + 5, 20, c.weights.data(), 2, 1, n);  // of one head, besides
        sums.Finish();
        std::vector<uint8_t> bits;
        Put(&bits, out.data(), out.size());
        return bits;
      });
      for (int g = 0; g < kQueryHeads; ++g) {
        for (int j = 0; j < dim; ++j) {
          double want = .5, size = .5;
          const auto add = [&](int64_t i, float weight) {
            const double term = double{weight} * c.rows[i * dim + j];
            want += term, size += std::fabs(term);
          };
          for (int64_t i = 0; i < n; ++i) add(i, c.weights[g * n + i]);
          for (int64_t i = 0; i < 20 && g == 2; ++i) add(i + 5, c.weights[i]);
          ASSERT_NEAR(out[g * dim + j], want, 4e-6 * size) << dim << " " << rank << " " << g << " " << j;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, LowRankProducts, ::testing::ValuesIn(kDTypes));

}  // namespace
}  // namespace seine
