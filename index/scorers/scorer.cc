// Scorers by name, the checks of their options, and what several of them share.
#include "index/scorers/scorer.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "index/memory/memory.h"
#include "index/scorers/scorers.h"
#include "index/scorers/value_weight.h"
#include "index/stop_status.h"
#include "kernels/math.h"
#include "kernels/stop.h"
#include "profile/field_error.h"

namespace seine {

namespace {

// In the order of AllScorers().
constexpr absl::StatusOr<scorers::ScorerRef> (*kMakers[])(const ScorerConfig&) = {
#define SEINE_SCORER_MAKER(Name, ...) scorers::Make##Name,
    SEINE_FOR_EACH_SCORER(SEINE_SCORER_MAKER)
#undef SEINE_SCORER_MAKER
};

template <typename... Parts>
absl::Status Wrong(absl::string_view field, const Parts&... parts) {
  return BadField(absl::StrCat("scorer.", field), parts...);
}

template <typename Type>
absl::Status CheckRange(absl::string_view field, Type value, Type least, Type most) {
  if (value >= least && value <= most) return absl::OkStatus();  // no NaN is
  if constexpr (std::is_enum_v<Type>) {
    return Wrong(field, "unknown value ", static_cast<int>(value));
  } else {
    return Wrong(field, value, " is not in [", least, ", ", most, "]");
  }
}

// An option of another scorer is a misunderstanding, not something to pass over.
absl::Status CheckOptions(const ScorerConfig& config, const ScorerEntry& scorer) {
  absl::Status status;
  ForEachScorerOption([&](const auto& option) {
    const auto value = config.*option.field;
    if (value != option.usual && !scorer.Has(option.name)) {
      status.Update(
          Wrong(option.name, "given, but ", scorer.name, " has none; it is an option of ", ScorersWith(option.name)));
    }
    status.Update(CheckRange(option.name, value, option.least, option.most));
  });
  return status;
}

// Options that qualify others.
absl::Status CheckWeighting(const ScorerConfig& config) {
  const ScorerConfig usual;
  if (config.value_weight == ValueWeight::kNone) {
    if (config.weight_epsilon != usual.weight_epsilon) return Wrong("weight_epsilon", "given without value_weight");
    if (config.first_stage != usual.first_stage) return Wrong("first_stage", "given without value_weight");
    return absl::OkStatus();
  }
  if (config.name == "expected_attention" && config.value_norms) {
    return Wrong("value_weight", "given beside value_norms, which weights by values too; one of them");
  }
  return absl::OkStatus();
}

// A scorer whose scores are to be weighted: everything else is its own.
class WeightedScorer : public Scorer {
 public:
  WeightedScorer(std::shared_ptr<const Scorer> scorer, const ScorerConfig& config)
      : scorer_(std::move(scorer)), weighting_(config) {}

  SumsWanted sums() const override { return scorer_->sums(); }
  bool needs_queries() const override { return scorer_->needs_queries(); }
  int64_t default_query_window() const override { return scorer_->default_query_window(); }
  bool takes_profile() const override { return scorer_->takes_profile(); }
  const char* values_option() const override { return "value_weight"; }
  bool needs_filters() const override { return scorer_->needs_filters(); }
  bool needs_scores() const override { return scorer_->needs_scores(); }
  bool accumulates() const override { return scorer_->accumulates(); }
  const ValueWeighting* weighting() const override { return &weighting_; }
  int64_t observation_window() const override { return scorer_->observation_window(); }
  int64_t kept_prompt() const override { return scorer_->kept_prompt(); }
  const char* kept_prompt_option() const override { return scorer_->kept_prompt_option(); }
  absl::Status Score(const ScoreInput& input, Scores* scores) const override { return scorer_->Score(input, scores); }

