// Projection and reconstruction of low-rank rows against float64, and the same bits on every target.
#include "kernels/ops/low_rank/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/ops/low_rank/low_rank_cpu.h"
#include "tests/kernels/low_rank_data.h"
#include "tests/kernels/test_util.h"

namespace seine {
namespace {

struct Projected {
  Projected(int dim, int rank, int64_t count, DType dtype)
      : basis(RandomBasis(dim, rank, 1)),
        rows(Gaussian(count * dim, 2)),
        codes(count * rank * SizeOf(dtype) + 1, 0x5A),
        residuals(count * dim) {
    task = {basis.data(), dim, rank, rows.data(), count, dtype, codes.data(), residuals.data()};
  }
  double Exact(int64_t t, int i) const {  // the code's entry
    double sum = 0;
    const int stride = cpu::PaddedColumns(task.rank);
    for (int j = 0; j < task.head_dim; ++j) sum += double{rows[t * task.head_dim + j]} * basis[j * stride + i];
    return sum;
  }
  std::vector<float> basis, rows;
  std::vector<uint8_t> codes;
  std::vector<float> residuals;
  ProjectTask task;
};

TEST(LowRank, ProjectsAndSaysWhatIsLeftOut) {
  for (const int dim : kTestHeadDims) {
    for (const int rank : {1, 31, 33, dim}) {
      for (const DType dtype : kDTypes) {
        SCOPED_TRACE(testing::Message() << dim << " " << rank << " " << static_cast<int>(dtype));
        constexpr int64_t kCount = 300;  // more than a block of rows
        const Projected p(dim, rank, kCount, dtype);
        cpu::Project(p.task);
        std::vector<float> codes(kCount * rank);
        cpu::Widen(p.codes.data(), kCount * rank, dtype, codes.data());
        EXPECT_EQ(p.codes.back(), 0x5A);
        const double rounding = dtype == DType::kFloat32 ? 1e-5 : dtype == DType::kFloat16 ? 2e-3 : 2e-2;
        const int stride = cpu::PaddedColumns(rank);
        for (const int64_t t : {0, 1, 255, 256, 299}) {
          std::vector<double> exact(rank);
          for (int i = 0; i < rank; ++i) {
            exact[i] = p.Exact(t, i);
            ASSERT_NEAR(codes[t * rank + i], exact[i], rounding * (1 + std::fabs(exact[i])));
          }
          for (int j = 0; j < dim; ++j) {
            double back = 0;
            for (int i = 0; i < rank; ++i) back += exact[i] * p.basis[j * stride + i];
            ASSERT_NEAR(p.residuals[t * dim + j], p.rows[t * dim + j] - back, 2e-5);
          }
        }
      }
    }
  }
}

TEST(LowRank, HalvesSaturate) {
  Projected p(64, 1, 1, DType::kFloat16);
  for (int j = 0; j < 64; ++j) p.rows[j] = 3e4f, p.basis[j * 16] = .125f;
  cpu::Project(p.task);
  float code = 0;
  cpu::Widen(p.codes.data(), 1, DType::kFloat16, &code);
  EXPECT_EQ(code, 65504);
}

// A row of a head, in fp64: rebuilt and turned, or as it was.
std::vector<double> ExactRow(const LowRankHead& head, int64_t place, int32_t position) {
  const LowRankRows& rows = head.rows;
  size_t r = 0;
  while (r + 1 < head.runs.size() && head.runs[r + 1].begin <= place) ++r;
  const LowRankRun& run = head.runs[r];
  const int64_t in_run = place - run.begin;
  std::vector<float> full(rows.head_dim), code(rows.rank), basis(static_cast<size_t>(rows.rank) * rows.head_dim);
  if (run.basis == nullptr || (in_run % 5 == 1 && in_run / 5 < run.num_full)) {
    const int64_t row = run.basis == nullptr ? in_run : in_run / 5;
    cpu::Widen(run.full + row * rows.head_dim * SizeOf(rows.dtype), rows.head_dim, rows.dtype, full.data());
    return {full.begin(), full.end()};
  }
  cpu::Widen(run.codes + in_run * rows.rank * SizeOf(rows.dtype), rows.rank, rows.dtype, code.data());
  cpu::Widen(reinterpret_cast<const uint8_t*>(run.basis), static_cast<int64_t>(basis.size()), DType::kFloat16,
             basis.data());
  std::vector<double> row(rows.head_dim);
  for (int j = 0; j < rows.head_dim; ++j) {
    for (int k = 0; k < rows.rank; ++k) row[j] += double{code[k]} * basis[k * rows.head_dim + j];
  }
  for (int i = 0; i < rows.head_dim / 2 && rows.rope.inv_freq != nullptr; ++i) {
    const double angle = position * rows.rope.inv_freq[i];
    double& a = row[rows.rope.interleaved ? 2 * i : i];
    double& b = row[rows.rope.interleaved ? 2 * i + 1 : i + rows.head_dim / 2];
    const double turned = a * std::cos(angle) - b * std::sin(angle);
    b = a * std::sin(angle) + b * std::cos(angle);
    a = turned;
  }
  return row;
}

TEST(LowRank, RebuildsRowsOfAnyRun) {
  const auto backend = MakeCpuBackend(1);
  for (const int dim : {64, 80, 256}) {
    const std::vector<double> frequencies = Frequencies(dim);
    for (const int rank : {1, 33, dim}) {
      for (const DType dtype : kDTypes) {
        for (const int turns : {0, 1, 2}) {  // not at all, halves, pairs side by side
          LowRankHead head(backend.get(), dim, rank, dtype, {3, 70, 40, 6, 9}, 7, dim + rank);
          if (turns > 0) head.rows.rope = {frequencies.data(), turns == 2};
          std::vector<int32_t> places, positions;
          for (int64_t place = 7; place < head.end; ++place) {
            places.push_back(static_cast<int32_t>(place % 2 == 0 ? place : head.end - 1 - (place - 7)));
            positions.push_back(places.back() * 900 + 11);
          }
          std::vector<float> out(places.size() * dim);
          const RebuildTask task = {head.rows, places.data(), positions.data(), static_cast<int64_t>(places.size()),
                                    out.data()};
          ASSERT_EQ(backend->Rebuild(&task, 1), Outcome::kDone);
          for (size_t i = 0; i < places.size(); ++i) {
            const std::vector<double> want = ExactRow(head, places[i], positions[i]);
            for (int j = 0; j < dim; ++j) {
              ASSERT_NEAR(out[i * dim + j], want[j], 1e-5 * std::sqrt(rank) * (1 + std::fabs(want[j])))
                  << dim << " " << rank << " " << turns << " place " << places[i];
            }
          }
        }
      }
    }
  }
}

TEST(LowRank, TargetsGiveTheSameBits) {
  const auto backend = MakeCpuBackend(1);
  for (const int dim : {64, 80, 128}) {
    LowRankHead head(backend.get(), dim, 38, DType::kFloat16, {30, 20}, 0, 5);
    const std::vector<double> frequencies = Frequencies(dim);
    head.rows.rope = {frequencies.data(), false};
    std::vector<int32_t> places(50);
    std::iota(places.begin(), places.end(), 0);
    std::vector<uint8_t> codes;
    std::vector<float> residuals, rows;
    OnEveryTarget([&](const std::string& target) {
      const Projected p(dim, 33, 70, DType::kFloat16);
      ASSERT_EQ(backend->Project(&p.task, 1), Outcome::kDone);
      std::vector<float> out(places.size() * dim);
      const RebuildTask task = {head.rows, places.data(), places.data(), 50, out.data()};
      ASSERT_EQ(backend->Rebuild(&task, 1), Outcome::kDone);
      if (rows.empty()) codes = p.codes, residuals = p.residuals, rows = out;
      EXPECT_EQ(p.codes, codes) << target;
      EXPECT_EQ(p.residuals, residuals) << target;
      EXPECT_EQ(out, rows) << target;
    });
  }
}

}  // namespace
}  // namespace seine
