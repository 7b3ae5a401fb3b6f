#include "index/eviction/budget.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "index/scorers/scorers.h"
#include "index/scorers/value_weight.h"
#include "index/storage/memory.h"
#include "kernels/host.h"
#include "kernels/math.h"
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
int64_t PyramidTokens(double mean, double beta, double n, int64_t count, const BudgetScope& scope) {
  if (scope.num_layers < 2 || n <= mean) return std::clamp<int64_t>(std::llround(mean), 1, count);
  const auto window = static_cast<double>(scope.window);
  double low = mean / beta, high = 2 * mean - low;
  if (high > n - window) {
    high = n - window;
    low = 2 * mean - high;
  }
  if (!(high >= low && low >= window)) low = high = mean;
  const double step = (high - low) / (scope.num_layers - 1);
  const auto until = [&](int l) { return std::llround(l * high - step * l * (l - 1) / 2); };
  return std::clamp<int64_t>(until(scope.layer + 1) - until(scope.layer), 1, count);
}

// Scores of tokens that are always kept go above all. Fails where they are more than the head keeps. Tokens are
// ascending by position, so it is a first run of them, a last one, and those that are searched for.
absl::Status ForceKept(const KeepConfig& keep, int64_t length, int64_t kept, int head, const HeadTokens& tokens,
                       std::vector<float>* scores) {
  const int64_t recent = std::max<int64_t>(keep.recent, static_cast<int64_t>(keep.recent_share * double(kept)));
  const int64_t sinks_end = scorers::CountUpTo(tokens, keep.sinks - 1);
  const int64_t recent_begin = std::max(sinks_end, scorers::CountUpTo(tokens, length - recent - 1));
  std::fill(scores->begin(), scores->begin() + sinks_end, kLargestFloat);
  std::fill(scores->begin() + recent_begin, scores->end(), kLargestFloat);
  int64_t forced = sinks_end + tokens.count - recent_begin;
  for (const int32_t position : keep.positions) {
    const int64_t place = scorers::CountUpTo(tokens, position) - 1;
    if (place < sinks_end || place >= recent_begin || tokens.position(place) != position) continue;
    (*scores)[place] = kLargestFloat;
    ++forced;
  }
  if (forced <= kept) return absl::OkStatus();
  return BadField("keep", forced, " tokens of KV head ", head, " must stay, its budget is ", kept);
}

// How many of its tokens a head is sure of.
int64_t SafeTokens(int64_t kept, double safeguard) {
  if (kept == 0 || safeguard == 0) return 0;
  return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(kept) * safeguard));
}

// AdaKV: each head's safeguard is raised above all, then one selection runs over the heads' scores laid end to end.
std::vector<std::vector<uint32_t>> SelectAdaptive(const std::vector<int64_t>& kept, double safeguard,
                                                  const Scores& scores) {
  std::vector<float> all, scratch;
  std::vector<uint32_t> places;
  int64_t total = 0;
  for (size_t h = 0; h < scores.size(); ++h) {
    const size_t begin = all.size();
    all.insert(all.end(), scores[h].begin(), scores[h].end());
    total += kept[h];
    const int64_t safe = SafeTokens(kept[h], safeguard);
    if (safe == 0) continue;
    host::SelectLargest(scores[h].data(), scores[h].size(), safe, &scratch, &places);
    for (const uint32_t place : places) all[begin + place] = kLargestFloat;
  }
  host::SelectLargest(all.data(), all.size(), total, &scratch, &places);
  std::vector<std::vector<uint32_t>> selected(scores.size());
  size_t head = 0, begin = 0;
  for (const uint32_t place : places) {
    while (place >= begin + scores[head].size()) begin += scores[head++].size();
    selected[head].push_back(static_cast<uint32_t>(place - begin));
  }
  return selected;
}

}  // namespace

absl::Status Validate(const BudgetConfig& b) {
  if (b.tokens < 0) return BadField("budget.tokens", b.tokens, " is negative");
  if (!(b.ratio >= 0 && b.ratio < 1)) return BadField("budget.ratio", b.ratio, " is not in [0, 1)");
  if (b.tokens > 0 && b.ratio > 0) return BadField("budget.ratio", "given beside budget.tokens; one of them");
  if (b.tokens == 0 && b.ratio == 0) return BadField("budget.tokens", "neither tokens nor a ratio is given");
  if (b.heads > HeadBudget::kPyramid) return BadField("budget.heads", "unknown value ", static_cast<int>(b.heads));
  if (!(b.safeguard >= 0 && b.safeguard <= 1)) return BadField("budget.safeguard", b.safeguard, " is not in [0, 1]");
  if (!(b.beta >= 1 && std::isfinite(b.beta))) return BadField("budget.beta", b.beta, " is no number of at least 1");
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
    return PyramidTokens(mean, budget.beta, n, count, scope);
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

absl::StatusOr<std::vector<std::vector<uint32_t>>> SelectKept(const BudgetConfig& budget, const KeepConfig& keep,
                                                              int num_layers, int64_t window, const ScoreInput& input,
                                                              Scores* scores, const ValueWeighting* weighting) {
  std::vector<int64_t> counts;
  for (const HeadTokens& head : input.heads) counts.push_back(head.count);
  const BudgetScope scope{.layer = input.layer, .num_layers = num_layers, .length = input.length, .window = window};
  std::vector<int64_t> kept = KeptOfHeads(budget, counts, scope), safe;
  for (size_t h = 0; h < scores->size(); ++h) {
    absl::Status s = ForceKept(keep, input.length, kept[h], static_cast<int>(h), input.heads[h], &(*scores)[h]);
    if (!s.ok()) return s;
  }
  std::vector<std::vector<uint32_t>> selected(scores->size());
  if (budget.heads == HeadBudget::kAdaptive) {
    selected = SelectAdaptive(kept, budget.safeguard, *scores);
    if (weighting == nullptr) return selected;
    for (size_t h = 0; h < kept.size(); ++h) {
      safe.push_back(SafeTokens(kept[h], budget.safeguard));
      kept[h] = static_cast<int64_t>(selected[h].size());
    }
  }
  if (weighting != nullptr) {
    if (absl::Status s = weighting->ApplyWithin(input, kept, safe, scores); !s.ok()) return s;
  }
  std::vector<SelectTask> tasks;
  for (size_t h = 0; h < scores->size(); ++h) {
    tasks.push_back({(*scores)[h].data(), static_cast<int64_t>((*scores)[h].size()), kept[h], &selected[h]});
  }
  const Outcome outcome = input.backend->Select(tasks.data(), static_cast<int>(tasks.size()));
  if (outcome != Outcome::kDone) return StatusOf(*input.backend, outcome);
  return selected;
}

}  // namespace seine
