#include "index/eviction/diagnose.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "index/eviction/select_kept.h"
#include "index/scorers/scorers.h"
#include "index/scorers/value_weight.h"
#include "index/stop_status.h"
#include "kernels/host.h"
#include "kernels/stop.h"
#include "profile/field_error.h"
#include "profile/spectrum.h"

namespace seine {

namespace {

using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Up to `most` tokens, evenly spread, as rows.
Rows Sample(const HeadTokens& head, int dim, int64_t most) {
  const int64_t count = std::min(head.count, most);
  Rows rows(count, dim);
  for (int64_t i = 0; i < count; ++i) {
    const ConstRows row = {head.keys.row(i * head.count / count), dim * SizeOf(head.keys.dtype), head.keys.dtype};
    host::ToFloat(row, 1, dim, rows.data() + i * dim);
  }
  return rows;
}

// For each row the distances to its nearest other rows that differ from it, ascending.
std::vector<std::vector<double>> Neighbours(const Rows& rows) {
  const Eigen::MatrixXd x = rows.cast<double>();
  const Eigen::VectorXd squares = x.rowwise().squaredNorm();
  std::vector<std::vector<double>> nearest(x.rows());
  for (Eigen::Index i = 0; i < x.rows() && !StopRequested(); ++i) {
    const Eigen::VectorXd to = (squares.array() + squares[i]).matrix() - 2 * (x * x.row(i).transpose());
    std::vector<double> distances;
    for (Eigen::Index j = 0; j < to.size(); ++j) {
      if (j != i && to[j] > 1e-9 * squares[i]) distances.push_back(std::sqrt(to[j]));
    }
    const size_t kept = std::min<size_t>(distances.size(), kDiagnosedNeighbours);
    std::partial_sort(distances.begin(), distances.begin() + static_cast<int64_t>(kept), distances.end());
    distances.resize(kept);
    nearest[i] = std::move(distances);
  }
  return nearest;
}

// d = N / sum of ln(r2 / r1).
double TwoNn(const std::vector<std::vector<double>>& nearest) {
  double sum = 0, count = 0;
  for (const auto& r : nearest) {
    if (r.size() < 2) continue;
    sum += std::log(r[1] / r[0]);
    ++count;
  }
  return sum > 0 ? count / sum : 0;
}

// 1 / d = mean over tokens of 1 / (k - 1) sum over j < k of ln(r_k / r_j).
double MaximumLikelihood(const std::vector<std::vector<double>>& nearest) {
  double inverse = 0, count = 0;
  for (const auto& r : nearest) {
    if (r.size() < kDiagnosedNeighbours) continue;
    double sum = 0;
    for (const double distance : r) sum += std::log(r.back() / distance);
    inverse += sum / static_cast<double>(r.size() - 1);
    ++count;
  }
  return inverse > 0 ? count / inverse : 0;
}

int Pca95(const Rows& rows) {
  Eigen::MatrixXd x = rows.cast<double>();
  x.rowwise() -= x.colwise().mean().eval();
  const Eigen::VectorXd values = EigenvaluesOf(x.transpose() * x).cwiseMax(0).reverse();
  double left = .95 * values.sum();
  int components = 0;
  while (components < values.size() && left > 0) left -= values[components++];
  return components;
}

struct Spread {
  double mean = 0, std = 0;
};
Spread SpreadOf(const std::vector<float>& x) {
  if (x.empty()) return {};
  const auto n = static_cast<double>(x.size());
  Spread spread;
  for (const float v : x) spread.mean += v / n;
  for (const float v : x) spread.std += (v - spread.mean) * (v - spread.mean) / n;
  spread.std = std::sqrt(spread.std);
  return spread;
}

// Ranks of x, equal ones sharing their mean rank.
std::vector<double> Ranks(const std::vector<float>& x) {
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] < x[b]; });
  std::vector<double> ranks(x.size());
  for (size_t i = 0; i < order.size();) {
    size_t end = i;
    while (end < order.size() && x[order[end]] == x[order[i]]) ++end;
    for (size_t j = i; j < end; ++j) ranks[order[j]] = static_cast<double>(i + end - 1) / 2;
    i = end;
  }
  return ranks;
}

double Correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const Eigen::Map<const Eigen::VectorXd> x(a.data(), static_cast<Eigen::Index>(a.size()));
  const Eigen::Map<const Eigen::VectorXd> y(b.data(), static_cast<Eigen::Index>(b.size()));
  if (x.size() == 0) return 0;
  const Eigen::VectorXd p = x.array() - x.mean(), q = y.array() - y.mean();
  const double size = p.norm() * q.norm();
  return size > 0 ? p.dot(q) / size : 0;
}

// A scorer's scores of one head.
struct HeadScores {
  const std::vector<float>* scores;
  TokenRange range;  // of them are scores; the others mark what is always kept
};
// Over the tokens that both have scored.
double Correlation(const HeadScores& a, const HeadScores& b) {
  const int64_t begin = std::max(a.range.begin, b.range.begin);
  const int64_t end = std::max(begin, std::min(a.range.end, b.range.end));
  const auto ranks = [=](const HeadScores& of) {
    return Ranks(std::vector<float>(of.scores->begin() + begin, of.scores->begin() + end));
  };
  return Correlation(ranks(a), ranks(b));
}

double Overlap(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  std::vector<uint32_t> common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
  const size_t larger = std::max(a.size(), b.size());
  return larger == 0 ? 0 : static_cast<double>(common.size()) / static_cast<double>(larger);
}

absl::StatusOr<Scores> ScoresOf(const Scorer& scorer, const ScoreInput& input) {
  Scores scores;
  if (absl::Status s = scorer.Score(input, &scores); !s.ok()) return s;
  return scores;
}

