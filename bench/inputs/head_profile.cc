// See head_profile.h.
#include "bench/inputs/head_profile.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "profile/moments.h"

namespace seine::bench {

absl::StatusOr<std::shared_ptr<const Profile>> CutProfile(const Profile& model, const DatasetInfo& info,
                                                          const Head& head) {
  const int q_heads = info.num_kv_heads * info.group;
  if (model.head_dim != info.head_dim || model.num_kv_heads != info.num_kv_heads || model.num_q_heads != q_heads ||
      head.layer >= static_cast<int>(model.layers.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--profile: of ", model.model, " with ", model.layers.size(), " layers of ", model.num_q_heads, " query and ",
        model.num_kv_heads, " KV heads, head_dim ", model.head_dim, "; the keys are of layer ", head.layer, ", ",
        q_heads, " query and ", info.num_kv_heads, " KV heads, head_dim ", info.head_dim));
  }
  const LayerProfile& layer = model.layers[head.layer];
  Profile cut = model;
  cut.num_q_heads = cut.num_kv_heads = 1;
  cut.layers.assign(1, LayerProfile());
  LayerProfile& one = cut.layers[0];
  one.q_mean = {layer.q_mean[static_cast<size_t>(head.kv_head) * info.group]};
  one.q_moment = {GroupQueryMoment(model, head.layer, head.kv_head)};
  one.k_mean = {layer.k_mean[head.kv_head]};
  one.k_moment = {layer.k_moment[head.kv_head]};
  one.k_residual = {layer.k_residual[head.kv_head]};
  return std::make_shared<const Profile>(std::move(cut));
}

std::shared_ptr<const Profile> ProfileOfHead(const Profile& model, int layer, int kv_head) {
  auto profile = std::make_shared<Profile>(model);
  const int group = model.num_q_heads / model.num_kv_heads;
  const LayerProfile& all = model.layers[layer];
  LayerProfile one;
  for (int g = kv_head * group; g < (kv_head + 1) * group; ++g) {
    one.q_mean.push_back(all.q_mean[g]);
    one.q_moment.push_back(all.q_moment[g]);
  }
  one.k_mean = {all.k_mean[kv_head]};
  one.k_moment = {all.k_moment[kv_head]};
  one.k_residual = {all.k_residual[kv_head]};
  if (!all.v_moment.empty()) one.v_mean = {all.v_mean[kv_head]}, one.v_moment = {all.v_moment[kv_head]};
  profile->layers = {std::move(one)};
  profile->num_q_heads = group;
  profile->num_kv_heads = 1;
  return profile;
}

absl::StatusOr<std::shared_ptr<const Profile>> OwnProfile(const Head& head, int head_dim, const Rope& rope,
                                                          int64_t most_keys) {
  ProfileBuilder builder(1, 1, 1, head_dim);
  const auto add_keys = [&](int64_t first, int64_t count) {
    builder.AddKeys(0, head.keys.data() + first * head_dim, count, first, rope);
  };
  if (head.num_keys() <= most_keys) {
    add_keys(head.zone_begin, head.num_keys());
  } else {
    const int64_t windows = head.num_keys() / kWindowTokens, taken = most_keys / kWindowTokens;
    for (int64_t w = 0; w < taken; ++w) {
      add_keys(head.zone_begin + w * windows / taken * kWindowTokens, kWindowTokens);
    }
  }
  const int64_t group = head.own_queries.empty() ? 0
                                                 : static_cast<int64_t>(head.own_queries.size()) / head_dim /
                                                       static_cast<int64_t>(head.own_positions.size());
  for (size_t i = 0; i < head.own_positions.size(); ++i) {
    for (int64_t g = 0; g < group; ++g) {
      const float* query = &head.own_queries[(static_cast<int64_t>(i) * group + g) * head_dim];
      builder.AddQueries(0, query, 1, head.own_positions[i], rope);
    }
  }
  auto profile = builder.Finish();
  if (!profile.ok()) return profile.status();
  profile->model = "own";
  return std::make_shared<const Profile>(*std::move(profile));
}

}  // namespace seine::bench
