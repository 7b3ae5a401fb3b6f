// Balancing two second moments, and sharing out bits.
#include "profile/balance.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "profile/spectrum.h"

namespace seine {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

// Rounding of moments that were stored in fp16: each entry is off by up to 2^-11 of itself, so an eigenvalue by up to
// 2^-11 of the trace.
constexpr double kRounding = 0x1p-10;

MatrixXd Power(const Spectrum& positive, double exponent) {
  return positive.vectors * positive.values.array().pow(exponent).matrix().asDiagonal() * positive.vectors.transpose();
}

// The mean of both triangles: products of symmetric matrices are symmetric to rounding only.
Spectrum DecomposeMean(const MatrixXd& symmetric) { return Decompose((symmetric + symmetric.transpose()) / 2); }

// The moment with trace D, nothing negative that rounding left, and `share` of it moved to the identity.
absl::StatusOr<Spectrum> Normalise(const char* name, const MatrixXd& moment, double share) {
  const auto bad = [&](const auto&... parts) { return absl::InvalidArgumentError(absl::StrCat(name, ": ", parts...)); };
  if (!moment.allFinite()) return bad("holds a value that is not finite");
  const double to_unit = static_cast<double>(moment.rows()) / moment.trace();
  if (moment.trace() == 0 && moment.isZero(0)) return bad("is all zeros");
  if (!(moment.trace() > 0) || !std::isfinite(to_unit)) return bad("has trace ", moment.trace());
  const MatrixXd unit = moment * to_unit;
  const double rounding = kRounding * static_cast<double>(moment.rows());
  if (!unit.allFinite() || !unit.isApprox(unit.transpose(), 1e-6)) return bad("is not symmetric");
  Spectrum spectrum = DecomposeMean(unit);
  if (spectrum.values(0) < -rounding) {
    return bad("is not positive semi-definite: an eigenvalue is ", spectrum.values(0) / to_unit, ", of a trace of ",
               moment.trace());
  }
  spectrum.values = (1 - share) * spectrum.values.cwiseMax(0.0).array() + share;
  return spectrum;
}

// The sign of an eigenvector is free; one choice makes the transform the same everywhere.
void FixSigns(MatrixXd* columns) {
  for (Eigen::Index i = 0; i < columns->cols(); ++i) {
    Eigen::Index largest;
    columns->col(i).cwiseAbs().maxCoeff(&largest);
    if ((*columns)(largest, i) < 0) columns->col(i) *= -1;
  }
}

// What the bit that makes `bits` out of bits - 1 takes off the distortion of the estimate, on coordinate i.
double Value(const VectorXd& lambda, size_t i, int bits) {
  const double l = lambda(static_cast<Eigen::Index>(i));
  return l * l * (kDistortion[bits - 1] - kDistortion[bits]);
}

// Each next bit goes where it is worth most (reverse water-filling); ties to the lower index.
std::vector<uint8_t> Allocate(const VectorXd& lambda, int sum, int most) {
  std::vector<uint8_t> bits(lambda.size(), 0);
  for (int given = 0; given < sum; ++given) {
    size_t best = bits.size();
    for (size_t i = 0; i < bits.size(); ++i) {
      if (bits[i] == most) continue;
      if (best == bits.size() || Value(lambda, i, bits[i] + 1) > Value(lambda, best, bits[best] + 1)) best = i;
    }
    ++bits[best];
  }
  return bits;
}

// Threes without a one beside them.
int Unpaired(const std::vector<uint8_t>& bits) {
  return static_cast<int>(std::count(bits.begin(), bits.end(), 3) - std::count(bits.begin(), bits.end(), 1));
}

// Moves single bits, each time at the least loss, until every three has a one. There is always such a move: two threes
// become a four and a two.
void MakePack(const VectorXd& lambda, std::vector<uint8_t>* bits) {
  std::vector<uint8_t>& b = *bits;
  const auto weight = [](int width) { return width == 3 ? 1 : width == 1 ? -1 : 0; };  // in Unpaired
  while (Unpaired(b) > 0) {
    double least = std::numeric_limits<double>::infinity();
    size_t from = 0, to = 0;
    for (size_t i = b.size(); i-- > 0;) {  // ties: from the last to the first
      for (size_t j = 0; j < b.size(); ++j) {
        if (i == j || b[i] == 0 || b[j] == kMaxCoarseBits) continue;
        const int change = weight(b[i] - 1) - weight(b[i]) + weight(b[j] + 1) - weight(b[j]);
        const double loss = Value(lambda, i, b[i]) - Value(lambda, j, b[j] + 1);
        if (change >= 0 || loss >= least) continue;
        least = loss;
        from = i;
        to = j;
      }
    }
    --b[from];
    ++b[to];
  }
}

// The whole code's bits: never fewer than the coarse ones, whose repacking may have taken some beyond their share; the
// least valuable bits above them make up for it.
std::vector<uint8_t> AllocateTotal(const VectorXd& lambda, int sum, const std::vector<uint8_t>& coarse) {
  std::vector<uint8_t> bits = Allocate(lambda, sum, kMaxTotalBits);
  int excess = -sum;
  for (size_t i = 0; i < bits.size(); ++i) {
    bits[i] = std::max(bits[i], coarse[i]);
    excess += bits[i];
  }
  for (; excess > 0; --excess) {
    size_t least = bits.size();
    for (size_t i = 0; i < bits.size(); ++i) {
      if (bits[i] == coarse[i]) continue;
      if (least == bits.size() || Value(lambda, i, bits[i]) <= Value(lambda, least, bits[least])) least = i;
    }
    --bits[least];
  }
  return bits;
}

absl::Status Check(const MatrixXd& key_moment, const MatrixXd& query_moment, const BalanceOptions& options) {
  const Eigen::Index dim = key_moment.rows();
  if (dim < 8 || dim % 8 != 0 || key_moment.cols() != dim) {
    return absl::InvalidArgumentError(absl::StrCat("key_moment: must be [head_dim, head_dim], a multiple of 8, not [",
                                                   key_moment.rows(), ", ", key_moment.cols(), "]"));
  }
  if (query_moment.rows() != dim || query_moment.cols() != dim) {
    return absl::InvalidArgumentError(absl::StrCat("query_moment: must be [", dim, ", ", dim, "] as key_moment, not [",
                                                   query_moment.rows(), ", ", query_moment.cols(), "]"));
  }
  if (options.coarse_bits != .5 && options.coarse_bits != 1 && options.coarse_bits != 2) {
    return absl::InvalidArgumentError(absl::StrCat("coarse_bits: must be .5, 1 or 2, not ", options.coarse_bits));
  }
  if (!(options.total_bits > options.coarse_bits && options.total_bits <= 4)) {
    return absl::InvalidArgumentError(absl::StrCat("total_bits: must be above coarse_bits, ", options.coarse_bits,
                                                   ", and at most 4, not ", options.total_bits));
  }
  const double sum = options.total_bits * static_cast<double>(dim);
  if (sum != std::floor(sum)) {
    return absl::InvalidArgumentError(
        absl::StrCat("total_bits: ", options.total_bits, " a coordinate of ", dim, " make no whole number of bits"));
  }
  return absl::OkStatus();
}

}  // namespace

