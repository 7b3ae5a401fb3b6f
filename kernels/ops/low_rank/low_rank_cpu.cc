#include "kernels/ops/low_rank/low_rank_cpu.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/prefetch.h"
#include "kernels/ops/low_rank/turn_row.h"
#include "kernels/ops/matrix/matrix.h"
#include "kernels/ops/rows/rows.h"
#include "kernels/stop.h"

namespace seine::cpu {

namespace {

constexpr int64_t kBlock = 256;  // rows at a time: they and their codes stay in the second cache

// Rebuilds tokens [begin, end) of a task, all of them in `basis`.
void RebuildPart(const RebuildTask& task, const uint16_t* basis, int64_t begin, int64_t end) {
  const int dim = task.rows.head_dim, rank = task.rows.rank;
  const auto code_bytes = static_cast<int64_t>(rank * SizeOf(task.rows.dtype));
  std::vector<float> transposed(static_cast<size_t>(rank) * dim);
  std::vector<float> codes(static_cast<size_t>(std::min(kBlock, end - begin)) * rank);
  Widen(reinterpret_cast<const uint8_t*>(basis), int64_t{rank} * dim, DType::kFloat16, transposed.data());
  for (int64_t first = begin; first < end && !StopRequested(); first += kBlock) {
    const auto n = static_cast<int>(std::min(kBlock, end - first));
    const uint8_t* at[kBlock];
    for (int i = 0; i < n; ++i) {  // codes lie far from each other: all are fetched before the first is read
      const int32_t place = task.places[first + i];
      const LowRankRun& run = RunOf(task.rows, place);
      at[i] = run.codes + (place - run.begin) * code_bytes;
      for (int64_t b = 0; b < code_bytes; b += 64) PrefetchFar(at[i] + b);
    }
    for (int i = 0; i < n; ++i) Widen(at[i], rank, task.rows.dtype, &codes[int64_t{i} * rank]);
    MatMul({codes.data(), rank, 1}, transposed.data(), dim, n, dim, rank, false, task.out + first * dim, dim);
  }
}

}  // namespace

void Narrow(const float* x, int64_t count, DType dtype, uint8_t* out) {
  if (dtype == DType::kFloat32) {
    if (count > 0) std::memcpy(out, x, count * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = Narrow16(x[i], dtype);
    std::memcpy(out + i * sizeof(bits), &bits, sizeof(bits));
  }
}

void Widen(const uint8_t* x, int64_t count, DType dtype, float* out) {
  if (dtype == DType::kFloat32) {
    if (count > 0) std::memcpy(out, x, count * sizeof(float));
    return;
  }
  const int64_t whole = count / 16 * 16;
  ToFloat({x, 0, dtype}, 1, static_cast<int>(whole), out);
  uint16_t rest[16] = {0};
  float wide[16];
  if (whole == count) return;
  std::memcpy(rest, x + whole * sizeof(*rest), (count - whole) * sizeof(*rest));
  ToFloat({rest, 0, dtype}, 1, 16, wide);
  std::copy_n(wide, count - whole, out + whole);
}

void Project(const ProjectTask& task) {
  const int dim = task.head_dim, rank = task.rank, stride = PaddedColumns(rank);
  const auto code_bytes = static_cast<int64_t>(rank * SizeOf(task.dtype));
  std::vector<float> codes(static_cast<size_t>(std::min(kBlock, task.count)) * stride);
  std::vector<float> transposed(task.residuals == nullptr ? 0 : static_cast<size_t>(rank) * dim);
  for (int j = 0; j < dim && task.residuals != nullptr; ++j) {
    for (int i = 0; i < rank; ++i) transposed[i * dim + j] = task.basis[j * stride + i];
  }
  for (int64_t first = 0; first < task.count; first += kBlock) {
    const auto n = static_cast<int>(std::min(kBlock, task.count - first));
    const float* rows = task.rows + first * dim;
    MatMul({rows, dim, 1}, task.basis, stride, n, rank, dim, false, codes.data(), stride);
    for (int i = 0; i < n; ++i) {
      Narrow(&codes[int64_t{i} * stride], rank, task.dtype, task.codes + (first + i) * code_bytes);
    }
    if (task.residuals == nullptr) continue;
    float* residuals = task.residuals + first * dim;
    MatMul({codes.data(), stride, 1}, transposed.data(), dim, n, dim, rank, false, residuals, dim);
    for (int64_t i = 0; i < int64_t{n} * dim; ++i) residuals[i] = rows[i] - residuals[i];
  }
}

// Tokens of one basis are rebuilt together, as far as they follow each other.
void Rebuild(const RebuildTask& task) {
  const LowRankRows& rows = task.rows;
  for (int64_t begin = 0, end; begin < task.count; begin = end) {
    const uint16_t* basis = RunOf(rows, task.places[begin]).basis;
    for (end = begin + 1; end < task.count && RunOf(rows, task.places[end]).basis == basis;) ++end;
    if (basis != nullptr) RebuildPart(task, basis, begin, end);
  }
  for (int64_t i = 0; i < task.count; ++i) {
    if (i % kBlock == 0 && StopRequested()) return;
    float* row = task.out + i * rows.head_dim;
    const LowRankRun& run = RunOf(rows, task.places[i]);
    const int64_t full = FullRowOf(run, task.places[i]);
    if (full >= 0) {
      Widen(run.full + full * rows.head_dim * static_cast<int64_t>(SizeOf(rows.dtype)), rows.head_dim, rows.dtype, row);
    } else if (rows.rope.inv_freq != nullptr) {
      TurnRow(rows.rope, rows.head_dim, task.positions[i], row);
    }
  }
}

}  // namespace seine::cpu
