#include "tests/index/synthetic_model.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>
#include <utility>

#include "profile/moments.h"
#include "profile/rope.h"

namespace seine::testing {
namespace {

// Standard normal numbers from a counter (splitmix64, Box-Muller): a generator with a large state would cost more to
// seed for every token than its numbers do.
class Normal {
 public:
  explicit Normal(uint64_t seed) : state_(seed) {}
  double operator()() {
    const double radius = std::sqrt(-2 * std::log(1 - Uniform()));  // 1 - u is never 0
    return radius * std::cos(2 * std::numbers::pi * Uniform());
  }

 private:
  double Uniform() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return static_cast<double>((z ^ z >> 31) >> 11) * 0x1p-53;
  }
  uint64_t state_;
};

}  // namespace

MadeUpModel::MadeUpModel(const Geometry& geometry, uint32_t query_seed, double query_decay) : g_(geometry) {
  if (!g_.rope.stated()) g_.rope = *ParseRope(kRopeJson, g_.head_dim, Rope::Style::kHalfSplit, 0);
  for (int h = 0; h < g_.num_kv_heads; ++h) keys_.push_back(MakeSource(100 + h, 4));
  for (int h = 0; h < g_.num_q_heads; ++h) queries_.push_back(MakeSource(query_seed + h / g_.group(), query_decay));
}

std::vector<float> MadeUpModel::Keys(int64_t first, int64_t count) const { return Vectors(keys_, first, count, 1); }

std::vector<float> MadeUpModel::Query(int64_t position, uint64_t seed) const {
  return Vectors(queries_, position, 1, 1000 + seed);
}

std::string MadeUpModel::KeyRows(int64_t first, int64_t count) const {
  std::string rows;
  for (const float x : Keys(first, count)) PutFloat(g_.dtype, x, &rows);
  return rows;
}

std::shared_ptr<const Profile> MadeUpModel::Measure(int64_t tokens) const {
  ProfileBuilder builder(1, g_.num_q_heads, g_.num_kv_heads, g_.head_dim);
  const std::vector<float> keys = Keys(0, tokens), queries = Vectors(queries_, 0, tokens, 7);
  builder.AddKeys(0, keys.data(), tokens, 0, g_.rope);
  builder.AddQueries(0, queries.data(), tokens, 0, g_.rope);
  builder.AddValues(0, keys.data(), tokens);
  Profile profile = *builder.Finish();
  profile.layers.resize(g_.num_layers, LayerProfile(profile.layers.front()));
  profile.model = "made/up";
  profile.rope_json = kRopeJson;
  return std::make_shared<const Profile>(std::move(profile));
}

MadeUpModel::Source MadeUpModel::MakeSource(uint32_t seed, double decay) const {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  const auto draw = [&] { return normal(random); };
  const Eigen::MatrixXd mixed = Eigen::MatrixXd::NullaryExpr(g_.head_dim, g_.head_dim, draw);
  const Eigen::MatrixXd turned = Eigen::HouseholderQR<Eigen::MatrixXd>(mixed).householderQ();
  Eigen::VectorXd scale(g_.head_dim);
  for (int i = 0; i < g_.head_dim; ++i) scale(i) = 2 * std::exp(-decay * i / g_.head_dim);
  return {turned * scale.asDiagonal(), Eigen::VectorXd::NullaryExpr(g_.head_dim, draw)};
}

std::vector<float> MadeUpModel::Vectors(const std::vector<Source>& heads, int64_t first, int64_t count,
                                        uint64_t seed) const {
  std::vector<float> out;
  out.reserve(count * heads.size() * g_.head_dim);
  std::vector<double> x(g_.head_dim);
  for (int64_t position = first; position < first + count; ++position) {
    for (size_t h = 0; h < heads.size(); ++h) {
      Normal normal((seed * 1000003 + position) * 1009 + h);
      std::copy_n(heads[h].mean.data(), g_.head_dim, x.data());
      for (int j = 0; j < g_.head_dim; ++j) {  // by hand: Eigen's product takes ten times as long under a sanitizer
        const double z = normal(), *column = heads[h].map.data() + static_cast<int64_t>(j) * g_.head_dim;
        for (int i = 0; i < g_.head_dim; ++i) x[i] += z * column[i];
      }
      ApplyRope(g_.rope, position, x.data());
      for (const double value : x) out.push_back(static_cast<float>(value));
    }
  }
  return out;
}

IndexConfig BalancedConfig(const MadeUpModel& model, std::shared_ptr<const Profile> profile, KvStore store) {
  IndexConfig config = SmallConfig(store);
  config.geometry = model.geometry();
  config.codec.name = "balanced";
  config.codec.profile = std::move(profile);
  config.codec.profile_name = "synthetic";
  return config;
}

}  // namespace seine::testing
