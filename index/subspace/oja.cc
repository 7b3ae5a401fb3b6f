// The update. Matrices are row-major fp32 and multiplied by kernels/cpu/matrix.h, whose sums have one order.
#include "index/subspace/oja.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/ops.h"

namespace seine {

namespace {

using cpu::MatMul;
using cpu::MatrixView;

constexpr int kMaxInterval = 128;
// Trace of a^2 Y R^T R Y^T up to which Newton's iteration, which converges below 2, is at its end in a few rounds.
constexpr double kLargeStep = .5;
constexpr int kMaxRounds = 8;
constexpr double kRoundingError = 1e-8;
constexpr int64_t kPolishEvery = 32;  // updates; each adds some 1e-7 to |U^T U - I|
// Up to so many columns the small products of InverseRoot cost less than the Gram matrix of the basis.
constexpr int kFewColumns = 32;
constexpr double kPolished = 1e-6;

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

double Trace(const std::vector<float>& square, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += square[static_cast<size_t>(i) * n + i];
  return sum;
}

// c = a b of n x n matrices.
void Multiply(const std::vector<float>& a, const std::vector<float>& b, int n, std::vector<float>* c) {
  MatMul({a.data(), n, 1}, b.data(), n, n, n, n, false, c->data(), n);
}

// N with (I + Y S Y^T)^(-1/2) = I + Y N Y^T for S symmetric, H = Y^T Y, tr(S H) <= kLargeStep, by Newton's iteration
// X <- X (3 I - A X^2) / 2, all of whose steps have that form: with X = I + Y N Y^T, X^2 = I + Y M Y^T for
// M = 2 N + N H N, A X^2 = I + Y E Y^T for E = S + M + S H M, and N <- N - (E + N H E) / 2.
std::vector<float> InverseRoot(const std::vector<float>& s, const std::vector<float>& h, int n) {
  const size_t size = s.size();
  std::vector<float> root(size), error = s, product(size), nh(size), sh(size), m(size);
  for (size_t i = 0; i < size; ++i) root[i] = -.5f * s[i];
  Multiply(s, h, n, &sh);
  for (int round = 1; round < kMaxRounds; ++round) {
    Multiply(root, h, n, &nh);
    Multiply(nh, root, n, &m);
    for (size_t i = 0; i < size; ++i) m[i] += 2 * root[i];
    Multiply(sh, m, n, &error);
    for (size_t i = 0; i < size; ++i) error[i] += s[i] + m[i];
    if (std::fabs(Dot(error, h)) < kRoundingError) break;
    Multiply(nh, error, n, &product);
    for (size_t i = 0; i < size; ++i) root[i] -= .5f * (error[i] + product[i]);
  }
  return root;
}

// An orthonormal basis of the columns, each turned as little as may be.
Basis Orthonormalised(const Eigen::MatrixXd& columns, int64_t version) {
  const Eigen::HouseholderQR<Eigen::MatrixXd> qr(columns);
  Eigen::MatrixXd q = qr.householderQ() * Eigen::MatrixXd::Identity(columns.rows(), columns.cols());
  for (Eigen::Index i = 0; i < q.cols(); ++i) {
    if (qr.matrixQR()(i, i) < 0) q.col(i) = -q.col(i);
  }
  return FromEigen(q, version);
}

}  // namespace

absl::Status Validate(const OjaOptions& o) {
  if (o.interval < 1 || o.interval > kMaxInterval) {
    return absl::InvalidArgumentError(absl::StrCat("interval: ", o.interval, " is not in [1, ", kMaxInterval, "]"));
  }
  if (!(o.learning_rate > 0) || !std::isfinite(o.learning_rate)) {
    return absl::InvalidArgumentError(absl::StrCat("learning_rate: ", o.learning_rate, " is not above 0"));
  }
  if (!(o.max_gain > 0) || !std::isfinite(o.max_gain)) {
    return absl::InvalidArgumentError(absl::StrCat("max_gain: ", o.max_gain, " is not above 0"));
  }
  if (!(o.error_threshold >= 0 && o.error_threshold <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("error_threshold: ", o.error_threshold, " is not in [0, 1]"));
  }
  if (o.min_spacing < 0) {
    return absl::InvalidArgumentError(absl::StrCat("min_spacing: ", o.min_spacing, " is negative"));
  }
  return absl::OkStatus();
}

// What one interval's rows make with the basis; n = columns_.
struct OjaTracker::Products {
  std::vector<float> y;  // [r, n] Y = U^T X
  std::vector<float> p;  // [D, n] P = U Y
  std::vector<float> r;  // [D, n] R = X - P
  std::vector<float> h;  // [n, n] Y^T Y
  std::vector<float> g;  // [n, n] R^T R
};

OjaTracker::OjaTracker(Basis start, const OjaOptions& options)
    : options_(options), basis_(std::move(start)), columns_(cpu::PaddedColumns(options.interval)) {}

absl::Status OjaTracker::Add(const ConstRows& rows, int64_t count) {
  const int dim = basis_.head_dim;
  if (const int64_t bad = cpu::FirstNonFinite(rows, count, dim); bad >= 0) {
    return absl::InvalidArgumentError(absl::StrCat("rows: row ", bad, " holds NaN or infinity, or its norm overflows"));
  }
  std::vector<float> row(dim);
  rows_.resize(static_cast<size_t>(dim) * columns_);
  for (int64_t i = 0; i < count; ++i) {
    cpu::ToFloat({rows.row(i), rows.stride_bytes, rows.dtype}, 1, dim, row.data());
    for (int j = 0; j < dim; ++j) rows_[static_cast<size_t>(j) * columns_ + filled_] = row[j];
    if (++filled_ == options_.interval) EndInterval();
  }
  if (filled_ == 0) rows_ = std::vector<float>();  // a tracker may rest for long
  return absl::OkStatus();
}

double OjaTracker::StepSize(double trace, double gain, int64_t count) const {
  if (!options_.relative) return options_.learning_rate / static_cast<double>(count);
  if (trace == 0) return 0;
  const double a = options_.learning_rate * basis_.head_dim / trace;
  return (gain > 0 ? std::min(a, options_.max_gain / gain) : a) / static_cast<double>(count);
}

void OjaTracker::EndInterval() {
  const int dim = basis_.head_dim, rank = basis_.rank, n = columns_;
  Products p;
  p.y.resize(static_cast<size_t>(rank) * n);
  MatMul(basis_.Transposed(), rows_.data(), n, rank, n, dim, false, p.y.data(), n);
  p.p.resize(rows_.size());
  MatMul(basis_.Matrix(), p.y.data(), n, dim, n, rank, false, p.p.data(), n);
  p.r.resize(rows_.size());
  for (size_t i = 0; i < rows_.size(); ++i) p.r[i] = rows_[i] - p.p[i];
  p.h.resize(static_cast<size_t>(n) * n);
  MatMul({p.y.data(), 1, n}, p.y.data(), n, n, n, rank, false, p.h.data(), n);
  p.g.resize(p.h.size());
  MatMul({p.r.data(), 1, n}, p.r.data(), n, n, n, dim, false, p.g.data(), n);

  const double residual = Trace(p.g, n), energy = residual + Trace(p.h, n);
  const int count = std::exchange(filled_, 0);
  stats_.rows += count;
  ++stats_.intervals;
  stats_.energy += energy;
  stats_.residual_energy += residual;
  stats_.last_ratio = energy > 0 ? residual / energy : 0;
  since_update_ += count;
  const bool due = options_.error_threshold == 0 ||
                   (stats_.last_ratio > options_.error_threshold && since_update_ >= options_.min_spacing);
  const double a = due ? StepSize(energy / count, std::sqrt(Dot(p.h, p.h)) / count, count) : 0;
  if (a == 0 || residual == 0) return;  // nothing to learn, or nothing asked
  Step(static_cast<float>(a), &p);
  CountUpdate();
}

// U (I + Y N Y^T) with the columns U + a R Y^T put in for U is U + Z Y^T, Z = a R + (P + a R H) N.
void OjaTracker::Step(float a, Products* p) {
  const int dim = basis_.head_dim, rank = basis_.rank, n = columns_, stride = basis_.stride();
  std::vector<float> s = p->g;
  for (float& x : s) x *= a * a;
  std::vector<float> z = p->r;
  for (float& x : z) x *= a;
  std::vector<float> rows(static_cast<size_t>(n) * stride);  // Y^T
  for (int i = 0; i < rank; ++i) {
    for (int j = 0; j < n; ++j) rows[static_cast<size_t>(j) * stride + i] = p->y[static_cast<size_t>(i) * n + j];
  }
  const bool large = Dot(s, p->h) > kLargeStep, few = n <= kFewColumns;
  if (!large && few) {
    MatMul({z.data(), n, 1}, p->h.data(), n, dim, n, n, true, p->p.data(), n);
    const std::vector<float> root = InverseRoot(s, p->h, n);
    MatMul({p->p.data(), n, 1}, root.data(), n, dim, n, n, true, z.data(), n);
  }
  MatMul({z.data(), n, 1}, rows.data(), stride, dim, rank, n, true, basis_.u.data(), stride);
  if (large) {
    basis_ = Orthonormalised(ToEigen(basis_), basis_.version);
    ++stats_.large_steps;
  }
  for (int round = 0; !large && !few && round < kMaxRounds; ++round) {
    if (Polish() < kPolished) break;
  }
}

absl::Status OjaTracker::AddBatch(const ConstRows& rows, int64_t count, int pool) {
  const int dim = basis_.head_dim;
  if (pool < 1) return absl::InvalidArgumentError(absl::StrCat("pool: ", pool, " is not positive"));
  if (const int64_t bad = cpu::FirstNonFinite(rows, count, dim); bad >= 0) {
    return absl::InvalidArgumentError(absl::StrCat("rows: row ", bad, " holds NaN or infinity, or its norm overflows"));
  }
  const int64_t pooled = count / pool;
  if (pooled == 0) return absl::OkStatus();
  std::vector<float> group(static_cast<size_t>(pool) * dim), means(static_cast<size_t>(pooled) * dim);
  for (int64_t i = 0; i < pooled; ++i) {
    cpu::ToFloat({rows.row(i * pool), rows.stride_bytes, rows.dtype}, pool, dim, group.data());
    cpu::MeanRow(group.data(), pool, dim, means.data() + i * dim);
  }
  const Eigen::MatrixXd moment = MomentOfRows({means.data(), dim * sizeof(float), DType::kFloat32}, pooled, dim);
  const Eigen::MatrixXd u = ToEigen(basis_), cu = moment * u, inside = u.transpose() * cu;
  const double a = StepSize(moment.trace(), inside.norm(), 1);
  basis_ = Orthonormalised(u + a * (cu - u * inside), basis_.version);
  ++stats_.large_steps;
  CountUpdate();
  return absl::OkStatus();
}

void OjaTracker::CountUpdate() {
  ++basis_.version;
  since_update_ = 0;
  if (++stats_.updates % kPolishEvery == 0) Polish();
}

// U <- U (3 I - U^T U) / 2, which squares U^T U - I. Returns the trace of what it was.
double OjaTracker::Polish() {
  const int rank = basis_.rank, stride = basis_.stride();
  std::vector<float> gram(static_cast<size_t>(rank) * stride);
  double error = 0;
  MatMul(basis_.Transposed(), basis_.u.data(), stride, rank, rank, basis_.head_dim, false, gram.data(), stride);
  for (int i = 0; i < rank; ++i) {
    for (int j = 0; j < rank; ++j) {
      float& x = gram[static_cast<size_t>(i) * stride + j];
      x = .5f * ((i == j ? 1.0f : 0.0f) - x);
    }
    error += std::fabs(2 * gram[static_cast<size_t>(i) * stride + i]);
  }
  const std::vector<float> u = basis_.u;
  MatMul({u.data(), stride, 1}, gram.data(), stride, basis_.head_dim, rank, rank, true, basis_.u.data(), stride);
  return error;
}

}  // namespace seine
