// The moments that a profile holds, as matrices: of one layer, flattened for files and messages, and carried through
// RoPE. Apart from profile.h, so that whoever only reads a profile and hands it on needs no Eigen.
#ifndef SEINE_PROFILE_MOMENTS_H_
#define SEINE_PROFILE_MOMENTS_H_

#include <Eigen/Core>
#include <cstdint>
#include <vector>

#include "profile/profile.h"
#include "profile/rope.h"

namespace seine {

struct LayerProfile {
  std::vector<Eigen::VectorXd> q_mean, k_mean, v_mean;  // [Hq], [Hkv], [Hkv], each [D]; v_*: empty if not measured
  std::vector<Eigen::MatrixXd> q_moment;                // [Hq] uncentred, [D, D]
  std::vector<Eigen::MatrixXd> k_moment;                // [Hkv] uncentred
  std::vector<Eigen::MatrixXd> k_residual;  // [Hkv] about the means of windows of 64, subtracted after RoPE as the
                                            // index does (stored as int8), then carried back
  std::vector<Eigen::MatrixXd> v_moment;    // [Hkv] uncentred
};

// Uncentred second moment of the queries of a KV head's group.
Eigen::MatrixXd GroupQueryMoment(const Profile& profile, int layer, int kv_head);

// Heads one after another, as files and messages hold them: means, and symmetric matrices as upper triangles row by
// row. And back, of finite numbers of the right count.
std::vector<double> Flatten(const std::vector<Eigen::VectorXd>& heads);
std::vector<double> Flatten(const std::vector<Eigen::MatrixXd>& heads);
std::vector<Eigen::VectorXd> MeansOf(const std::vector<float>& values, int heads, int head_dim);
std::vector<Eigen::MatrixXd> MomentsOf(const std::vector<float>& values, int heads, int head_dim);
inline int64_t TriangleSize(int64_t head_dim) { return head_dim * (head_dim + 1) / 2; }

// A second moment E[x x^T] (resp. a mean) in the frame before RoPE, as it is over positions uniform in [begin, end].
// C_il * mean e^{j(w_i - w_l)n}, P_il * mean e^{j(w_i + w_l)n}. RoPE not stated: unchanged.
Eigen::MatrixXd CarryMoment(const Eigen::MatrixXd& moment, const Rope& rope, double begin, double end);
Eigen::VectorXd CarryMean(const Eigen::VectorXd& mean, const Rope& rope, double begin, double end);

}  // namespace seine

#endif  // SEINE_PROFILE_MOMENTS_H_
