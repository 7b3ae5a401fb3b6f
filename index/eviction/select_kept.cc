#include "index/eviction/select_kept.h"

#include <algorithm>

#include "index/memory/memory.h"
#include "index/scorers/scorers.h"
#include "index/scorers/value_weight.h"
#include "kernels/host.h"
#include "kernels/math.h"
#include "profile/field_error.h"

namespace seine {

namespace {

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
