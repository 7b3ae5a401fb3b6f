#include "profile/layout.h"

#include <utility>
#include <vector>

#include "profile/moments.h"

namespace seine {
namespace {

// order[place in `to`]: place in `from`.
std::vector<int> OrderOf(Rope::Style from, Rope::Style to, Eigen::Index head_dim) {
  Rope old_rope, new_rope;
  old_rope.style = from;
  new_rope.style = to;
  old_rope.inv_freq.resize(head_dim / 2);
  new_rope.inv_freq.resize(head_dim / 2);
  std::vector<int> order(head_dim);
  for (int i = 0; i < static_cast<int>(head_dim / 2); ++i) {
    order[new_rope.first(i)] = old_rope.first(i);
    order[new_rope.second(i)] = old_rope.second(i);
  }
  return order;
}

template <typename Heads>
void Bring(Rope::Style from, Rope::Style to, Heads* heads) {
  for (auto& head : *heads) head = InLayout(head, from, to);
}

}  // namespace

Eigen::VectorXd InLayout(const Eigen::VectorXd& mean, Rope::Style from, Rope::Style to) {
  if (from == to) return mean;
  return mean(OrderOf(from, to, mean.size()));
}

Eigen::MatrixXd InLayout(const Eigen::MatrixXd& moment, Rope::Style from, Rope::Style to) {
  if (from == to) return moment;
  const std::vector<int> order = OrderOf(from, to, moment.rows());
  return moment(order, order);
}

Rope::Style LayoutOf(const Profile& profile, const Rope& rope) {
  return profile.rope_json.empty() || !rope.stated() ? rope.style : profile.rope_style;
}

std::shared_ptr<const Profile> InLayout(std::shared_ptr<const Profile> profile, const Rope& rope) {
  const Rope::Style from = profile == nullptr ? rope.style : LayoutOf(*profile, rope), to = rope.style;
  if (from == to) return profile;
  Profile brought = *profile;
  brought.rope_style = to;
  for (LayerProfile& layer : brought.layers) {
    Bring(from, to, &layer.q_mean);
    Bring(from, to, &layer.q_moment);
    Bring(from, to, &layer.k_mean);
    Bring(from, to, &layer.k_moment);
    Bring(from, to, &layer.k_residual);
  }
  return std::make_shared<const Profile>(std::move(brought));
}

}  // namespace seine
