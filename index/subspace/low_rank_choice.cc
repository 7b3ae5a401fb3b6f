// Which tokens of a low-rank block stay full-rank: those whose keys lose most to attention.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "index/subspace/low_rank.h"
#include "index/subspace/low_rank_store.h"
#include "kernels/host.h"

namespace seine {

namespace {

// sqrt(r^T M r / D) of each residual; M = I without a moment.
std::vector<float> Losses(const std::vector<float>& residuals, int dim, const Eigen::MatrixXd* moment) {
  const auto count = static_cast<int64_t>(residuals.size()) / dim;
  std::vector<float> weighted = residuals, losses(count);
  if (moment != nullptr) {
    const Basis matrix = FromEigen(*moment, 0);  // x M, by the product that projects
    Project(matrix, residuals.data(), count, weighted.data(), dim);
  }
  for (int64_t t = 0; t < count; ++t) {
    double square = 0;
    for (int j = 0; j < dim; ++j) square += double{residuals[t * dim + j]} * weighted[t * dim + j];
    losses[t] = static_cast<float>(std::sqrt(std::max(0.0, square) / dim));
  }
  return losses;
}

}  // namespace

// What a block's tokens lose to attention, whose keys' residuals are in their frame: by queries, or where none sees a
// token of the block by moments, which is counted.
std::vector<float> LowRankStore::ErrorsOf(const RecentQueries& queries, const int32_t* positions,
                                          std::vector<float>* residuals, TrackerSet* trackers) const {
  const LowRankOptions& o = shape_->options;
  const int64_t count = static_cast<int64_t>(residuals->size()) / o.head_dim;
  const Eigen::MatrixXd* moment = shape_->query_moment ? &*shape_->query_moment : nullptr;
  std::vector<float> errors;
  const bool asked = queries.num_positions > 0 && std::any_of(positions, positions + count, [&](int32_t p) {
                       return p <= queries.positions[queries.num_positions - 1];
                     });
  if (o.choice.queries > 0 && asked) {
    if (o.frame == KeyFrame::kPreRope) ApplyRopeToRows(o.rope, positions, count, residuals->data());
    errors = QueryWeightedErrors(residuals->data(), positions, count, o.head_dim, queries);
  } else {
    trackers->blocks_without_queries += o.choice.queries > 0 ? 1 : 0;
    errors = Losses(*residuals, o.head_dim, moment);
  }
  return o.choice.pool > 1 ? PooledErrors(errors, o.choice.pool) : errors;
}

void LowRankStore::KeepFullRank(const HeadRows& rows, const std::vector<float>& errors, Block* block) const {
  const LowRankOptions& o = shape_->options;
  const Offsets at = OffsetsOf(block->tokens, block->kept);
  const std::vector<int32_t> places = FullRankSet(errors, block->kept);
  uint8_t* const data = block->memory.data();
  const auto row = o.head_dim * static_cast<int64_t>(SizeOf(o.dtype));
  for (int64_t i = 0; i < block->kept; ++i) {
    const auto in_block = static_cast<uint16_t>(places[i]);
    std::memcpy(data + at.kept_keys + i * row, rows.keys.row(places[i]), row);
    std::memcpy(data + at.kept_values + i * row, rows.values.row(places[i]), row);
    std::memcpy(data + at.places + i * static_cast<int64_t>(sizeof(in_block)), &in_block, sizeof(in_block));
  }
}

}  // namespace seine
