// A synthetic model for the balanced code: keys and queries of every head are Gaussian in the frame before RoPE, each
// with a mean and a spectrum of its own, so that a profile has something to find. Also that profile.
#ifndef SEINE_TESTS_INDEX_SYNTHETIC_MODEL_H_
#define SEINE_TESTS_INDEX_SYNTHETIC_MODEL_H_

#include <Eigen/Core>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "index/config/config.h"
#include "profile/profile.h"
#include "tests/index/test_util.h"

namespace seine::testing {

class MadeUpModel {
 public:
  static constexpr char kRopeJson[] = R"({"rope_theta": 10000})";

  // Models that differ in their queries have the same keys. `query_decay`: the larger, the fewer directions queries
  // take.
  explicit MadeUpModel(const Geometry& geometry, uint32_t query_seed = 200, double query_decay = 4);

  const Geometry& geometry() const { return g_; }

  // [count, num_kv_heads, head_dim] at positions first..., and [num_q_heads, head_dim] at one; the same for every
  // layer.
  std::vector<float> Keys(int64_t first, int64_t count) const;
  std::vector<float> Query(int64_t position, uint64_t seed) const;

  std::string KeyRows(int64_t first, int64_t count) const;

  // Measured on `tokens` tokens.
  std::shared_ptr<const Profile> Measure(int64_t tokens = 4096) const;

 private:
  struct Source {
    Eigen::MatrixXd map;  // [head_dim, head_dim]
    Eigen::VectorXd mean;
  };

  Source MakeSource(uint32_t seed, double decay) const;
  std::vector<float> Vectors(const std::vector<Source>& heads, int64_t first, int64_t count, uint64_t seed) const;

  Geometry g_;
  std::vector<Source> keys_, queries_;  // [num_kv_heads], [num_q_heads]; a group's query heads are alike
};

// SmallConfig's zones over a model's geometry.
IndexConfig BalancedConfig(const MadeUpModel& model, std::shared_ptr<const Profile> profile,
                           KvStore store = KvStore::kKeys);

}  // namespace seine::testing

#endif  // SEINE_TESTS_INDEX_SYNTHETIC_MODEL_H_
