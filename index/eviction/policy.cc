#include "index/eviction/policy.h"

#include <limits>

#include "profile/profile.h"

namespace seine {

EvictionPolicy::EvictionPolicy(const IndexConfig* config) : config_(*config) {
  if (!on()) return;
  scorer_ = *MakeScorer(settings().scorer);
  kept_queries_ = QueriesKept(config_);
}

int64_t EvictionPolicy::Room(const HeadSizes& sizes, int layer, int64_t length) const {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // positions that there are
  const BudgetConfig& budget = settings().budget;
  // An adaptive budget is the layer's: heads may hold more and less than their share of it.
  const int64_t held =
      budget.heads == HeadBudget::kAdaptive ? (sizes.total + sizes.heads - 1) / sizes.heads : sizes.most;
  const auto room_at = [&](int64_t at) {
    const BudgetScope scope{.layer = layer,
                            .num_layers = config_.geometry.num_layers,
                            .length = at,
                            .window = scorer_->observation_window()};
    return KeptTokens(budget, kMost, scope) + settings().interval - held;
  };
  const int64_t now = room_at(length);
  if (budget.heads != HeadBudget::kPyramid || now <= 0) return now;
  int64_t fits = 0, beyond = kMost;  // the most tokens that then still have room, by bisection
  while (beyond - fits > 1) {
    const int64_t middle = fits + (beyond - fits) / 2;
    (middle <= room_at(length + middle) ? fits : beyond) = middle;
  }
  return fits;
}

const Profile* EvictionPolicy::profile() const {
  if (on() && settings().profile != nullptr) return settings().profile.get();
  return config_.codec.profile.get();
}

absl::StatusOr<const Filters*> EvictionPolicy::FiltersOf(int layer) const {
  if (on() && !settings().filters.empty()) return &settings().filters[layer];
  if (profile() == nullptr) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto found = filters_.find(layer); found != filters_.end()) return &found->second;
  absl::StatusOr<Filters> made = FiltersFromProfile(*profile(), layer, config_.geometry.RopeOf(layer), 0,
                                                    static_cast<double>(FilterHorizon(config_)));
  if (!made.ok()) return made.status();
  return &filters_.emplace(layer, *std::move(made)).first->second;
}

}  // namespace seine
