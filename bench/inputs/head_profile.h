// The profile of one head alone, as an index of a single head takes it: cut from a model's, or measured on the head.
#ifndef SEINE_BENCH_INPUTS_HEAD_PROFILE_H_
#define SEINE_BENCH_INPUTS_HEAD_PROFILE_H_

#include <cstdint>
#include <limits>
#include <memory>

#include "absl/status/statusor.h"
#include "bench/inputs/dataset.h"
#include "profile/profile.h"
#include "profile/rope.h"

namespace seine::bench {

// `model`'s moments of (head.layer, head.kv_head); the group's queries as one head's, for one transform serves them
// all. INVALID_ARGUMENT "--profile: ..." where the model is of another shape than `info`.
absl::StatusOr<std::shared_ptr<const Profile>> CutProfile(const Profile& model, const DatasetInfo& info,
                                                          const Head& head);

// The same as a model of one layer and one KV head, with all query heads of its group and the moments of values.
std::shared_ptr<const Profile> ProfileOfHead(const Profile& model, int layer, int kv_head);

// Measured on the head's zone and on the queries that are not tested (Head::own_queries). Of a zone of more than
// most_keys, windows of 64 that are spread over it evenly stand for all.
absl::StatusOr<std::shared_ptr<const Profile>> OwnProfile(const Head& head, int head_dim, const Rope& rope,
                                                          int64_t most_keys = std::numeric_limits<int64_t>::max());

}  // namespace seine::bench

#endif  // SEINE_BENCH_INPUTS_HEAD_PROFILE_H_
