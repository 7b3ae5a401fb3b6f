#include "client/sharded/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace seine::client {
namespace {

struct Scored {
  int32_t position;
  float score;
};

// Every answer to a sharded question begins so.
template <typename Of>
void Begin(const WholeLayer& whole, Of* out) {
  out->num_tokens = whole.num_tokens;
  out->path = whole.zone_begin == whole.zone_end ? SearchMode::kDense
              : whole.exact                      ? SearchMode::kExact
                                                 : SearchMode::kIndex;
}

std::vector<Scored> SetOfAll(absl::Span<const FromShard<Answer>> parts, const StripeMap& map, int set) {
  std::vector<Scored> all;
  for (const auto& [shard, answer] : parts) {
    if (answer.num_sets == 0 || answer.path == SearchMode::kDense) continue;
    const auto rows = answer.set(set);
    for (size_t i = 0; i < rows.size(); ++i) {
      const float score = answer.scores.empty() ? 0.0f : answer.set_scores(set)[i];
      all.push_back({static_cast<int32_t>(map.PositionOf(shard, rows[i])), score});
    }
  }
  return all;
}

// Leaves the `most` best, ascending by position.
void KeepBest(size_t most, std::vector<Scored>* set) {
  if (set->size() > most) {
    std::nth_element(set->begin(), set->begin() + static_cast<int64_t>(most), set->end(),
                     [](const Scored& a, const Scored& b) {
                       return a.score != b.score ? a.score > b.score : a.position < b.position;
                     });
    set->resize(most);
  }
  std::sort(set->begin(), set->end(), [](const Scored& a, const Scored& b) { return a.position < b.position; });
}

void Write(const std::vector<std::vector<Scored>>& sets, const WholeLayer& whole, bool with_scores, Answer* out) {
  for (const auto& set : sets) out->width = std::max(out->width, static_cast<int>(set.size()));
  const size_t elements = sets.size() * out->width;
  out->num_sets = static_cast<int>(sets.size());
  out->positions.assign(elements, -1);
  out->scores.assign(with_scores ? elements : 0, 0.0f);
  out->all_returned = true;
  for (size_t s = 0; s < sets.size(); ++s) {
    out->counts.push_back(static_cast<int32_t>(sets[s].size()));
    out->all_returned = out->all_returned && static_cast<int64_t>(sets[s].size()) == whole.zone_end - whole.zone_begin;
    for (size_t i = 0; i < sets[s].size(); ++i) {
      out->positions[s * out->width + i] = sets[s][i].position;
      if (with_scores) out->scores[s * out->width + i] = sets[s][i].score;
    }
  }
}

Answer Merge(absl::Span<const FromShard<Answer>> parts, const StripeMap& map, size_t most, bool with_scores,
             const WholeLayer& whole) {
  Answer out;
  Begin(whole, &out);
  const bool dense = out.path == SearchMode::kDense;
  out.zone_begin = dense ? whole.num_tokens : whole.zone_begin;
  out.zone_end = dense ? whole.num_tokens : whole.zone_end;
  for (const auto& part : parts) out.codes_stale = out.codes_stale || part.answer.codes_stale;
  std::vector<std::vector<Scored>> sets(whole.num_sets);
  for (int s = 0; s < whole.num_sets && !dense; ++s) {
    sets[s] = SetOfAll(parts, map, s);
    KeepBest(most, &sets[s]);
  }
  Write(sets, whole, with_scores, &out);
  out.all_returned = out.all_returned || dense;
  return out;
}

}  // namespace

Attended MergeAttended(absl::Span<const FromShard<Attended>> parts, const WholeLayer& whole) {
  Attended out;
  Begin(whole, &out);
  out.num_q_heads = parts[0].answer.num_q_heads;
  out.head_dim = parts[0].answer.head_dim;
  for (const auto& part : parts) {
    out.attended_tokens += part.answer.attended_tokens;
    out.tail = out.tail || part.answer.tail;
    out.codes_stale = out.codes_stale || part.answer.codes_stale;
  }
  out.output.resize(size_t(out.num_q_heads) * out.head_dim);
  out.log_sum_exp.resize(out.num_q_heads);
  std::vector<double> sums(out.head_dim);
  for (int h = 0; h < out.num_q_heads; ++h) {
    float most = -std::numeric_limits<float>::infinity();
    for (const auto& part : parts) most = std::max(most, part.answer.log_sum_exp[h]);
    out.log_sum_exp[h] = most;
    if (std::isinf(most)) continue;  // no token at all: the output is 0
    double total = 0;
    std::fill(sums.begin(), sums.end(), 0.0);
    for (const auto& part : parts) {
      const double weight = std::exp(double{part.answer.log_sum_exp[h]} - most);
      total += weight;
      for (int j = 0; j < out.head_dim; ++j) sums[j] += weight * part.answer.head(h)[j];
    }
    for (int j = 0; j < out.head_dim; ++j) {
      out.output[size_t(h) * out.head_dim + j] = static_cast<float>(sums[j] / total);
    }
    out.log_sum_exp[h] = static_cast<float>(most + std::log(total));
  }
  return out;
}

Answer MergeAnswers(absl::Span<const FromShard<Answer>> parts, const StripeMap& map, int top_k,
                    const WholeLayer& whole) {
  return Merge(parts, map, top_k, true, whole);
}

Answer JoinAnswers(absl::Span<const FromShard<Answer>> parts, const StripeMap& map, const WholeLayer& whole) {
  const bool scores =
      std::any_of(parts.begin(), parts.end(), [](const auto& part) { return !part.answer.scores.empty(); });
  return Merge(parts, map, std::numeric_limits<size_t>::max(), scores, whole);
}

std::vector<int32_t> RowsOfShard(const Answer& answer, const StripeMap& map, int shard, int* width) {
  std::vector<std::vector<int32_t>> sets(answer.num_sets);
  size_t longest = 0;
  for (int s = 0; s < answer.num_sets; ++s) {
    for (const int32_t position : answer.set(s)) {
      if (map.ShardOf(position) == shard) sets[s].push_back(static_cast<int32_t>(map.RowOf(position)));
    }
    longest = std::max(longest, sets[s].size());
  }
  std::vector<int32_t> rows(sets.size() * longest, -1);
  for (size_t s = 0; s < sets.size(); ++s) std::copy(sets[s].begin(), sets[s].end(), rows.begin() + s * longest);
  *width = static_cast<int>(longest);
  return rows;
}

}  // namespace seine::client
