#include "index/subspace/oja.h"

#include <cmath>
#include <utility>

#include "kernels/host.h"
#include "profile/field_error.h"
#include "profile/spectrum.h"

namespace seine {

namespace {

constexpr int kMaxInterval = 256;

// An orthonormal basis of the columns, each turned as little as may be.
Basis Orthonormalised(const Eigen::MatrixXd& columns, int64_t version) {
  Eigen::MatrixXd q = OrthonormalOf(columns);
  for (Eigen::Index i = 0; i < q.cols(); ++i) {
    if (q.col(i).dot(columns.col(i)) < 0) q.col(i) = -q.col(i);
  }
  return FromEigen(q, version);
}

}  // namespace

void PooledMoment::Add(const ConstRows& rows, int64_t count) {
  const int64_t pooled = count / pool_;
  if (pooled == 0) return;
  std::vector<float> group(static_cast<size_t>(pool_) * head_dim_), means(static_cast<size_t>(pooled) * head_dim_);
  for (int64_t i = 0; i < pooled; ++i) {
    host::ToFloat({rows.row(i * pool_), rows.stride_bytes, rows.dtype}, pool_, head_dim_, group.data());
    host::MeanRow(group.data(), pool_, head_dim_, means.data() + i * head_dim_);
  }
  const ConstRows view = {means.data(), head_dim_ * sizeof(float), DType::kFloat32};
  sum_ += static_cast<double>(pooled) * MomentOfRows(view, pooled, head_dim_);
  count_ += pooled;
}

absl::Status Validate(const OjaOptions& o) {
  if (o.interval < 1 || o.interval > kMaxInterval) {
    return BadField("interval", o.interval, " is not in [1, ", kMaxInterval, "]");
  }
  if (!(o.learning_rate > 0 && o.learning_rate <= kMaxOjaStep)) {
    return BadField("learning_rate", o.learning_rate, " is not in (0, ", kMaxOjaStep, "]");
  }
  if (!(o.max_gain > 0 && o.max_gain <= kMaxOjaStep)) {
    return BadField("max_gain", o.max_gain, " is not in (0, ", kMaxOjaStep, "]");
  }
  if (!(o.error_threshold >= 0 && o.error_threshold <= 1)) {
    return BadField("error_threshold", o.error_threshold, " is not in [0, 1]");
  }
  if (o.min_spacing < 0) {
    return BadField("min_spacing", o.min_spacing, " is negative");
  }
  return absl::OkStatus();
}

OjaTracker::OjaTracker(Basis start, const OjaOptions& options) : OjaTracker(std::move(start), options, {}, {}) {}

OjaTracker::OjaTracker(Basis basis, const OjaOptions& options, const OjaStats& stats, std::vector<float> rows)
    : options_(options), basis_(std::move(basis)), stats_(stats), rows_(std::move(rows)) {}

absl::Status OjaTracker::Add(const ConstRows& rows, int64_t count) {
  const int dim = basis_.head_dim;
  if (const int64_t bad = host::FirstNonFinite(rows, count, dim); bad >= 0) {
    return BadField("rows", "row ", bad, " holds NaN or infinity, or its norm overflows");
  }
  std::vector<float> floats(count * dim);
  host::ToFloat(rows, static_cast<int>(count), dim, floats.data());
  host::Learn(Begin(floats.data(), count));
  End();
  return absl::OkStatus();
}

LearnTask OjaTracker::Begin(const float* rows, int64_t count) {
  const int dim = basis_.head_dim;
  rows_.insert(rows_.end(), rows, rows + count * dim);
  updates_of_basis_ = stats_.updates;
  const int64_t whole = waiting() / options_.interval * options_.interval;
  return {options_, dim, basis_.rank, basis_.u.data(), rows_.data(), whole, &stats_};
}

void OjaTracker::End() {
  const int64_t whole = waiting() / options_.interval * options_.interval;
  // Nothing is held where nothing waits, for a tracker may rest for long.
  rows_ = std::vector<float>(rows_.begin() + whole * basis_.head_dim, rows_.end());
  basis_.version += stats_.updates - updates_of_basis_;
}

absl::Status OjaTracker::AddBatch(const ConstRows& rows, int64_t count, int pool) {
  const int dim = basis_.head_dim;
  if (pool < 1) return BadField("pool", pool, " is not positive");
  if (const int64_t bad = host::FirstNonFinite(rows, count, dim); bad >= 0) {
    return BadField("rows", "row ", bad, " holds NaN or infinity, or its norm overflows");
  }
  if (count < pool) return absl::OkStatus();
  PooledMoment moment(dim, pool);
  moment.Add(rows, count);
  return AddMoment(moment.mean(), options_.learning_rate);
}

absl::Status OjaTracker::AddMoment(const Eigen::MatrixXd& moment, double learning_rate) {
  if (!moment.allFinite()) return BadField("moment", "holds NaN or infinity");
  OjaOptions options = options_;
  options.learning_rate = learning_rate;
  const Eigen::MatrixXd u = ToEigen(basis_), cu = moment * u, inside = u.transpose() * cu;
  const double a = OjaStepSize(options, basis_.head_dim, moment.trace(), inside.norm(), 1);
  basis_ = Orthonormalised(u + a * (cu - u * inside), basis_.version);
  ++stats_.large_steps;
  ++stats_.updates;
  ++basis_.version;
  stats_.since_update = 0;
  return absl::OkStatus();
}

}  // namespace seine
