// The steps of Oja's rule (index/subspace/oja.h), once for every backend. An engine does the work, and returns from
// each call when all of it is done:
//   MatMul(a, b, b_stride, m, n, k, add, c, c_stride)   ops/matrix/matrix.h's product, to the bit
//   Each(m, n, fn)                                      fn(i, j) for i < m, j < n, in any order
//   Sum(n, term)                                        of term(i), i < n, in fp64 and the sixteen lanes of every sum
//   Once(fn)                                            fn(), when all that comes before it is done
// What steers (which sums are compared, how often is iterated) is the same for all lanes of a device's block.
#ifndef SEINE_KERNELS_OPS_LEARN_OJA_RULE_H_
#define SEINE_KERNELS_OPS_LEARN_OJA_RULE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/ops/learn/oja.h"
#include "kernels/types.h"

namespace seine {

#ifdef __CUDACC__
#define SEINE_RULE __device__ inline
#else
#define SEINE_RULE inline
#endif

// Trace of a^2 Y R^T R Y^T up to which Newton's iteration, which converges below 2, is at its end in a few rounds.
inline constexpr double kOjaLargeStep = .5;
inline constexpr int kOjaMaxRounds = 8;
inline constexpr double kOjaRoundingError = 1e-8;
inline constexpr int64_t kOjaPolishEvery = 32;  // updates; each adds some 1e-7 to |U^T U - I|
// Up to so many columns the small products of the inverse root cost less than the Gram matrix of the basis.
inline constexpr int kOjaFewColumns = 32;
inline constexpr double kOjaPolished = 1e-6;

// The left factor of a product, as ops/matrix/matrix.h views it.
struct OjaMatrix {
  const float* data;
  int row_stride, column_stride;
};

SEINE_HD constexpr int OjaColumns(int n) { return (n + 15) / 16 * 16; }

// a, of the trace of C and |U^T C U| over `count` rows; 0: nothing to learn.
SEINE_HD inline double OjaStepSize(const OjaOptions& o, int head_dim, double trace, double gain, int count) {
  if (!o.relative) return o.learning_rate / count;
  if (trace == 0) return 0;
  const double a = o.learning_rate * head_dim / trace;
  if (!(gain > 0)) return a / count;
  const double most = o.max_gain / gain;
  return (most < a ? most : a) / count;
}

// What one interval's rows make with the basis; n = columns.
struct OjaScratch {
  float* x;     // [D, n] the rows as columns
  float* y;     // [r, n] Y = U^T X
  float* p;     // [D, n] P = U Y
  float* r;     // [D, n] R = X - P
  float* turn;  // [n, stride] Y^T
  float* h;     // [n, n] H = Y^T Y
  float* g;     // [n, n] R^T R, then S = a^2 R^T R
  // [n, n] each, of the inverse root
  float *root, *nh, *sh, *m, *error, *product;
  float* gram;  // [r, stride]
  float* old;   // [D, stride]

  static SEINE_HD size_t Floats(int dim, int rank, int interval) {
    const size_t n = OjaColumns(interval), stride = OjaColumns(rank);
    return 3 * dim * n + rank * n + n * stride + 8 * n * n + rank * stride + dim * stride;
  }
  OjaScratch() = default;
  SEINE_HD OjaScratch(float* memory, int dim, int rank, int interval) {
    const size_t n = OjaColumns(interval), stride = OjaColumns(rank);
    x = memory;
    p = x + dim * n;
    r = p + dim * n;
    y = r + dim * n;
    turn = y + rank * n;
    h = turn + n * stride;
    g = h + n * n;
    root = g + n * n;
    nh = root + n * n;
    sh = nh + n * n;
    m = sh + n * n;
    error = m + n * n;
    product = error + n * n;
    gram = product + n * n;
    old = gram + rank * stride;
  }
};

template <typename Engine>
class OjaRule {
 public:
  // `scratch` for the task's shape. All is read where it lies: a device's lane has not the registers to hold it.
  SEINE_RULE OjaRule(Engine* engine, const LearnTask& task, const OjaScratch& scratch)
      : e_(*engine),
        o_(task.options),
        dim_(task.head_dim),
        rank_(task.rank),
        n_(OjaColumns(task.options.interval)),
        stride_(OjaColumns(task.rank)),
        u_(task.basis),
        s_(scratch) {}

