// See prompt.h.
#include "bench/measures/prompt.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/inputs/head_profile.h"
#include "bench/inputs/truth.h"
#include "bench/machine/median.h"
#include "bench/measures/recall.h"
#include "bench/report/progress.h"
#include "index/index.h"
#include "kernels/codecs/codec_traits.h"
#include "profile/moments.h"

namespace seine::bench {
namespace {

constexpr int64_t kFirstTokens = 1024;

double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// An index of one head that grows.
class Growing {
 public:
  static absl::StatusOr<Growing> Make(const PromptOptions& options, const DatasetInfo& info, const Rope& rope,
                                      const Head& head, Backend* backend) {
    IndexConfig config;
    config.name = "prompt";
    config.geometry = {1, info.group, 1, info.head_dim, info.dtype, rope};
    config.zones = {static_cast<int>(options.data.sink), static_cast<int>(options.data.local), kWindowTokens, 0};
    config.codec.name = DefaultCodec(/*with_profile=*/true).name;
    auto profile = CutProfile(*options.profile, info, head);
    if (!profile.ok()) return profile.status();
    Profile shaped = **profile;  // one query head of moments serves the whole group
    shaped.num_q_heads = info.group;
    shaped.layers[0].q_mean.resize(info.group, shaped.layers[0].q_mean[0]);
    shaped.layers[0].q_moment.resize(info.group, shaped.layers[0].q_moment[0]);
    config.codec.profile = std::make_shared<const Profile>(std::move(shaped));
    config.codec.profile_name = options.profile->model;
    config.codec.horizon = options.horizon;
    config.search.top_k = options.top_k;
    config.search.candidate_fraction = options.beta;
    config.search.rescore_k = options.refine;
    config.search.scope = Scope::kPerQHead;
    config.kv_store = KvStore::kKeys;
    Growing made;
    auto index = Index::Create(config, backend);
    if (!index.ok()) return index.status();
    made.index_ = *std::move(index);
    auto sequence = made.index_->CreateSequence("");
    if (!sequence.ok()) return sequence.status();
    made.sequence_ = *sequence;
    return made;
  }

  const Index& index() const { return *index_; }

  // Grows to `tokens` of the head in appends of `step`.
  absl::Status Grow(const Head& head, int64_t tokens, int64_t step) {
    const auto row = static_cast<int64_t>(head.tokens.size()) / head.num_tokens;
    while (length_ < tokens) {
      const int64_t count = std::min(step, tokens - length_);
      const TensorView rows{head.tokens.data() + length_ * row, count, static_cast<size_t>(count * row)};
      auto length = index_->Append(sequence_, 0, length_, rows, {});
      if (!length.ok()) return length.status();
      length_ = *length;
    }
    return absl::OkStatus();
  }

  // Begins again with an empty sequence; transforms that were computed stay.
  absl::Status Restart() {
    if (absl::Status s = index_->DeleteSequence(sequence_); !s.ok()) return s;
    auto sequence = index_->CreateSequence("");
    if (!sequence.ok()) return sequence.status();
    sequence_ = *sequence;
    length_ = 0;
    return absl::OkStatus();
  }

  // [group] answers to the queries of one position.
  absl::StatusOr<ItemAnswer> Ask(const float* queries) const {
    auto answers = index_->Retrieve({{sequence_, 0, queries}}, index_->config().search);
    if (!answers.ok()) return answers.status();
    if (!answers->front().status.ok()) return answers->front().status;
    return std::move(answers->front());
  }

