// Moments out of vectors, in blocks.
#include <algorithm>
#include <cassert>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "profile/moments.h"
#include "profile/profile.h"

namespace seine {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr int64_t kWindow = 64;          // tokens that share a centre
constexpr int64_t kBlock = 8 * kWindow;  // rows added at a time: few enough to stay in the cache

// e^{j n w_i} of one block's positions, shared by its heads.
struct Turns {
  Turns(const Rope& rope, int64_t first_position, int64_t count)
      : cosine(rope.inv_freq.size(), count), sine(rope.inv_freq.size(), count) {
    for (int64_t n = 0; n < count; ++n) {
      for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
        const double angle = static_cast<double>(first_position + n) * rope.inv_freq[i];
        cosine(static_cast<Eigen::Index>(i), n) = std::cos(angle);
        sine(static_cast<Eigen::Index>(i), n) = std::sin(angle);
      }
    }
  }
  MatrixXd cosine, sine;  // [head_dim / 2, count]
};

// Turns the block's vectors (columns) back to position 0.
void Undo(const Rope& rope, const Turns& turns, MatrixXd* x) {
  for (Eigen::Index n = 0; n < x->cols(); ++n) {
    for (int i = 0; i < static_cast<int>(rope.inv_freq.size()); ++i) {
      double &a = (*x)(rope.first(i), n), &b = (*x)(rope.second(i), n);
      const double c = turns.cosine(i, n), s = turns.sine(i, n);
      const double turned = a * c + b * s;
      b = b * c - a * s;
      a = turned;
    }
  }
}

// One head of fp32 [count, heads, D] as columns.
MatrixXd HeadColumns(const float* rows, int64_t count, int heads, int head, int dim) {
  MatrixXd x(dim, count);
  for (int64_t n = 0; n < count; ++n) {
    const float* row = rows + (n * heads + head) * dim;
    for (int j = 0; j < dim; ++j) x(j, n) = row[j];
  }
  return x;
}

// Takes off each whole window's mean as the index stores it: int8 with one scale, computed in fp32. What is left of a
// window at the end is dropped.
void SubtractCentres(MatrixXd* x) {
  const Eigen::Index whole = x->cols() / kWindow * kWindow;
  x->conservativeResize(Eigen::NoChange, whole);
  for (Eigen::Index first = 0; first < whole; first += kWindow) {
    auto window = x->middleCols(first, kWindow);
    Eigen::VectorXf centre = window.rowwise().mean().cast<float>();
    const float largest = centre.cwiseAbs().maxCoeff(), scale = largest / 127.0f;
    if (largest > 0 && std::isfinite(127.0f / largest)) {
      centre = (centre * (127.0f / largest)).array().round() * scale;
    } else {
      centre.setZero();
    }
    window.colwise() -= centre.cast<double>();
  }
}

// The lower triangle alone; Finish mirrors it.
void AddColumns(const MatrixXd& x, int head, MatrixXd* mean, MatrixXd* moment) {
  if (x.cols() == 0) return;  // Eigen divides by the count
  if (mean->size() != 0) mean->row(head) += x.rowwise().sum().transpose();
  moment->selfadjointView<Eigen::Lower>().rankUpdate(x);
}

std::vector<MatrixXd> Zeros(int heads, int dim) { return std::vector<MatrixXd>(heads, MatrixXd::Zero(dim, dim)); }

std::vector<VectorXd> Means(const MatrixXd& sums, int64_t count) {
  std::vector<VectorXd> out;
  for (Eigen::Index head = 0; head < sums.rows(); ++head) {
    out.emplace_back(sums.row(head).transpose() / static_cast<double>(count));
  }
  return out;
}

std::vector<MatrixXd> Moments(const std::vector<MatrixXd>& sums, int64_t count) {
  std::vector<MatrixXd> out;
  for (const MatrixXd& sum : sums) {
    out.emplace_back(MatrixXd(sum.selfadjointView<Eigen::Lower>()) / static_cast<double>(count));
  }
  return out;
}

}  // namespace

struct ProfileBuilder::LayerSums {
  struct Sums {
    MatrixXd mean;                 // [heads, D]
    std::vector<MatrixXd> moment;  // [heads]
    int64_t count = 0;
  };
  Sums q, k, residual, v;
};

ProfileBuilder::~ProfileBuilder() = default;