 private:
  const std::shared_ptr<const Scorer> scorer_;
  const ValueWeighting weighting_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Scorer>> MakeScorer(const ScorerConfig& config) {
  const ScorerEntry* scorer = FindScorer(config.name);
  if (scorer == nullptr) return Wrong("name", UnknownScorer(config.name));
  if (absl::Status s = CheckOptions(config, *scorer); !s.ok()) return s;
  if (absl::Status s = CheckWeighting(config); !s.ok()) return s;
  absl::StatusOr<scorers::ScorerRef> made = kMakers[scorer - AllScorers().data()](config);
  if (!made.ok() || config.value_weight == ValueWeight::kNone) return made;
  return std::make_shared<WeightedScorer>(*std::move(made), config);
}

namespace scorers {

absl::Status ForEachHead(const ScoreInput& input, Scores* scores,
                         const std::function<absl::Status(int head, float* out)>& body) {
  const int count = static_cast<int>(input.heads.size());
  scores->resize(count);
  std::vector<absl::Status> statuses(count);
  input.backend->Run(count, [&](int h) {
    (*scores)[h].assign(input.heads[h].count, 0.0f);
    statuses[h] = body(h, (*scores)[h].data());
  });
  if (absl::Status s = StopStatus(); !s.ok()) return s;
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void ForEachRun(const ChunkedRows& rows, int64_t begin, int64_t end,
                const std::function<void(const ConstRows&, int64_t first, int64_t count)>& visit) {
  while (begin < end && !StopRequested()) {
    const int64_t stop = std::min<int64_t>(end, (begin / rows.chunk_tokens + 1) * rows.chunk_tokens);
    visit({rows.row(begin), rows.stride(), rows.dtype}, begin, stop - begin);
    begin = stop;
  }
}

absl::StatusOr<std::vector<KeyMeans>> MeansOf(const ScoreInput& input, const SumsWanted& wanted) {
  std::vector<KeyMeans> means(input.heads.size());
  std::vector<SumTask> tasks;
  std::vector<std::vector<double>> sums;
  std::vector<KeyMeans*> out;
  std::vector<SumKind> kinds;
  for (size_t h = 0; h < means.size(); ++h) {
    const HeadTokens& head = input.heads[h];
    if (head.sums != nullptr) {
      means[h] = head.sums->Means();
      continue;
    }
    for (const SumKind& kind : KindsOf(wanted)) {
      SumTask& task = tasks.emplace_back(SumTask{head.keys, head.count, kind.unit});
      if (kind.window > 0) {
        std::vector<int32_t>& begins = means[h].begins = WindowBegins(head.positions, head.count, kind.window);
        task.windows = {begins.data(), static_cast<int64_t>(begins.size())};
      }
      task.sums = sums.emplace_back(task.windows.count * input.head_dim).data();
      out.push_back(&means[h]);
      kinds.push_back(kind);
    }
  }
  if (tasks.empty()) return means;
  const Outcome outcome = input.backend->Sum(tasks.data(), static_cast<int>(tasks.size()));
  if (absl::Status s = StatusOf(*input.backend, outcome); !s.ok()) return s;
  for (size_t i = 0; i < tasks.size(); ++i) {
    out[i]->*kinds[i].means = MeansOfSums(tasks[i].sums, tasks[i].windows, tasks[i].count, input.head_dim);
  }
  return means;
}

absl::Status ScoreHeads(const ScoreInput& input, KeyScore kind,
                        const std::function<std::vector<float>(int head)>& anchors, Scores* scores) {
  const int count = static_cast<int>(input.heads.size());
  std::vector<std::vector<float>> held(count);
  input.backend->Run(count, [&](int h) { held[h] = anchors(h); });
  if (absl::Status s = StopStatus(); !s.ok()) return s;
  scores->resize(count);
  std::vector<ScoreTask> tasks(count);
  for (int h = 0; h < count; ++h) {
    const HeadTokens& head = input.heads[h];
    (*scores)[h].resize(head.count);
    tasks[h] = {head.keys, head.count, kind, held[h].data(), {}, (*scores)[h].data()};
  }
  return StatusOf(*input.backend, input.backend->Score(tasks.data(), count));
}

absl::Status ScoreWindows(const ScoreInput& input, KeyScore kind, const std::vector<KeyMeans>& means, Scores* scores) {
  scores->resize(input.heads.size());
  std::vector<ScoreTask> tasks;
  for (size_t h = 0; h < input.heads.size(); ++h) {
    const HeadTokens& head = input.heads[h];
    const KeyWindows windows = {means[h].begins.data(), static_cast<int64_t>(means[h].begins.size())};
    (*scores)[h].resize(head.count);
    tasks.push_back({head.keys, head.count, kind, means[h].windows.data(), windows, (*scores)[h].data()});
  }
  return StatusOf(*input.backend, input.backend->Score(tasks.data(), static_cast<int>(tasks.size())));
}

KeyScore KindOf(Metric metric) {
  if (metric == Metric::kL1) return KeyScore::kL1;
  return metric == Metric::kLinf ? KeyScore::kLinf : KeyScore::kL2;
}

std::vector<float> UnitVector(std::vector<float> v) {
  double squares = 0;
  for (const float x : v) squares += static_cast<double>(x) * x;
  const double scale = squares > 0 ? 1 / std::sqrt(squares) : 0;
  for (float& x : v) x = static_cast<float>(x * scale);
  return v;
}

int64_t CountUpTo(const HeadTokens& head, int64_t position) {
  if (head.positions == nullptr) return std::clamp<int64_t>(position + 1, 0, head.count);
  return std::upper_bound(head.positions, head.positions + head.count, position) - head.positions;
}

float AboveAll(const Scores& scores) {
  float largest = 0;
  for (const auto& head : scores) {
    for (const float score : head) largest = std::max(largest, score);
  }
  return std::max(largest + 1, std::nextafter(largest, kLargestFloat));  // 1 is lost on what is above 2^24
}

}  // namespace scorers
}  // namespace seine
