#include "index/config/budget.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "profile/field_error.h"

namespace seine {

namespace {

// Positions are int32, so that whoever asks for more of them asks for all, and what is computed of it does not
// overflow.
int64_t TokensOf(const BudgetConfig& budget) {
  return std::min<int64_t>(budget.tokens, std::numeric_limits<int32_t>::max());
}

// PyramidKV's budgets high - l (high - low) / (L - 1) of layers l < L, as budget.h defines high and low; `n` tokens are
// there for each layer. Rounded so that those of layers [0, l] sum up to the rounded sum: the total is exact.
int64_t PyramidTokens(double mean, double ratio, double n, int64_t count, const BudgetScope& scope) {
  if (scope.num_layers < 2 || n <= mean) return std::clamp<int64_t>(std::llround(mean), 1, count);
  const auto window = static_cast<double>(scope.window);
  double low = mean / ratio, high = 2 * mean - low;
  if (high > n - window) {
    high = n - window;
    low = 2 * mean - high;
  }
  if (!(high >= low && low >= window)) low = high = mean;
  const double step = (high - low) / (scope.num_layers - 1);
  const auto until = [&](int l) { return std::llround(l * high - step * l * (l - 1) / 2); };
  return std::clamp<int64_t>(until(scope.layer + 1) - until(scope.layer), 1, count);
}

}  // namespace

absl::Status Validate(const BudgetConfig& b) {
  if (b.tokens < 0) return BadField("budget.tokens", b.tokens, " is negative");
  if (!(b.ratio >= 0 && b.ratio < 1)) return BadField("budget.ratio", b.ratio, " is not in [0, 1)");
  if (b.tokens > 0 && b.ratio > 0) return BadField("budget.ratio", "given beside budget.tokens; one of them");
  if (b.tokens == 0 && b.ratio == 0) return BadField("budget.tokens", "neither tokens nor a ratio is given");
  if (b.heads > HeadBudget::kPyramid) return BadField("budget.heads", "unknown value ", static_cast<int>(b.heads));
  if (!(b.safeguard >= 0 && b.safeguard <= 1)) return BadField("budget.safeguard", b.safeguard, " is not in [0, 1]");
  if (!(b.pyramid_ratio >= 1 && std::isfinite(b.pyramid_ratio))) {
    return BadField("budget.pyramid_ratio", b.pyramid_ratio, " is no number of at least 1");
  }
  return absl::OkStatus();
}

absl::Status Validate(const KeepConfig& k) {
  if (k.sinks < 0) return BadField("keep.sinks", k.sinks, " is negative");
  if (k.recent < 0) return BadField("keep.recent", k.recent, " is negative");
  if (!(k.recent_share >= 0 && k.recent_share < 1)) {
    return BadField("keep.recent_share", k.recent_share, " is not in [0, 1)");
  }
  for (size_t i = 0; i < k.positions.size(); ++i) {
    if (k.positions[i] < 0) return BadField(absl::StrCat("keep.positions[", i, "]"), k.positions[i], " is negative");
    if (i > 0 && k.positions[i] <= k.positions[i - 1])
      return BadField(absl::StrCat("keep.positions[", i, "]"), "not ascending");
  }
  return absl::OkStatus();
}

int64_t KeptTokens(const BudgetConfig& budget, int64_t count, const BudgetScope& scope) {
  if (count == 0) return 0;
  const auto held = static_cast<double>(count);
  const bool absolute = budget.tokens > 0;
  const double mean = absolute ? static_cast<double>(TokensOf(budget)) : held * (1 - budget.ratio);
  if (budget.heads == HeadBudget::kPyramid) {
    const double n = absolute ? static_cast<double>(scope.length) : held;
    return PyramidTokens(mean, budget.pyramid_ratio, n, count, scope);
  }
  return std::clamp<int64_t>(static_cast<int64_t>(mean), 1, count);
}

std::vector<int64_t> KeptOfHeads(const BudgetConfig& budget, const std::vector<int64_t>& counts,
                                 const BudgetScope& scope) {
  std::vector<int64_t> kept;
  for (const int64_t count : counts) kept.push_back(KeptTokens(budget, count, scope));
  if (budget.heads != HeadBudget::kAdaptive || budget.tokens == 0) return kept;
  int64_t spare = TokensOf(budget) * static_cast<int64_t>(kept.size()) - std::accumulate(kept.begin(), kept.end(), 0LL);
  for (size_t h = 0; h < kept.size(); ++h) {
    const int64_t more = std::min(spare, counts[h] - kept[h]);
    kept[h] += more;
    spare -= more;
  }
  return kept;
}

}  // namespace seine