 private:
  std::unique_ptr<Index> index_;
  SequenceHandle sequence_;
  int64_t length_ = 0;
};

// Means by query head.
struct HeadRecalls {
  std::map<int, std::pair<double, int64_t>> by_q_head;
  double mean() const {
    double sum = 0;
    int64_t count = 0;
    for (const auto& [q_head, of] : by_q_head) sum += of.first, count += of.second;
    return sum / static_cast<double>(count);
  }
  double worst() const {
    double worst = 1;
    for (const auto& [q_head, of] : by_q_head) worst = std::min(worst, of.first / static_cast<double>(of.second));
    return worst;
  }
};

absl::Status AddRecalls(const Growing& grown, const Head& head, const DatasetInfo& info, const std::vector<Ask>& asks,
                        HeadRecalls* recalls) {
  const int64_t positions = static_cast<int64_t>(asks.size()) / info.group;
  std::map<std::pair<int64_t, int>, const Ask*> by_place;
  for (const Ask& ask : asks) {
    by_place[{(ask.queries - head.queries.data()) / (int64_t{info.group} * info.head_dim), ask.q_head}] = &ask;
  }
  for (int64_t p = 0; p < positions; ++p) {
    auto answer = grown.Ask(&head.queries[p * info.group * info.head_dim]);
    if (!answer.ok()) return answer.status();
    for (int q = 0; q < info.group; ++q) {
      const int q_head = ((head.layer * info.num_kv_heads) + head.kv_head) * info.group + q;
      auto& [sum, count] = recalls->by_q_head[q_head];
      sum += RecallOf(*by_place.at({p, q}), answer->positions[q]);
      ++count;
    }
  }
  return absl::OkStatus();
}

class Measure {
 public:
  Measure(const PromptOptions& options, Backend* backend) : options_(options), backend_(backend) {}

  absl::StatusOr<PromptResult> Run() {
    auto all = Open(0);
    if (!all.ok()) return all.status();
    result_.data = (*all)->info();
    auto rope =
        ParseRope(result_.data.rope_json, result_.data.head_dim, result_.data.rope_style, result_.data.num_tokens);
    if (!rope.ok()) return rope.status();
    rope_ = *std::move(rope);
    std::vector<int64_t> lengths = options_.lengths;
    for (int64_t n = kFirstTokens; options_.lengths.empty() && n <= result_.data.num_tokens; n *= 2) {
      if (n - std::min(options_.data.local, n) >= result_.data.query_start) lengths.push_back(n);
    }
    for (const int64_t n : lengths) {
      if (n <= result_.data.query_start || n > result_.data.num_tokens) {
        return absl::InvalidArgumentError(absl::StrCat("--length: ", n, " is not in (", result_.data.query_start, ", ",
                                                       result_.data.num_tokens, "], where the trace has queries"));
      }
      auto cut = Open(n);
      if (!cut.ok()) return cut.status();
      if ((*cut)->info().num_keys() <= options_.top_k) {
        return absl::InvalidArgumentError(absl::StrCat("--length: ", n, " tokens leave no more than --top-k keys"));
      }
      cuts_.push_back(*std::move(cut));
    }
    if (cuts_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--trace: no power of two from ", kFirstTokens,
                                                     " on is a length up to which the trace holds ",
                                                     options_.data.local, " (--local) positions' queries"));
    }
    one_.resize(cuts_.size());
    in_steps_.assign(cuts_.size(), std::vector<HeadRecalls>(options_.steps.size()));
    cost_.resize(1 + options_.steps.size());
    first_us_.resize(cost_.size());
    Progress progress(result_.data.num_heads());
    for (int h = 0; h < result_.data.num_heads(); ++h) {
      progress.Step(absl::StrCat("head ", h), 0);
      if (absl::Status s = RunHead(h); !s.ok()) return s;
      progress.Step(absl::StrCat("head ", h));
    }
    Collect();
    return std::move(result_);
  }

 private:
  absl::StatusOr<std::unique_ptr<Dataset>> Open(int64_t tokens) const {
    DatasetOptions data = options_.data;
    data.tokens = tokens;
    return Dataset::Open(data);
  }

