#include "service/scheduling/call_costs.h"

#include <algorithm>

namespace seine {
namespace {

constexpr double kFirstGuess[] = {1, 64, 10e6};  // by CostKind
constexpr double kNewest = 1.0 / 4;              // a call's share in the average
constexpr double kMessage = 1024;                // what a call costs besides, in bytes
constexpr double kMostNs = 60e9;

size_t PlaceOf(int method) { return static_cast<size_t>(std::clamp(method, 0, CallCosts::kMethods - 1)); }

}  // namespace

double CallCosts::Units(CostKind kind, int64_t bytes) {
  return kind == CostKind::kWhole ? 1 : kMessage + static_cast<double>(bytes);
}

double CallCosts::Average(int method, CostKind kind) const {
  const double known = averages_[PlaceOf(method)].load(std::memory_order_relaxed);
  return known > 0 ? known : kFirstGuess[static_cast<int>(kind)];
}

CallCosts::Nanoseconds CallCosts::Estimate(int method, CostKind kind, int64_t bytes) const {
  return Nanoseconds(static_cast<int64_t>(std::clamp(Average(method, kind) * Units(kind, bytes), 1.0, kMostNs)));
}

void CallCosts::Took(int method, CostKind kind, int64_t bytes, Nanoseconds time) {
  const double one = static_cast<double>(std::max<int64_t>(time.count(), 1)) / Units(kind, bytes);
  const double before = Average(method, kind);
  averages_[PlaceOf(method)].store(before + kNewest * (one - before), std::memory_order_relaxed);
}

}  // namespace seine