  // Learns from the rows of one whole interval.
  SEINE_RULE void EndInterval(const float* rows, OjaStats* stats) {
    const int count = o_.interval;
    Multiply(rows);
    const double residual = Trace(s_.g), energy = residual + Trace(s_.h);
    const double ratio = energy > 0 ? residual / energy : 0;
    e_.Once([&] {
      stats->rows += count;
      ++stats->intervals;
      stats->energy += energy;
      stats->residual_energy += residual;
      stats->last_ratio = ratio;
      stats->since_update += count;
    });
    const bool due = o_.error_threshold == 0 || (ratio > o_.error_threshold && stats->since_update >= o_.min_spacing);
    const double a = due ? OjaStepSize(o_, dim_, energy / count, sqrt(Dot(s_.h, s_.h)) / count, count) : 0;
    if (a == 0 || residual == 0) return;  // nothing to learn, or nothing asked
    const bool large = Step(static_cast<float>(a));
    e_.Once([&] {
      stats->large_steps += large ? 1 : 0;
      ++stats->updates;
      stats->since_update = 0;
    });
    if (stats->updates % kOjaPolishEvery == 0) Polish();
  }

 private:
  SEINE_RULE double Dot(const float* a, const float* b) {
    return e_.Sum(n_ * n_, [&](int i) { return static_cast<double>(a[i]) * static_cast<double>(b[i]); });
  }
  SEINE_RULE double Trace(const float* square) {
    return e_.Sum(n_, [&](int i) { return static_cast<double>(square[i * n_ + i]); });
  }

  // X, Y, P, R, H and R^T R.
  SEINE_RULE void Multiply(const float* rows) {
    e_.Each(dim_, n_, [&](int j, int t) { s_.x[j * n_ + t] = t < o_.interval ? rows[t * dim_ + j] : 0.0f; });
    e_.MatMul({u_, 1, stride_}, s_.x, n_, rank_, n_, dim_, false, s_.y, n_);
    e_.MatMul({u_, stride_, 1}, s_.y, n_, dim_, n_, rank_, false, s_.p, n_);
    e_.Each(dim_, n_, [&](int j, int t) { s_.r[j * n_ + t] = s_.x[j * n_ + t] - s_.p[j * n_ + t]; });
    e_.MatMul({s_.y, 1, n_}, s_.y, n_, n_, n_, rank_, false, s_.h, n_);
    e_.MatMul({s_.r, 1, n_}, s_.r, n_, n_, n_, dim_, false, s_.g, n_);
  }

  // U (I + Y N Y^T) with the columns U + a R Y^T put in for U is U + Z Y^T, Z = a R + (P + a R H) N. True where the
  // step was so large that the columns were made orthonormal one by one.
  SEINE_RULE bool Step(float a) {
    const float square = a * a;
    e_.Each(n_, n_, [&](int i, int j) { s_.g[i * n_ + j] *= square; });
    e_.Each(dim_, n_, [&](int j, int t) { s_.r[j * n_ + t] *= a; });
    e_.Each(n_, stride_, [&](int t, int i) { s_.turn[t * stride_ + i] = i < rank_ ? s_.y[i * n_ + t] : 0.0f; });
    const bool large = Dot(s_.g, s_.h) > kOjaLargeStep, few = n_ <= kOjaFewColumns;
    if (!large && few) {
      e_.MatMul({s_.r, n_, 1}, s_.h, n_, dim_, n_, n_, true, s_.p, n_);
      InverseRoot();
      e_.MatMul({s_.p, n_, 1}, s_.root, n_, dim_, n_, n_, true, s_.r, n_);
    }
    e_.MatMul({s_.r, n_, 1}, s_.turn, stride_, dim_, rank_, n_, true, u_, stride_);
    if (large) Orthogonalise();
    for (int round = 0; !large && !few && round < kOjaMaxRounds; ++round) {
      if (Polish() < kOjaPolished) break;
    }
    return large;
  }

  // c = a b of n x n matrices.
  SEINE_RULE void Squares(const float* a, const float* b, float* c) {
    e_.MatMul({a, n_, 1}, b, n_, n_, n_, n_, false, c, n_);
  }

