// Expected Attention: what queries at the next `future` positions are expected to pay, with queries Gaussian before
// RoPE, E e^{s <q, k>} = e^{s <k, R mu> + s^2 k^T R S R^T k / 2}, s the softmax scale and R the mean rotation over
// those positions.
//
// Softmax over a head's tokens but the sinks, mean over the group, (s + epsilon) |v|; sinks are above all others. mu
// and S come from the observed queries (those past the sinks, RoPE undone) or from the model's profile. Definition:
// kvpress.
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <numbers>

#include "index/scorers/attention.h"
#include "index/scorers/scorers.h"
#include "kernels/host.h"
#include "kernels/stop.h"
#include "profile/field_error.h"
#include "profile/moments.h"
#include "profile/spectrum.h"

namespace seine::scorers {

namespace {

struct Moments {
  Eigen::VectorXd mean;        // [D]
  Eigen::MatrixXd covariance;  // [D, D]
};

// Returns the moments, before RoPE, of one query head's given queries that come after the sinks.
Moments ObservedMoments(const ScoreInput& input, int q_head, int sink) {
  const int dim = input.head_dim;
  Moments m{Eigen::VectorXd::Zero(dim), Eigen::MatrixXd::Zero(dim, dim)};
  const int64_t begin = input.QueriesBefore(sink);
  Eigen::MatrixXd x(input.num_queries - begin, dim);
  std::vector<double> row(dim);
  for (int64_t q = begin; q < input.num_queries; ++q) {
    const float* query = input.queries + (q * input.num_q_heads() + q_head) * dim;
    std::copy(query, query + dim, row.begin());
    if (input.rope != nullptr && input.rope->stated()) UndoRope(*input.rope, input.query_position(q), row.data());
    x.row(q - begin) = Eigen::Map<const Eigen::RowVectorXd>(row.data(), dim);
  }
  m.mean = x.colwise().mean();
  x.rowwise() -= m.mean.transpose();
  m.covariance = x.transpose() * x / static_cast<double>(x.rows());
  return m;
}

Moments ProfileMoments(const ScoreInput& input, int q_head) {
  const LayerProfile& layer = input.profile->layers[input.layer];
  const Eigen::VectorXd& mean = layer.q_mean[q_head];
  return {mean, layer.q_moment[q_head] - mean * mean.transpose()};
}

// The mean rotation over positions [begin, begin + count): a mean phase for each pair. That of n turns by w is a turn
// to their middle, sin(n w / 2) / (n sin(w / 2)) long.
Eigen::MatrixXd MeanRotation(const Rope& rope, int64_t begin, int count) {
  Eigen::MatrixXd rotation = Eigen::MatrixXd::Zero(rope.head_dim(), rope.head_dim());
  for (int i = 0; i < rope.head_dim() / 2; ++i) {
    const double half = std::remainder(rope.inv_freq[i], 2 * std::numbers::pi) / 2;
    const double length = half == 0 ? 1 : std::sin(count * half) / (count * std::sin(half));
    const double middle = (2 * static_cast<double>(begin) + count - 1) * half;
    const double c = length * std::cos(middle), s = length * std::sin(middle);
    const int a = rope.first(i), b = rope.second(i);
    rotation(a, a) = rotation(b, b) = c;
    rotation(b, a) = s;
    rotation(a, b) = -s;
  }
  return rotation;
}

class ExpectedAttention : public Scorer {
 public:
  explicit ExpectedAttention(const ScorerConfig& config) : config_(config) {}

  bool needs_queries() const override { return true; }
  bool takes_profile() const override { return true; }
  const char* values_option() const override { return config_.value_norms ? "value_norms" : nullptr; }
  int64_t kept_prompt() const override { return config_.sink; }
  const char* kept_prompt_option() const override { return "sink"; }

