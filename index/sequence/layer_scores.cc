// Scoring of a layer (layer.h): what scorers look at, their scores, which tokens a budget keeps, and what
// calls report of the positions that heads retain.
#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "index/eviction/select_kept.h"
#include "index/scorers/attention.h"
#include "index/scorers/scorers.h"
#include "index/scorers/value_weight.h"
#include "index/sequence/layer.h"
#include "kernels/stop.h"
#include "profile/field_error.h"

namespace seine {

absl::Status Layer::CheckSizes(const ScorerInputs& given) const {
  for (int h = 0; h < std::min(num_heads(), static_cast<int>(given.scores.size())); ++h) {
    if (static_cast<int64_t>(given.scores[h].size()) == cache(h).size()) continue;
    return BadField(absl::StrCat("given.scores[", h, "]"), given.scores[h].size(), " for a KV head that holds ",
                    cache(h).size(), " tokens");
  }
  return absl::OkStatus();
}

// What scorers look at: what is held, what the index knows, and what came with the call.
absl::Status Layer::MakeInput(const ScorerInputs& given, Wanted wanted, InputStorage* storage,
                              ScoreInput* input) const {
  const Geometry& g = context_->config.geometry;
  input->backend = context_->backend;
  input->head_dim = g.head_dim;
  input->group = g.group();
  input->softmax_scale = given.softmax_scale > 0 ? given.softmax_scale : context_->config.search.softmax_scale;
  if (input->softmax_scale == 0) input->softmax_scale = 1 / std::sqrt(static_cast<float>(g.head_dim));
  input->length = length_;
  input->layer = layer_;
  input->queries = given.queries;
  input->num_queries = given.num_queries;
  // Queries that tokens have come and gone since would speak for what they have seen alone.
  const int64_t kept = context_->eviction.kept_queries();
  const bool recent = kept > 0 && kept_queries_.newest() >= length_ - context_->eviction.settings().interval;
  if (wanted.queries && given.queries == nullptr && recent && kept_queries_.newest() >= 0) {
    storage->queries = kept_queries_.Seen(kept);
    input->queries = storage->queries.rows.data();
    input->num_queries = static_cast<int64_t>(storage->queries.positions.size());
    input->query_positions = storage->queries.positions.data();
  }
  if (wanted.sums && given.queries == nullptr && attention_sums_.on()) {
    input->accumulated_to = attention_sums_.counted_to();
    storage->attention_sums = attention_sums_.Sums(Sizes());
    for (const auto& head : storage->attention_sums) input->attention_sums.push_back(head.data());
  }
  input->output_projection = given.output_projection;
  input->hidden_size = given.hidden_size;
  input->profile = context_->eviction.profile();
  input->rope = &g.RopeOf(layer_);
  input->filters = given.filters;
  storage->heads.resize(num_heads());
  for (int h = 0; h < num_heads(); ++h) {
    const HeadGroupCache& held = cache(h);
    absl::StatusOr<HeadTokens> tokens = held.Tokens(h - held.first_head(), &storage->heads[h]);
    if (!tokens.ok()) return tokens.status();
    input->heads.push_back(*tokens);
  }
  for (size_t h = 0; h < given.scores.size() && h < input->heads.size(); ++h) {
    input->given.push_back(given.scores[h].data());
  }
  if (!wanted.filters || given.filters != nullptr) return absl::OkStatus();
  if (given.queries != nullptr) {
    storage->filters = FiltersFromQueries(given.queries, given.num_queries, g.num_kv_heads, g.group(), g.head_dim);
    input->filters = storage->filters.data();
    return absl::OkStatus();
  }
  absl::StatusOr<const Filters*> filters = context_->eviction.FiltersOf(layer_);
  if (!filters.ok()) return filters.status();
  if (*filters != nullptr) input->filters = (*filters)->data();
  return absl::OkStatus();
}

void Layer::Accumulate(absl::Span<const host::AttendedRows> heads) const {
  if (length_ == 0 || attention_sums_.Add(length_ - 1, heads)) return;
  context_->dropped_queries.fetch_add(1, std::memory_order_relaxed);
}

// The tokens are taken, so nothing here fails or is stopped.
void Layer::AccumulateGiven(const QueryView& queries, int64_t last, int64_t begin, int64_t end) {
  const int64_t first = last - queries.num_tokens;
  const int64_t from = std::max({first, begin, attention_sums_.counted_to()});
  if (!attention_sums_.on() || from >= end) return;
  const int64_t row = int64_t{context_->config.geometry.num_q_heads} * context_->config.geometry.head_dim;
  bool added = false;
  try {
    Scores paid;
    added = PaidBy(queries.data + (from - first) * row, from, end, &paid).ok() && attention_sums_.AddAll(end - 1, paid);
  } catch (const std::bad_alloc&) {
  }
  if (!added) context_->dropped_queries.fetch_add(1, std::memory_order_relaxed);
}

absl::Status Layer::PaidBy(const float* queries, int64_t begin, int64_t end, Scores* paid) const {
  const StopScope finish(nullptr);
  std::vector<int64_t> positions(end - begin);
  std::iota(positions.begin(), positions.end(), begin);
  InputStorage storage;
  ScoreInput input;
  if (absl::Status s = MakeInput({}, {}, &storage, &input); !s.ok()) return s;
  input.queries = queries;
  input.num_queries = end - begin;
  input.query_positions = positions.data();
  return scorers::ForEachHead(input, paid, [&](int h, float* out) {
    scorers::HeadAttention attention(input, h);
    for (int64_t q = 0; q < input.num_queries; ++q) attention.Add(q, 1.0f / static_cast<float>(input.group), out);
    return absl::OkStatus();
  });
}

absl::Status Layer::CheckSeen(const Scorer& scorer, const ScoreInput& input) const {
  const bool sums = scorer.accumulates() && attention_sums_.on();
  const bool looks = context_->eviction.kept_queries() > 0 && scorer.needs_queries();
  if (input.queries != nullptr || (!sums && !looks)) return absl::OkStatus();
  if (scorer.takes_profile() && input.profile != nullptr) return absl::OkStatus();
  const int64_t interval = context_->eviction.settings().interval, counted = input.accumulated_to;
  if (sums && counted > 0 && counted > length_ - interval) return absl::OkStatus();
  return FieldError(absl::StatusCode::kFailedPrecondition, "given.queries",
                    absl::StrCat("eviction looks at those of the last ", interval, " of ", length_,
                                 " positions, and none was seen: append tokens with theirs (this append made again, or "
                                 "the one before it, may bring them), or ",
                                 sums ? "attend" : "retrieve or attend", " at the last token"));
}

absl::Status Layer::Score(const Scorer& scorer, const ScorerInputs& given, Scores* scores) const {
  if (absl::Status s = CheckSizes(given); !s.ok()) return s;
  if (length_ == 0) {
    scores->assign(num_heads(), {});
    return absl::OkStatus();
  }
  InputStorage storage;
  ScoreInput input;
  if (absl::Status s = MakeInput(given, WantedBy(scorer), &storage, &input); !s.ok()) return s;
  if (absl::Status s = ScoreFrom(scorer, &input, scores); !s.ok() || scorer.weighting() == nullptr) return s;
  return scorer.weighting()->Apply(input, scores);
}

absl::Status Layer::ScoreFrom(const Scorer& scorer, ScoreInput* input, Scores* scores) const {
  if (absl::Status s = CheckSeen(scorer, *input); !s.ok()) return s;
  if (scorer.sums() != context_->eviction.sums()) {  // the sums kept are those of the index's own scorer
    for (HeadTokens& head : input->heads) head.sums = nullptr;
  }
  const StageClock clock(context_->counts.get(), Stage::kScore);
  return scorer.Score(*input, scores);
}

absl::StatusOr<std::vector<HeadDiagnosis>> Layer::Diagnose(const DiagnoseParams& params,
                                                           absl::Span<const std::shared_ptr<const Scorer>> scorers,
                                                           const ScorerInputs& given) const {
  const bool with_filters =
      std::any_of(scorers.begin(), scorers.end(), [](const auto& scorer) { return scorer->needs_filters(); });
  const bool with_sums =
      std::any_of(scorers.begin(), scorers.end(), [](const auto& scorer) { return scorer->accumulates(); });
  InputStorage storage;
  ScoreInput input;
  const Wanted wanted{.filters = with_filters, .queries = true, .sums = with_sums};
  if (absl::Status s = MakeInput(given, wanted, &storage, &input); !s.ok()) return s;
  for (const auto& scorer : scorers) {
    if (absl::Status s = CheckSeen(*scorer, input); !s.ok()) return s;
  }
  return seine::Diagnose(params, context_->config.geometry.num_layers, input);
}

absl::StatusOr<std::vector<std::vector<uint32_t>>> Layer::Select(const EvictParams& params, const Scorer& scorer,
                                                                 const ScorerInputs& given) const {
  if (absl::Status s = CheckSizes(given); !s.ok()) return s;
  if (KeepsAll(params.budget, scorer)) {  // also a layer without tokens
    std::vector<std::vector<uint32_t>> all(num_heads());
    for (int h = 0; h < num_heads(); ++h) {
      all[h].resize(cache(h).size());
      std::iota(all[h].begin(), all[h].end(), 0u);
    }
    return all;
  }
  ScoreRoom::Lease scores = context_->score_room.Take();
  InputStorage storage;
  ScoreInput input;
  if (absl::Status s = MakeInput(given, WantedBy(scorer), &storage, &input); !s.ok()) return s;
  if (absl::Status s = ScoreFrom(scorer, &input, scores.get()); !s.ok()) return s;
  return SelectKept(params.budget, params.keep, context_->config.geometry.num_layers, scorer.observation_window(),
                    input, scores.get(), scorer.weighting());
}

bool Layer::KeepsAll(const BudgetConfig& budget, const Scorer& scorer) const {
  if (length_ <= scorer.kept_prompt()) return true;
  std::vector<int64_t> counts;
  for (int h = 0; h < num_heads(); ++h) counts.push_back(cache(h).size());
  const BudgetScope scope{.layer = layer_,
                          .num_layers = context_->config.geometry.num_layers,
                          .length = length_,
                          .window = scorer.observation_window()};
  return KeptOfHeads(budget, counts, scope) == counts;
}

void Layer::BeginReport(RetainedReport report, Retained* retained, DroppedPositions* dropped) const {
  if (retained == nullptr) return;
  *retained = {};
  retained->report = report;
  retained->evictions_before = evictions_;
  if (report == RetainedReport::kDropped) dropped->Watch(num_heads());
}

void Layer::EndReport(DroppedPositions* dropped, Retained* retained) const {
  if (retained == nullptr || retained->report == RetainedReport::kNone) return;
  retained->evictions = evictions_;
  retained->num_tokens = length_;
  try {
    retained->dropped = dropped->Take();
    for (int h = 0; h < num_heads(); ++h) {
      const HeadGroupCache& held = cache(h);
      retained->counts.push_back(static_cast<int32_t>(held.size()));
      if (retained->report != RetainedReport::kKept) continue;
      std::vector<int32_t>& kept = retained->kept.emplace_back(held.size());
      for (int64_t place = 0; place < held.size(); ++place) kept[place] = held.position(place);
    }
  } catch (const std::bad_alloc&) {  // what the call has changed stands
    retained->counts.clear();
    retained->dropped.clear();
    retained->kept.clear();
  }
}

}  // namespace seine