ProfileBuilder::ProfileBuilder(int num_layers, int num_q_heads, int num_kv_heads, int head_dim)
    : num_q_heads_(num_q_heads), num_kv_heads_(num_kv_heads), head_dim_(head_dim) {
  // Each member by itself: g++ 12 destroys what an aggregate has not made yet when one of its parts throws.
  const auto clear = [&](LayerSums::Sums* sums, int heads, bool with_mean) {
    if (with_mean) sums->mean.setZero(heads, head_dim);
    sums->moment = Zeros(heads, head_dim);
  };
  layers_.resize(num_layers);
  for (LayerSums& layer : layers_) {
    clear(&layer.q, num_q_heads, true);
    clear(&layer.k, num_kv_heads, true);
    clear(&layer.residual, num_kv_heads, false);
    clear(&layer.v, num_kv_heads, true);
  }
}

void ProfileBuilder::AddKeys(int layer, const float* keys, int64_t count, int64_t first_position, const Rope& rope) {
  assert(!rope.stated() || rope.head_dim() == head_dim_);
  LayerSums& sums = layers_[layer];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t rows = std::min(kBlock, count - first);
    const Turns turns(rope, first_position + first, rows);
    for (int head = 0; head < num_kv_heads_; ++head) {
      MatrixXd x = HeadColumns(keys + first * num_kv_heads_ * head_dim_, rows, num_kv_heads_, head, head_dim_);
      MatrixXd residual = x;
      SubtractCentres(&residual);
      Undo(rope, turns, &x);
      Undo(rope, turns, &residual);
      AddColumns(x, head, &sums.k.mean, &sums.k.moment[head]);
      AddColumns(residual, head, &sums.residual.mean, &sums.residual.moment[head]);
    }
    sums.k.count += rows;
    sums.residual.count += rows / kWindow * kWindow;
  }
}

void ProfileBuilder::AddQueries(int layer, const float* queries, int64_t count, int64_t first_position,
                                const Rope& rope) {
  assert(!rope.stated() || rope.head_dim() == head_dim_);
  LayerSums::Sums& sums = layers_[layer].q;
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t rows = std::min(kBlock, count - first);
    const Turns turns(rope, first_position + first, rows);
    for (int head = 0; head < num_q_heads_; ++head) {
      MatrixXd x = HeadColumns(queries + first * num_q_heads_ * head_dim_, rows, num_q_heads_, head, head_dim_);
      Undo(rope, turns, &x);
      AddColumns(x, head, &sums.mean, &sums.moment[head]);
    }
    sums.count += rows;
  }
}

void ProfileBuilder::AddValues(int layer, const float* values, int64_t count) {
  LayerSums::Sums& sums = layers_[layer].v;
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t rows = std::min(kBlock, count - first);
    for (int head = 0; head < num_kv_heads_; ++head) {
      AddColumns(HeadColumns(values + first * num_kv_heads_ * head_dim_, rows, num_kv_heads_, head, head_dim_), head,
                 &sums.mean, &sums.moment[head]);
    }
    sums.count += rows;
  }
}

absl::StatusOr<Profile> ProfileBuilder::Finish() const {
  Profile profile;
  profile.num_q_heads = num_q_heads_;
  profile.num_kv_heads = num_kv_heads_;
  profile.head_dim = head_dim_;
  const bool with_values =
      std::any_of(layers_.begin(), layers_.end(), [](const LayerSums& sums) { return sums.v.count > 0; });
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const LayerSums& sums = layers_[layer];
    for (const auto& [what, count] : {std::pair("queries", sums.q.count), std::pair("keys", sums.k.count),
                                      std::pair("whole windows of 64 keys", sums.residual.count),
                                      std::pair("values", with_values ? sums.v.count : 1)}) {
      if (count == 0) return absl::FailedPreconditionError(absl::StrCat("layer ", layer, " has no ", what));
    }
    profile.layers.push_back({Means(sums.q.mean, sums.q.count),
                              Means(sums.k.mean, sums.k.count),
                              {},
                              Moments(sums.q.moment, sums.q.count),
                              Moments(sums.k.moment, sums.k.count),
                              Moments(sums.residual.moment, sums.residual.count),
                              {}});
    if (with_values) {
      profile.layers.back().v_mean = Means(sums.v.mean, sums.v.count);
      profile.layers.back().v_moment = Moments(sums.v.moment, sums.v.count);
    }
    // Layers may come from different texts: what every layer has.
    profile.key_tokens = layer == 0 ? sums.k.count : std::min(profile.key_tokens, sums.k.count);
    profile.query_tokens = layer == 0 ? sums.q.count : std::min(profile.query_tokens, sums.q.count);
  }
  return profile;
}

}  // namespace seine
