// Scorers by name, and the checks of their options.
#include "index/scorers/scorer.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "index/scorers/scorers.h"
#include "index/stop_status.h"
#include "index/storage/memory.h"
#include "kernels/math.h"
#include "kernels/stop.h"

namespace seine {

namespace {

using scorers::ScorerRef;

struct Named {
  const char* name;
  ScorerRef (*make)(const ScorerConfig&);
};

constexpr Named kScorers[] = {
    {"keydiff", scorers::MakeKeyDiff},
    {"manifoldkv", scorers::MakeManifoldKv},
    {"windowed_manifoldkv", scorers::MakeWindowedManifoldKv},
    {"hybrid", scorers::MakeHybrid},
    {"normalized", scorers::MakeNormalized},
    {"qfilters", scorers::MakeQFilters},
    {"knorm", scorers::MakeKNorm},
    {"streaming_llm", scorers::MakeStreamingLlm},
    {"snapkv", scorers::MakeSnapKv},
    {"tova", scorers::MakeTova},
    {"h2o", scorers::MakeH2o},
    {"expected_attention", scorers::MakeExpectedAttention},
    {"client", scorers::MakeClientScores},
};

constexpr int kMaxWindow = 1 << 24;
constexpr int kMaxQueryWindow = 1 << 16;  // the most queries that an index keeps
constexpr int kMaxKernel = 255;           // every token of a layer is a sum over so many

template <typename... Parts>
absl::Status Wrong(absl::string_view field, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("scorer.", field, ": ", parts...));
}

absl::Status CheckRange(absl::string_view field, int value, int low, int high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Wrong(field, value, " is not in [", low, ", ", high, "]");
}

// An option of another scorer is a misunderstanding, not something to pass over.
absl::Status CheckOwned(const ScorerConfig& c) {
  const ScorerConfig plain;
  const auto foreign = [&](bool given, absl::string_view field, std::vector<absl::string_view> owners) {
    if (!given || std::find(owners.begin(), owners.end(), c.name) != owners.end()) return absl::OkStatus();
    return Wrong(field, "given, but ", c.name, " has none; it is an option of ", absl::StrJoin(owners, ", "));
  };
  absl::Status status = foreign(c.anchor != plain.anchor, "anchor", {"keydiff"});
  status.Update(foreign(c.similarity != plain.similarity, "similarity", {"keydiff"}));
  status.Update(foreign(c.metric != plain.metric, "metric", {"manifoldkv", "windowed_manifoldkv"}));
  status.Update(foreign(c.window != plain.window, "window", {"windowed_manifoldkv"}));
  status.Update(foreign(c.lambda != plain.lambda, "lambda", {"hybrid"}));
  status.Update(foreign(c.sink != plain.sink, "sink", {"streaming_llm", "expected_attention"}));
  status.Update(foreign(c.query_window != plain.query_window, "query_window", {"snapkv"}));
  status.Update(foreign(c.kernel != plain.kernel, "kernel", {"snapkv"}));
  status.Update(foreign(c.future != plain.future, "future", {"expected_attention"}));
  status.Update(foreign(c.epsilon != plain.epsilon, "epsilon", {"expected_attention"}));
  status.Update(foreign(c.value_norms != plain.value_norms, "value_norms", {"expected_attention"}));
  return status;
}

absl::Status CheckValues(const ScorerConfig& c) {
  if (c.anchor > Anchor::kPairwise) return Wrong("anchor", "unknown value ", static_cast<int>(c.anchor));
  if (c.similarity > Similarity::kEuclid) return Wrong("similarity", "unknown value ", static_cast<int>(c.similarity));
  if (c.metric > Metric::kLinf) return Wrong("metric", "unknown value ", static_cast<int>(c.metric));
  if (c.anchor == Anchor::kPairwise && c.similarity != Similarity::kCosine) {
    return Wrong("similarity", "the pairwise form is defined for cosine");
  }
  if (!(c.lambda >= 0 && c.lambda <= 1)) return Wrong("lambda", c.lambda, " is not in [0, 1]");
  if (!(c.epsilon >= 0 && c.epsilon <= 1)) return Wrong("epsilon", c.epsilon, " is not in [0, 1]");
  if (c.kernel % 2 == 0) return Wrong("kernel", c.kernel, " is not odd");
  absl::Status status = CheckRange("window", c.window, 1, kMaxWindow);
  status.Update(CheckRange("sink", c.sink, 0, kMaxWindow));
  status.Update(CheckRange("query_window", c.query_window, 1, kMaxQueryWindow));
  status.Update(CheckRange("kernel", c.kernel, 1, kMaxKernel));
  status.Update(CheckRange("future", c.future, 1, kMaxWindow));
  return status;
}

}  // namespace

const std::vector<std::string>& ScorerNames() {
  static const auto* const names = [] {
    auto* list = new std::vector<std::string>();
    for (const Named& named : kScorers) list->emplace_back(named.name);
    return list;
  }();
  return *names;
}

absl::StatusOr<std::shared_ptr<const Scorer>> MakeScorer(const ScorerConfig& config) {
  for (const Named& named : kScorers) {
    if (config.name != named.name) continue;
    if (absl::Status s = CheckOwned(config); !s.ok()) return s;
    if (absl::Status s = CheckValues(config); !s.ok()) return s;
    return named.make(config);
  }
  return Wrong("name", "unknown scorer; there are ", absl::StrJoin(ScorerNames(), ", "));
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
    visit({rows.row(begin), rows.head_dim * SizeOf(rows.dtype), rows.dtype}, begin, stop - begin);
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