  // N with (I + Y S Y^T)^(-1/2) = I + Y N Y^T for S symmetric, H = Y^T Y, tr(S H) <= kOjaLargeStep, by Newton's
  // iteration X <- X (3 I - A X^2) / 2, all of whose steps have that form: with X = I + Y N Y^T, X^2 = I + Y M Y^T for
  // M = 2 N + N H N, A X^2 = I + Y E Y^T for E = S + M + S H M, and N <- N - (E + N H E) / 2.
  SEINE_RULE void InverseRoot() {
    e_.Each(n_, n_, [&](int i, int j) { s_.root[i * n_ + j] = -.5f * s_.g[i * n_ + j]; });
    Squares(s_.g, s_.h, s_.sh);
    for (int round = 1; round < kOjaMaxRounds; ++round) {
      Squares(s_.root, s_.h, s_.nh);
      Squares(s_.nh, s_.root, s_.m);
      e_.Each(n_, n_, [&](int i, int j) { s_.m[i * n_ + j] += 2 * s_.root[i * n_ + j]; });
      Squares(s_.sh, s_.m, s_.error);
      e_.Each(n_, n_, [&](int i, int j) { s_.error[i * n_ + j] += s_.g[i * n_ + j] + s_.m[i * n_ + j]; });
      if (fabs(Dot(s_.error, s_.h)) < kOjaRoundingError) break;
      Squares(s_.nh, s_.error, s_.product);
      e_.Each(n_, n_,
              [&](int i, int j) { s_.root[i * n_ + j] -= .5f * (s_.error[i * n_ + j] + s_.product[i * n_ + j]); });
    }
  }

  // Gram and Schmidt's, twice, for what the first pass leaves is of the columns' condition. They are independent: the
  // singular values of U + a R Y^T are 1 or more.
  SEINE_RULE void Orthogonalise() {
    for (int i = 0; i < 2 * rank_; ++i) {
      const int c = i % rank_;
      const double square = e_.Sum(dim_, [&](int j) {
        const auto x = static_cast<double>(u_[j * stride_ + c]);
        return x * x;
      });
      const double inverse = 1.0 / sqrt(square);
      e_.Each(1, dim_, [&](int, int j) {
        u_[j * stride_ + c] = static_cast<float>(static_cast<double>(u_[j * stride_ + c]) * inverse);
      });
      e_.Each(1, rank_ - c - 1, [&](int, int later) {
        float* column = u_ + c + 1 + later;
        double dot = 0;
        for (int j = 0; j < dim_; ++j) {
          dot = dot + static_cast<double>(u_[j * stride_ + c]) * static_cast<double>(column[j * stride_]);
        }
        for (int j = 0; j < dim_; ++j) {
          column[j * stride_] = static_cast<float>(static_cast<double>(column[j * stride_]) -
                                                   dot * static_cast<double>(u_[j * stride_ + c]));
        }
      });
    }
  }

  // U <- U (3 I - U^T U) / 2, which squares U^T U - I. Returns the trace of what it was.
  SEINE_RULE double Polish() {
    e_.MatMul({u_, 1, stride_}, u_, stride_, rank_, rank_, dim_, false, s_.gram, stride_);
    e_.Each(rank_, rank_, [&](int i, int j) {
      float& x = s_.gram[i * stride_ + j];
      x = .5f * ((i == j ? 1.0f : 0.0f) - x);
    });
    const double error = e_.Sum(rank_, [&](int i) { return static_cast<double>(fabsf(2 * s_.gram[i * stride_ + i])); });
    e_.Each(dim_, stride_, [&](int j, int i) { s_.old[j * stride_ + i] = u_[j * stride_ + i]; });
    e_.MatMul({s_.old, stride_, 1}, s_.gram, stride_, dim_, rank_, rank_, true, u_, stride_);
    return error;
  }

  Engine& e_;
  const OjaOptions& o_;
  const int dim_, rank_, n_, stride_;
  float* const u_;
  const OjaScratch& s_;
};

}  // namespace seine

#endif  // SEINE_KERNELS_OPS_LEARN_OJA_RULE_H_
