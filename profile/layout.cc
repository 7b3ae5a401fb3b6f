#include "profile/layout.h"

#include <cassert>
#include <utility>
#include <vector>

#include "profile/moments.h"

namespace seine {
namespace {

// order[place in `to`]: place in `from`.
std::vector<int> OrderOf(const Rope& from, const Rope& to) {
  std::vector<int> order(from.head_dim());
  for (int i = 0; i < from.head_dim() / 2; ++i) {
    order[to.first(i)] = from.first(i);
    order[to.second(i)] = from.second(i);
  }
  return order;
}

// Returns true if pairs lie in the same places.
bool Alike(const Rope& a, const Rope& b) {
  return a.style == b.style && (a.style == Rope::Style::kInterleaved || a.half() == b.half());
}

template <typename Heads>
void Bring(const Rope& from, const Rope& to, Heads* heads) {
  for (auto& head : *heads) head = InLayout(head, from, to);
}

}  // namespace

Eigen::VectorXd InLayout(const Eigen::VectorXd& mean, const Rope& from, const Rope& to) {
  if (Alike(from, to)) return mean;
  return mean(OrderOf(from, to));
}

Eigen::MatrixXd InLayout(const Eigen::MatrixXd& moment, const Rope& from, const Rope& to) {
  if (Alike(from, to)) return moment;
  const std::vector<int> order = OrderOf(from, to);
  return moment(order, order);
}

Rope LayoutOf(const Profile& profile, const Rope& rope) {
  if (profile.rope_json.empty() || !rope.turns()) return rope;
  const absl::StatusOr<Rope> own = ParseRope(profile.rope_json, profile.head_dim, profile.rope_style, /*length=*/1);
  assert(own.ok());  // as every reader of profiles, and Validate, has found
  return own.ok() && own->turns() ? *own : rope;
}

std::shared_ptr<const Profile> InLayout(std::shared_ptr<const Profile> profile, const Rope& rope) {
  if (profile == nullptr) return profile;
  const Rope from = LayoutOf(*profile, rope);
  if (Alike(from, rope)) return profile;
  Profile brought = *profile;
  if (from.half() != rope.half()) {
    const auto moved = [&rope](Rope own) {
      own.style = rope.style, own.rotary_dim = rope.rotary_dim;
      return own;
    };
    brought.rope_json = RopeJson(moved(from));
    auto others = ParseLayerRopes(profile->layer_ropes_json, profile->head_dim, profile->rope_style, /*length=*/1);
    assert(others.ok());  // as above
    for (auto& [layer, own] : *others) own = own.turns() ? moved(own) : own;
    brought.layer_ropes_json = LayerRopesJson(*others);
  }
  brought.rope_style = rope.style;
  for (LayerProfile& layer : brought.layers) {
    Bring(from, rope, &layer.q_mean);
    Bring(from, rope, &layer.q_moment);
    Bring(from, rope, &layer.k_mean);
    Bring(from, rope, &layer.k_moment);
    Bring(from, rope, &layer.k_residual);
  }
  return std::make_shared<const Profile>(std::move(brought));
}

}  // namespace seine