absl::StatusOr<Scores> ScoresOf(const ScorerConfig& config, const ScoreInput& input) {
  auto scorer = MakeScorer(config);
  if (!scorer.ok()) return scorer.status();
  return ScoresOf(**scorer, input);
}

absl::Status MeasureGeometry(const DiagnoseParams& params, const ScoreInput& input, std::vector<HeadDiagnosis>* heads) {
  ScorerConfig windowed, whole, norms, cosines;
  windowed.name = "windowed_manifoldkv";
  windowed.window = params.window;
  whole.name = "manifoldkv";
  norms.name = "knorm";
  std::vector<Scores> scores;
  for (const ScorerConfig& config : {windowed, whole, norms, cosines}) {
    auto one = ScoresOf(config, input);
    if (!one.ok()) return one.status();
    scores.push_back(*std::move(one));
  }
  for (size_t h = 0; h < heads->size(); ++h) {
    HeadDiagnosis& head = (*heads)[h];
    const Spread local = SpreadOf(scores[0][h]), global = SpreadOf(scores[1][h]);
    const Spread norm = SpreadOf(scores[2][h]), cosine = SpreadOf(scores[3][h]);
    if (local.mean > 0 && global.std > 0) head.dilution = local.std / local.mean / (global.std / global.mean);
    head.norm_mean = -norm.mean, head.norm_std = norm.std;
    head.cosine_mean = -cosine.mean, head.cosine_std = cosine.std;
  }
  input.backend->Run(static_cast<int>(heads->size()), [&](int h) {
    HeadDiagnosis& head = (*heads)[h];
    head.tokens = input.heads[h].count;
    if (head.tokens == 0) return;
    const Rows rows = Sample(input.heads[h], input.head_dim, kDiagnosedTokens);
    const auto nearest = Neighbours(rows);
    head.two_nn = TwoNn(nearest);
    head.mle = MaximumLikelihood(nearest);
    head.pca95 = Pca95(rows);
  });
  return StopStatus();
}

}  // namespace

absl::Status OfScorers(size_t place, const absl::Status& status) {
  const std::string field = FieldOf(status);
  absl::string_view option = field;
  if (!absl::ConsumePrefix(&option, "scorer.")) return status;
  return WithField(status, absl::StrCat("scorers[", place, "].", option));
}

absl::StatusOr<std::vector<HeadDiagnosis>> Diagnose(const DiagnoseParams& params, int num_layers,
                                                    const ScoreInput& input) {
  if (params.scorers.size() > kMaxDiagnosedScorers) {
    return BadField("scorers", params.scorers.size(), " given, at most ", kMaxDiagnosedScorers);
  }
  if (params.window < 1 || params.window > kMaxDiagnosedWindow) {
    return BadField("window", params.window, " is not in [1, ", kMaxDiagnosedWindow, "]");
  }
  if (absl::Status s = Validate(params.budget); !s.ok()) return s;
  std::vector<HeadDiagnosis> heads(input.heads.size());
  ScoreInput keys = input;
  for (HeadTokens& head : keys.heads) head.sums = nullptr;
  if (absl::Status s = MeasureGeometry(params, keys, &heads); !s.ok()) return s;

  std::vector<Scores> scores;
  std::vector<std::shared_ptr<const Scorer>> made;
  std::vector<std::vector<std::vector<uint32_t>>> kept;
  for (const ScorerConfig& config : params.scorers) {
    auto scorer = MakeScorer(config);
    if (!scorer.ok()) return OfScorers(scores.size(), scorer.status());
    auto one = ScoresOf(**scorer, keys);
    if (!one.ok()) return OfScorers(scores.size(), one.status());
    const int64_t window = (*scorer)->observation_window();
    Scores stages = *one;
    const ValueWeighting* const weighting = (*scorer)->weighting();
    auto selected = SelectKept(params.budget, {}, num_layers, window, input, &stages, weighting);
    if (!selected.ok()) return OfScorers(scores.size(), selected.status());
    if (weighting != nullptr) {
      if (absl::Status s = weighting->Apply(input, &*one); !s.ok()) return OfScorers(scores.size(), s);
    }
    scores.push_back(*std::move(one));
    made.push_back(*std::move(scorer));
    kept.push_back(*std::move(selected));
  }
  Scores attention;
  if (input.queries != nullptr) {
    ScorerConfig h2o;
    h2o.name = "h2o";
    auto observed = ScoresOf(h2o, keys);
    if (!observed.ok()) return observed.status();
    attention = *std::move(observed);
  }
  input.backend->Run(static_cast<int>(heads.size()), [&](int h) {
    std::vector<HeadScores> of_scorers;
    for (size_t a = 0; a < scores.size(); ++a) of_scorers.push_back({&scores[a][h], made[a]->Scored(keys, h)});
    for (size_t a = 0; a < scores.size(); ++a) {
      for (size_t b = 0; b < scores.size(); ++b) {
        if (StopRequested()) return;
        heads[h].overlap.push_back(Overlap(kept[a][h], kept[b][h]));
        const bool known = b < a;  // as b with a
        heads[h].correlation.push_back(known ? heads[h].correlation[b * scores.size() + a]
                                             : Correlation(of_scorers[a], of_scorers[b]));
      }
    }
    if (attention.empty()) return;
    // What h2o scores after the last query is no attention.
    const int64_t seen = scorers::CountUpTo(input.heads[h], input.query_position(input.num_queries - 1));
    heads[h].attention_tokens = seen;
    for (size_t a = 0; a < scores.size() && seen >= 2 && !StopRequested(); ++a) {
      heads[h].attention_correlation.push_back(Correlation(of_scorers[a], {&attention[h], {0, seen}}));
    }
  });
  if (absl::Status s = StopStatus(); !s.ok()) return s;
  return heads;
}

}  // namespace seine
