// Q-Filters' directions: for each KV head the direction that its queries share (Q-Filters, section 2.2). From a model
// profile, from queries, or from a published file. Everywhere here the sign is the scorer's: high <k, filter> is kept.
#ifndef SEINE_PROFILE_FILTERS_H_
#define SEINE_PROFILE_FILTERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "profile/profile.h"
#include "profile/rope.h"

namespace seine {

// [num_kv_heads, head_dim] of one layer, row-major.
using Filters = std::vector<float>;

// Per query head the leading eigenvector of the uncentred second moment, its sign such that the queries' mean projects
// positive (section 2.2 c); mean over the group, not normalised again. The profile's moments are carried to positions
// [begin, end] and brought to the layout of `rope`, which is as in geometry. INVALID_ARGUMENT where the profile has no
// such layer.
absl::StatusOr<Filters> FiltersFromProfile(const Profile& profile, int layer, const Rope& rope, double begin,
                                           double end);
// The same of queries [count, num_q_heads, head_dim] after RoPE, count >= 1.
Filters FiltersFromQueries(const float* queries, int64_t count, int num_kv_heads, int group, int head_dim);

// A safetensors file holding "q_filters" [layers, num_kv_heads, head_dim] as they are published: negated, score =
// -<f, k>. `negated` false: a file in the scorer's own sign. Filters of every layer. NOT_FOUND, DATA_LOSS, or
// INVALID_ARGUMENT "filters: ..." for another shape than the geometry's.
absl::StatusOr<std::vector<Filters>> ReadFilters(const std::string& path, bool negated, int num_layers,
                                                 int num_kv_heads, int head_dim);

}  // namespace seine

#endif  // SEINE_PROFILE_FILTERS_H_
