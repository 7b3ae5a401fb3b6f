// Codes are widened some at a time, to rows of whole lanes, and multiplied by the operations that full rows are.
#include "kernels/ops/low_rank/low_rank_products.h"

#include <algorithm>

#include "kernels/cpu/prefetch.h"
#include "kernels/ops/low_rank/low_rank_cpu.h"
#include "kernels/ops/matrix/matrix.h"
#include "kernels/ops/rows/rows.h"
#include "kernels/ops/rows/weighted_rows.h"
#include "kernels/stop.h"

namespace seine::cpu {
namespace {

// Rows at a time: a whole number of the 64 that weighted rows are summed by.
constexpr int64_t kPart = 256;

ConstRows Floats(const float* rows, int dim) { return {rows, dim * sizeof(float), DType::kFloat32}; }
// The columns of U.
ConstRows BasisRows(const uint16_t* basis, int dim) { return {basis, dim * sizeof(uint16_t), DType::kFloat16}; }

struct FullRow {
  int64_t at = 0;  // among the places of its stretch
  ConstRows row;
};

struct Scratch {
  std::vector<const uint8_t*> at;  // [count] codes of a stretch; nullptr: kept full-rank
  std::vector<float> codes;
  std::vector<FullRow> full;
};

// Places that follow each other in one basis.
struct Stretch {
  int64_t begin = 0, count = 0;
  const uint16_t* basis = nullptr;  // nullptr: all are kept full-rank
  const float* codes = nullptr;     // [count, rank rounded up to 16]; zeros where a row is kept full-rank
  const std::vector<FullRow>* full = nullptr;
};

// Finds the first of the places that lie in one basis, at most kPart, and fetches what is to be read of them: rows lie
// far from each other.
const uint16_t* Aim(const LowRankRows& rows, const int32_t* places, int64_t count, Scratch* s) {
  const auto size = static_cast<int64_t>(SizeOf(rows.dtype));
  const int64_t code_bytes = rows.rank * size, row_bytes = rows.head_dim * size;
  const uint16_t* const basis = RunOf(rows, places[0]).basis;
  s->at.clear(), s->full.clear();
  for (int64_t i = 0; i < count && i < kPart; ++i) {
    const LowRankRun& run = RunOf(rows, places[i]);
    if (run.basis != basis) break;
    const int64_t kept = FullRowOf(run, places[i]);
    const uint8_t* const row =
        kept >= 0 ? run.full + kept * row_bytes : run.codes + (places[i] - run.begin) * code_bytes;
    for (int64_t b = 0; b < (kept >= 0 ? row_bytes : code_bytes); b += 64) PrefetchFar(row + b);
    if (kept >= 0) s->full.push_back({i, {row, static_cast<size_t>(row_bytes), rows.dtype}});
    s->at.push_back(kept >= 0 ? nullptr : row);
  }
  return basis;
}

// use(stretch) for at most kPart places at a time.
template <typename Use>
void ForEachStretch(const LowRankRows& rows, const int32_t* places, int64_t count, Use use) {
  static thread_local Scratch s;
  const int width = PaddedColumns(rows.rank);
  s.codes.resize(kPart * width);
  for (int64_t begin = 0; begin < count && !StopRequested(); begin += static_cast<int64_t>(s.at.size())) {
    const uint16_t* const basis = Aim(rows, places + begin, count - begin, &s);
    for (size_t i = 0; i < s.at.size() && basis != nullptr; ++i) {
      float* const code = &s.codes[i * width];
      const int read = s.at[i] == nullptr ? 0 : rows.rank;
      Widen(s.at[i], read, rows.dtype, code);
      std::fill_n(code + read, width - read, 0.0f);
    }
    use(Stretch{begin, static_cast<int64_t>(s.at.size()), basis, s.codes.data(), &s.full});
  }
}

// Rows that turn are rebuilt, and multiplied in full.
void DotRebuilt(const LowRankTokens& tokens, const int32_t* places, int64_t count, const float* queries, int heads,
                float* out, int64_t stride) {
  static thread_local std::vector<float> rows;
  static thread_local std::vector<int32_t> positions;
  const int dim = tokens.rows.head_dim;
  positions.resize(count);
  rows.resize(std::min(count, kPart) * dim);
  for (int64_t i = 0; i < count; ++i) positions[i] = tokens.position(places[i]);
  for (int64_t i = 0; i < count && !StopRequested(); i += kPart) {
    const int64_t part = std::min(kPart, count - i);
    Rebuild({tokens.rows, places + i, positions.data() + i, part, rows.data()});
    DotRows(Floats(rows.data(), dim), part, dim, queries, heads, out + i, stride);
  }
}

}  // namespace

float* RowsByBasis::Of(const uint16_t* basis, bool* fresh) {
  for (auto& [of, rows] : rows_) {
    *fresh = false;
    if (of == basis) return rows.data();
  }
  *fresh = true;
  return rows_.emplace_back(basis, std::vector<float>(size_)).second.data();
}

LowRankDots::LowRankDots(const LowRankTokens& tokens, const float* queries, int group)
    : tokens_(tokens), queries_(queries), group_(group), projected_(group, PaddedColumns(tokens.rows.rank)) {}

const float* LowRankDots::Projected(const uint16_t* basis) {
  bool fresh;
  float* const rows = projected_.Of(basis, &fresh);
  const int dim = tokens_.rows.head_dim, rank = tokens_.rows.rank;
  if (fresh) DotRows(BasisRows(basis, dim), rank, dim, queries_, group_, rows, PaddedColumns(rank));
  return rows;
}

void LowRankDots::Dot(const int32_t* places, int64_t count, int first, int heads, float* out, int64_t stride) {
  const int dim = tokens_.rows.head_dim, width = PaddedColumns(tokens_.rows.rank);
  const float* const queries = queries_ + int64_t{first} * dim;
  if (tokens_.rows.rope.inv_freq != nullptr) {
    return DotRebuilt(tokens_, places, count, queries, heads, out, stride);
  }
  ForEachStretch(tokens_.rows, places, count, [&](const Stretch& s) {
    float* const to = out + s.begin;
    if (s.basis != nullptr) {
      const float* const projected = Projected(s.basis) + int64_t{first} * width;
      DotRows(Floats(s.codes, width), s.count, width, projected, heads, to, stride);
    }
    for (const FullRow& full : *s.full) DotRows(full.row, 1, dim, queries, heads, to + full.at, stride);
  });
}

LowRankSums::LowRankSums(const LowRankTokens& tokens, int group, float* out)
    : tokens_(tokens), group_(group), out_(out), sums_(group, PaddedColumns(tokens.rows.rank)) {}

void LowRankSums::Add(const int32_t* places, int64_t count, const float* weights, int first, int heads,
                      int64_t stride) {
  const int dim = tokens_.rows.head_dim, width = PaddedColumns(tokens_.rows.rank);
  ForEachStretch(tokens_.rows, places, count, [&](const Stretch& s) {
    const float* const w = weights + s.begin;
    if (s.basis != nullptr) {
      bool fresh;
      float* const sums = sums_.Of(s.basis, &fresh) + int64_t{first} * width;
      AddRows(Floats(s.codes, width), s.count, width, w, heads, stride, sums);
    }
    for (const FullRow& full : *s.full) {
      AddRows(full.row, 1, dim, w + full.at, heads, stride, out_ + int64_t{first} * dim);
    }
  });
}

// U times a sum is the sum of U's columns, weighted by its entries.
void LowRankSums::Finish() {
  const int dim = tokens_.rows.head_dim, rank = tokens_.rows.rank;
  for (const auto& [basis, sums] : sums_.all()) {
    AddRows(BasisRows(basis, dim), rank, dim, sums.data(), group_, PaddedColumns(rank), out_);
  }
}

}  // namespace seine::cpu