bool Packs(const std::vector<uint8_t>& coarse_bits) {
  // Twos go by themselves and ones fill every gap; only a three needs its one.
  int sum = 0;
  for (const uint8_t bits : coarse_bits) {
    if (bits > kMaxCoarseBits) return false;
    sum += bits;
  }
  return sum % 4 == 0 && Unpaired(coarse_bits) <= 0;
}

absl::StatusOr<Balance> MakeBalance(const MatrixXd& key_moment, const MatrixXd& query_moment,
                                    const BalanceOptions& options) {
  absl::Status checked = Check(key_moment, query_moment, options);
  if (!checked.ok()) return checked;
  const absl::StatusOr<Spectrum> key = Normalise("key_moment", key_moment, kKeyShrink);
  if (!key.ok()) return key.status();
  const absl::StatusOr<Spectrum> query = Normalise("query_moment", query_moment, kQueryShrink);
  if (!query.ok()) return query.status();

  // A^2 is the geometric mean of the keys' inverse and the queries' moment: A Sk A = A^-1 Sq A^-1.
  const MatrixXd root = Power(*key, .5), inverse_root = Power(*key, -.5);
  const MatrixXd middle = Power(DecomposeMean(root * Power(*query, 1) * root), .5);
  const Spectrum squared = DecomposeMean(inverse_root * middle * inverse_root);
  const MatrixXd a = Power(squared, .5);
  Spectrum shared = DecomposeMean(a * Power(*key, 1) * a);
  FixSigns(&shared.vectors);

  Balance balance;
  balance.lambda = shared.values.reverse();
  const MatrixXd turn = shared.vectors.rowwise().reverse();
  balance.key_map = a * turn;
  balance.query_map = Power(squared, -.5) * turn;
  const double dim = static_cast<double>(key_moment.rows());
  balance.coarse_bits = Allocate(balance.lambda, static_cast<int>(options.coarse_bits * dim), kMaxCoarseBits);
  MakePack(balance.lambda, &balance.coarse_bits);
  balance.total_bits = AllocateTotal(balance.lambda, static_cast<int>(options.total_bits * dim), balance.coarse_bits);
  return balance;
}

}  // namespace seine
