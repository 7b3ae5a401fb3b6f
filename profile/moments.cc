#include "profile/moments.h"

#include <cassert>
#include <cmath>
#include <complex>

namespace seine {
namespace {

using Complex = std::complex<double>;
using Eigen::MatrixXd;
using Eigen::VectorXd;

// Mean of e^{j w n} over n uniform in [begin, end].
Complex MeanTurn(double w, double begin, double end) {
  const double half = w * (end - begin) / 2;
  const double sinc = std::abs(half) < 1e-6 ? 1 - half * half / 6 : std::sin(half) / half;
  return std::polar(1.0, w * (begin + end) / 2) * sinc;
}

}  // namespace

std::vector<double> Flatten(const std::vector<VectorXd>& heads) {
  std::vector<double> out;
  for (const VectorXd& head : heads) out.insert(out.end(), head.begin(), head.end());
  return out;
}

std::vector<double> Flatten(const std::vector<MatrixXd>& heads) {
  std::vector<double> out;
  for (const MatrixXd& head : heads) {
    for (Eigen::Index i = 0; i < head.rows(); ++i) {
      for (Eigen::Index j = i; j < head.cols(); ++j) out.push_back(head(i, j));
    }
  }
  return out;
}

std::vector<VectorXd> MeansOf(const std::vector<float>& values, int heads, int head_dim) {
  std::vector<VectorXd> out;
  for (int head = 0; head < heads; ++head) {
    out.emplace_back(Eigen::Map<const Eigen::VectorXf>(values.data() + head * head_dim, head_dim).cast<double>());
  }
  return out;
}

std::vector<MatrixXd> MomentsOf(const std::vector<float>& values, int heads, int head_dim) {
  std::vector<MatrixXd> out;
  const float* next = values.data();
  for (int head = 0; head < heads; ++head) {
    MatrixXd& moment = out.emplace_back(head_dim, head_dim);
    for (int i = 0; i < head_dim; ++i) {
      for (int j = i; j < head_dim; ++j) moment(i, j) = moment(j, i) = *next++;
    }
  }
  return out;
}

MatrixXd GroupQueryMoment(const Profile& profile, int layer, int kv_head) {
  const int group = profile.num_q_heads / profile.num_kv_heads;
  MatrixXd sum = MatrixXd::Zero(profile.head_dim, profile.head_dim);
  for (int i = 0; i < group; ++i) sum += profile.layers[layer].q_moment[kv_head * group + i];
  return sum / group;
}

MatrixXd CarryMoment(const MatrixXd& moment, const Rope& rope, double begin, double end) {
  if (!rope.stated()) return moment;
  assert(moment.rows() == rope.head_dim() && moment.cols() == rope.head_dim());
  MatrixXd out(moment.rows(), moment.cols());
  const int pairs = static_cast<int>(rope.inv_freq.size());
  for (int i = 0; i < pairs; ++i) {
    for (int l = 0; l <= i; ++l) {
      const int ia = rope.first(i), ib = rope.second(i), la = rope.first(l), lb = rope.second(l);
      const double aa = moment(ia, la), bb = moment(ib, lb), ab = moment(ia, lb), ba = moment(ib, la);
      // z_i conj(z_l) and z_i z_l of z = a + j b, each turned by its own frequency.
      const Complex c = Complex(aa + bb, ba - ab) * MeanTurn(rope.inv_freq[i] - rope.inv_freq[l], begin, end);
      const Complex p = Complex(aa - bb, ba + ab) * MeanTurn(rope.inv_freq[i] + rope.inv_freq[l], begin, end);
      out(ia, la) = out(la, ia) = (c.real() + p.real()) / 2;
      out(ib, lb) = out(lb, ib) = (c.real() - p.real()) / 2;
      out(ia, lb) = out(lb, ia) = (p.imag() - c.imag()) / 2;
      out(ib, la) = out(la, ib) = (p.imag() + c.imag()) / 2;
    }
  }
  return out;
}

VectorXd CarryMean(const VectorXd& mean, const Rope& rope, double begin, double end) {
  if (!rope.stated()) return mean;
  assert(mean.size() == rope.head_dim());
  VectorXd out(mean.size());
  for (int i = 0; i < static_cast<int>(rope.inv_freq.size()); ++i) {
    const Complex z = Complex(mean(rope.first(i)), mean(rope.second(i))) * MeanTurn(rope.inv_freq[i], begin, end);
    out(rope.first(i)) = z.real();
    out(rope.second(i)) = z.imag();
  }
  return out;
}

}  // namespace seine
