// See drift.h.
#include "bench/drift/drift.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "bench/report/progress.h"
#include "kernels/types.h"

namespace seine::bench {
namespace {

// Recall at one point, of one method.
struct PointTally {
  double sum = 0, worst = 1;
  int64_t count = 0;

  // `recalls` of a KV head's asks, whose query heads take turns.
  void AddHead(const std::vector<double>& recalls, int group) {
    std::vector<double> heads(group);
    for (size_t a = 0; a < recalls.size(); ++a) heads[a % group] += recalls[a];
    const double positions = static_cast<double>(recalls.size()) / group;
    for (const double head : heads) {
      sum += head;
      worst = std::min(worst, head / positions);
    }
    count += static_cast<int64_t>(recalls.size());
  }
};

class DriftRunner {
 public:
  DriftRunner(const Dataset& dataset, const DriftOptions& options, const std::vector<NamedMethod>& methods)
      : info_(dataset.info()),
        options_(options),
        methods_(methods),
        positions_(options.Positions()),
        progress_(info_.num_heads() * static_cast<int64_t>(positions_.size() * methods.size())),
        tallies_(methods.size(), std::vector<PointTally>(positions_.size())) {
    truth_.head_dim = info_.head_dim;
    truth_.top_k = options.top_k;
    truth_.softmax_scale = 1 / std::sqrt(static_cast<float>(info_.head_dim));
  }

  absl::Status RunHead(Head whole) {
    GrowingHead growing(std::move(whole), info_, options_.zone, options_.queries);
    for (size_t i = 0; i < positions_.size(); ++i) {
      if (i == 0) {
        growing.GrowTo(positions_[0]);
        if (absl::Status s = Begin(growing); !s.ok()) return s;
      }
      while (growing.so_far().num_tokens < positions_[i]) {
        growing.GrowTo(growing.so_far().num_tokens + kWindowTokens);
        if (absl::Status s = Append(growing.so_far()); !s.ok()) return s;
      }
      if (absl::Status s = AskAll(growing.so_far(), i); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  std::vector<DriftRow> Rows() const {
    std::vector<DriftRow> rows(methods_.size());
    for (size_t m = 0; m < methods_.size(); ++m) {
      rows[m].method = methods_[m].first;
      rows[m].bytes_per_key = methods_[m].second->BytesPerKey();
      for (size_t i = 0; i < positions_.size(); ++i) {
        const PointTally& t = tallies_[m][i];
        rows[m].curve.push_back({positions_[i], t.sum / static_cast<double>(t.count), t.worst});
      }
    }
    return rows;
  }

 private:
  absl::Status Begin(const GrowingHead& growing) {
    for (const auto& [name, method] : methods_) {
      const Head& seen = method->LearnsFromAll() ? growing.whole() : growing.so_far();
      if (absl::Status s = method->Begin(seen); !s.ok()) return s;
    }
    return Append(growing.so_far());
  }

  absl::Status Append(const Head& head) {
    for (const auto& [name, method] : methods_) {
      if (absl::Status s = method->Append(head); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status AskAll(const Head& head, size_t point) {
    const std::vector<Ask> asks = MakeAsks(head, info_.group, truth_);
    const int64_t candidates = options_.CandidatesOf(head.num_keys());
    std::vector<int32_t> found;
    for (size_t m = 0; m < methods_.size(); ++m) {
      std::vector<double> recalls;
      for (const Ask& ask : asks) {
        if (absl::Status s = methods_[m].second->Search(head, ask, candidates, &found); !s.ok()) return s;
        recalls.push_back(RecallOf(ask, found));
      }
      tallies_[m][point].AddHead(recalls, info_.group);
      progress_.Step(absl::StrCat("layer ", head.layer, ", KV head ", head.kv_head, ", token ", head.num_tokens, ": ",
                                  methods_[m].first));
    }
    return absl::OkStatus();
  }

  const DatasetInfo& info_;
  const DriftOptions& options_;
  const std::vector<NamedMethod>& methods_;
  const std::vector<int64_t> positions_;
  TruthOptions truth_;
  Progress progress_;
  std::vector<std::vector<PointTally>> tallies_;  // [methods][positions]
};

}  // namespace

std::vector<int64_t> DriftOptions::Positions() const {
  std::vector<int64_t> positions;
  for (int i = 0; i < points; ++i) positions.push_back(zone.FitLength(prefill + decode * i / (points - 1)));
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

int64_t DriftOptions::CandidatesOf(int64_t keys) const {
  constexpr int64_t kFewest = 256;
  const auto share = static_cast<int64_t>(std::ceil(beta * static_cast<double>(keys)));
  return std::min(keys, std::max({share, int64_t{4} * top_k, kFewest}));
}

absl::StatusOr<std::vector<DriftRow>> MeasureDrift(const Dataset& dataset, const DriftOptions& options,
                                                   const std::vector<NamedMethod>& methods) {
  DriftRunner runner(dataset, options, methods);
  for (int h = 0; h < dataset.info().num_heads(); ++h) {
    auto head = dataset.Load(h);
    if (!head.ok()) return head.status();
    if (absl::Status s = runner.RunHead(*std::move(head)); !s.ok()) return s;
  }
  return runner.Rows();
}

}  // namespace seine::bench