  // Those behind the sinks.
  TokenRange Scored(const ScoreInput& input, int head) const override {
    return {CountUpTo(input.heads[head], config_.sink - 1), input.heads[head].count};
  }

  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    if (absl::Status s = Check(input); !s.ok()) return s;
    Eigen::MatrixXd rotation = Eigen::MatrixXd::Identity(input.head_dim, input.head_dim);
    if (input.rope != nullptr && input.rope->stated()) {
      rotation = MeanRotation(*input.rope, input.length, config_.future);
    }
    absl::Status status = ForEachHead(input, scores, [&](int h, float* out) {
      ScoreHead(input, h, rotation, out);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    const float above = AboveAll(*scores);
    for (size_t h = 0; h < scores->size(); ++h) {
      std::fill_n((*scores)[h].begin(), Scored(input, static_cast<int>(h)).begin, above);
    }
    return status;
  }

 private:
  bool Observed(const ScoreInput& input) const {
    return input.queries != nullptr && input.QueriesBefore(config_.sink) < input.num_queries;
  }

  absl::Status Check(const ScoreInput& input) const {
    if (input.profile == nullptr && !Observed(input) && input.length > config_.sink) {
      return BadField("given.queries", "expected_attention needs some past the sinks, or a model profile");
    }
    for (size_t h = 0; config_.value_norms && h < input.heads.size(); ++h) {
      if (input.heads[h].values.chunks == nullptr && input.heads[h].count > 0) {
        return FieldError(absl::StatusCode::kFailedPrecondition, "scorer.value_norms",
                          "values are not held; keep them (kv_store keys_values) or set it to false");
      }
    }
    return absl::OkStatus();
  }

  void ScoreHead(const ScoreInput& input, int h, const Eigen::MatrixXd& rotation, float* out) const {
    const HeadTokens& head = input.heads[h];
    const int64_t sinks = CountUpTo(head, config_.sink - 1), n = head.count - sinks;
    if (n <= 0) return;
    std::vector<float> logits(n);
    for (int g = 0; g < input.group && !StopRequested(); ++g) {
      const int q_head = h * input.group + g;
      Logits(input, head, sinks, MomentsOf(input, q_head), rotation, logits.data());
      AddSoftmax(logits.data(), n, 1.0f, 1.0f / static_cast<float>(input.group), out + sinks);
    }
    if (!config_.value_norms) return;
    std::vector<float> norms(n);
    ForEachRun(head.values, sinks, head.count, [&](const ConstRows& rows, int64_t first, int64_t count) {
      host::ScoreKeys(rows, count, input.head_dim, KeyScore::kNegNorm, nullptr, norms.data() + (first - sinks));
    });
    const auto epsilon = static_cast<float>(config_.epsilon);
    for (int64_t i = 0; i < n; ++i) out[sinks + i] = (out[sinks + i] + epsilon) * -norms[i];
  }

  Moments MomentsOf(const ScoreInput& input, int q_head) const {
    return Observed(input) ? ObservedMoments(input, q_head, config_.sink) : ProfileMoments(input, q_head);
  }

  // s <k, R mu> + s^2 |L^T k|^2 / 2 with R S R^T = L L^T by its eigenvectors: one more dot product a direction.
  void Logits(const ScoreInput& input, const HeadTokens& head, int64_t begin, const Moments& moments,
              const Eigen::MatrixXd& rotation, float* out) const {
    const int dim = input.head_dim;
    const Spectrum spectrum = Decompose(rotation * moments.covariance * rotation.transpose());
    const Eigen::MatrixXd factor = spectrum.vectors * spectrum.values.cwiseMax(0).cwiseSqrt().asDiagonal();
    // Row-major rows are the directions: the mean first.
    Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> directions(dim + 1, dim);
    const double scale = input.softmax_scale;
    directions.row(0) = (rotation * moments.mean * scale).cast<float>().transpose();
    directions.bottomRows(dim) = (factor.transpose() * (scale / std::sqrt(2.0))).cast<float>();
    constexpr int64_t kBlock = 256;
    std::vector<float> dots((dim + 1) * kBlock);
    for (int64_t first = begin; first < head.count; first += kBlock) {
      const int64_t stop = std::min(first + kBlock, head.count);
      ForEachRun(head.keys, first, stop, [&](const ConstRows& rows, int64_t at, int64_t count) {
        host::DotRows(rows, count, dim, directions.data(), dim + 1, dots.data(), count);
        for (int64_t i = 0; i < count; ++i) {
          float sum = dots[i];
          for (int r = 1; r <= dim; ++r) sum += dots[r * count + i] * dots[r * count + i];
          out[at - begin + i] = sum;
        }
      });
    }
  }

  const ScorerConfig config_;
};

}  // namespace

absl::StatusOr<ScorerRef> MakeExpectedAttention(const ScorerConfig& config) {
  return std::make_shared<ExpectedAttention>(config);
}

}  // namespace seine::scorers
