// Holding codes against queries.
#include "index/transforms/query_fit.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "profile/moments.h"
#include "profile/profile.h"

namespace seine {

namespace {

constexpr size_t kProbes = 32;  // steps of a sample that a code is held against

// The query of one head in one step.
Eigen::VectorXd QueryOf(const SeenQueries& seen, const Geometry& g, size_t step, int q_head) {
  const float* row = seen.rows.data() + (static_cast<int64_t>(step) * g.num_q_heads + q_head) * g.head_dim;
  return Eigen::Map<const Eigen::VectorXf>(row, g.head_dim).cast<double>();
}

double NoiseOfHead(const LayerCodecs& codecs, int kv_head, const SeenQueries& seen, const IndexConfig& config,
                   const Rope& rope) {
  const Geometry& g = config.geometry;
  const HeadCodec& head = codecs.heads[kv_head];
  const size_t steps = std::min(kProbes, seen.positions.size());
  const double gap = static_cast<double>(config.codec.horizon) / static_cast<double>(steps * g.group());
  double noise = 0, variance = 0;
  PreparedQuery prepared;
  for (size_t i = 0; i < steps; ++i) {
    const size_t step = i * seen.positions.size() / steps;
    for (int j = 0; j < g.group(); ++j) {
      Eigen::VectorXd x = QueryOf(seen, g, step, kv_head * g.group() + j);
      const auto there = static_cast<int64_t>(gap * (static_cast<double>(i * g.group() + j) + .5));
      ApplyRope(rope, codecs.position + there - seen.positions[step], x.data());
      const Eigen::VectorXf query = x.cast<float>();
      head.codec->PrepareQuery(query.data(), &prepared);
      const double deviation = double{head.codec->CoarseNoise(prepared)} * double{prepared.coarse_step};
      noise += deviation * deviation;
      for (int k = 0; k < g.head_dim; ++k) {
        variance += double{head.lambda[k]} * double{prepared.transformed[k]} * double{prepared.transformed[k]};
      }
    }
  }
  return variance > 0 ? noise / variance : 0;
}

}  // namespace

std::vector<double> NoiseOf(const LayerCodecs& codecs, const SeenQueries& seen, const IndexConfig& config, int layer) {
  std::vector<double> noise(codecs.heads.size());
  const Rope& rope = config.geometry.RopeOf(layer);
  for (size_t h = 0; h < noise.size(); ++h) noise[h] = NoiseOfHead(codecs, static_cast<int>(h), seen, config, rope);
  return noise;
}

std::vector<double> LossOf(const LayerCodecs& codecs, const std::vector<double>& noise) {
  std::vector<double> loss(noise.size());
  for (size_t h = 0; h < noise.size(); ++h) loss[h] = noise[h] / codecs.heads[h].noise - 1;
  return loss;
}

QueryMoments LearnMoments(const SeenQueries& seen, const IndexConfig& config, int layer) {
  const Geometry& g = config.geometry;
  const auto steps = static_cast<int>(seen.positions.size());
  QueryMoments moments;
  for (int h = 0; h < g.num_kv_heads; ++h) {
    Eigen::MatrixXd queries(g.head_dim, steps * g.group());
    for (int i = 0; i < steps; ++i) {
      for (int j = 0; j < g.group(); ++j) {
        Eigen::VectorXd x = QueryOf(seen, g, i, h * g.group() + j);
        UndoRope(g.RopeOf(layer), seen.positions[i], x.data());
        queries.col(i * g.group() + j) = x;
      }
    }
    const Eigen::MatrixXd live = queries * queries.transpose();
    const Eigen::MatrixXd before = GroupQueryMoment(*config.codec.profile, layer, h);
    const double count = live.trace() > 0 ? static_cast<double>(queries.cols()) : 0;
    Eigen::MatrixXd mixed = before * (g.head_dim / before.trace());
    if (count > 0) mixed += live * (count / live.trace());
    moments.push_back(mixed / (g.head_dim + count));
  }
  return moments;
}

}  // namespace seine