  absl::Status RunHead(int h) {
    std::vector<Growing> growing;
    for (size_t c = 0; c < cuts_.size(); ++c) {
      const DatasetInfo& info = cuts_[c]->info();
      auto head = cuts_[c]->Load(h);
      if (!head.ok()) return head.status();
      TruthOptions truth;
      truth.head_dim = info.head_dim;
      truth.top_k = options_.top_k;
      truth.softmax_scale = 1 / std::sqrt(static_cast<float>(info.head_dim));
      const std::vector<Ask> asks = MakeAsks(*head, info.group, truth);
      auto once = Growing::Make(options_, info, rope_, *head, backend_);
      if (!once.ok()) return once.status();
      if (absl::Status s = once->Grow(*head, info.num_tokens, info.num_tokens); !s.ok()) return s;
      if (absl::Status s = AddRecalls(*once, *head, info, asks, &one_[c]); !s.ok()) return s;
      for (size_t i = 0; i < options_.steps.size(); ++i) {
        if (c == 0) {
          auto made = Growing::Make(options_, info, rope_, *head, backend_);
          if (!made.ok()) return made.status();
          growing.push_back(*std::move(made));
        }
        if (absl::Status s = growing[i].Grow(*head, info.num_tokens, options_.steps[i]); !s.ok()) return s;
        if (absl::Status s = AddRecalls(growing[i], *head, info, asks, &in_steps_[c][i]); !s.ok()) return s;
      }
    }
    return TimeHead(h);
  }

  // All of the longest length, then one answer. A transform is computed once an index, so a first, untimed sequence
  // leaves them made.
  absl::Status TimeHead(int h) {
    const DatasetInfo& info = cuts_.back()->info();
    auto head = cuts_.back()->Load(h);
    if (!head.ok()) return head.status();
    for (size_t i = 0; i < cost_.size(); ++i) {
      const int64_t step = i == 0 ? info.num_tokens : options_.steps[i - 1];
      auto made = Growing::Make(options_, info, rope_, *head, backend_);
      if (!made.ok()) return made.status();
      for (int round = 0; round < 2; ++round) {
        if (absl::Status s = made->Restart(); !s.ok()) return s;
        const int64_t encoded = made->index().stats().reencoded_keys;
        const double begin = CpuSeconds();
        if (absl::Status s = made->Grow(*head, info.num_tokens, step); !s.ok()) return s;
        const auto asked = std::chrono::steady_clock::now();
        if (auto answer = made->Ask(head->queries.data()); !answer.ok()) return answer.status();
        const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - asked;
        if (round == 0) continue;
        const auto n = static_cast<double>(info.num_tokens);
        cost_[i].cpu_ns += (CpuSeconds() - begin) * 1e9 / n;
        cost_[i].encoded_keys += 1 + static_cast<double>(made->index().stats().reencoded_keys - encoded) / n;
        first_us_[i].push_back(took.count());
      }
    }
    return absl::OkStatus();
  }

  void Collect() {
    for (size_t c = 0; c < cuts_.size(); ++c) {
      PromptRow& row = result_.rows.emplace_back();
      row.tokens = cuts_[c]->info().num_tokens;
      row.one_append = one_[c].mean();
      row.one_append_worst_head = one_[c].worst();
      for (const HeadRecalls& of : in_steps_[c]) {
        row.in_steps.push_back(of.mean());
        row.in_steps_worst_head.push_back(of.worst());
      }
    }
    for (size_t i = 0; i < cost_.size(); ++i) {
      cost_[i].cpu_ns /= result_.data.num_heads();
      cost_[i].encoded_keys /= result_.data.num_heads();
      cost_[i].first_us = Median(first_us_[i]);
    }
    result_.cost_of_one = cost_.front();
    result_.cost_in_steps.assign(cost_.begin() + 1, cost_.end());
  }

  const PromptOptions& options_;
  Backend* const backend_;
  Rope rope_;
  std::vector<std::unique_ptr<Dataset>> cuts_;  // by length
  std::vector<HeadRecalls> one_;                // [cuts]
  std::vector<std::vector<HeadRecalls>> in_steps_;
  std::vector<PromptCost> cost_;  // of one append, then of each step
  std::vector<std::vector<double>> first_us_;
  PromptResult result_;
};

}  // namespace

absl::StatusOr<PromptResult> MeasurePrompt(const PromptOptions& options, Backend* backend) {
  return Measure(options, backend).Run();
}

}  // namespace seine::bench
