// See equal.h.
#include "bench/measures/equal.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/report/progress.h"

namespace seine::bench {
namespace {

// Sums over a line's answers.
class EqualTally {
 public:
  void Answer(const Ask& ask, const Head& head, const TruthOptions& truth, double bytes_read, const Found& found) {
    const double recall = RecallOf(ask, found.positions);
    const auto candidates = static_cast<int64_t>(found.candidates.size());
    sums_.recall_at_k += recall;
    sums_.recall_exact += RecallOf(ask, found.candidates);
    sums_.attention_mass += AttentionMassOf(ask, head, truth, found.positions);
    sums_.tokens_attended += static_cast<double>(found.positions.size());
    sums_.candidates += static_cast<double>(candidates);
    sums_.bytes_read += bytes_read;
    fewest_ = std::min(fewest_, candidates);
    most_ = std::max(most_, candidates);
    ++sums_.num_queries;
    if (head_recall_.size() <= static_cast<size_t>(ask.q_head)) head_recall_.resize(ask.q_head + 1);
    head_recall_[ask.q_head].first += recall;
    ++head_recall_[ask.q_head].second;
  }

  void EndHead() {
    for (const auto& [sum, count] : head_recall_) {
      if (count > 0) worst_ = std::min(worst_, sum / static_cast<double>(count));
    }
    head_recall_.clear();
  }

  EqualRow MakeRow(const Line& line, const Method& method) const {
    EqualRow row = sums_;
    const auto count = static_cast<double>(std::max<int64_t>(1, row.num_queries));
    for (double* mean : {&row.recall_at_k, &row.recall_exact, &row.attention_mass, &row.tokens_attended,
                         &row.candidates, &row.bytes_read}) {
      *mean /= count;
    }
    row.name = line.name;
    row.asked = line.candidates;
    row.beta = line.beta;
    row.rho = line.rho;
    row.fewest = fewest_;
    row.most = most_;
    row.recall_at_k_worst_head = worst_;
    row.bytes_per_key = method.BytesPerKey(line);
    return row;
  }

 private:
  EqualRow sums_;
  int64_t fewest_ = std::numeric_limits<int64_t>::max(), most_ = 0;
  double worst_ = 1;
  std::vector<std::pair<double, int64_t>> head_recall_;  // [group] sum and count, of the KV head at hand
};

// Those of equal numbers side by side.
void Order(std::vector<EqualRow>* rows) {
  std::vector<int64_t> numbers;
  for (const EqualRow& row : *rows) {
    if (row.asked > 0 && std::find(numbers.begin(), numbers.end(), row.asked) == numbers.end()) {
      numbers.push_back(row.asked);
    }
  }
  const auto place = [&](const EqualRow& row) {
    return std::find(numbers.begin(), numbers.end(), row.asked) - numbers.begin();
  };
  std::stable_sort(rows->begin(), rows->end(),
                   [&](const EqualRow& a, const EqualRow& b) { return place(a) < place(b); });
}

}  // namespace

absl::StatusOr<std::vector<EqualRow>> MeasureEqual(const Dataset& dataset, const TruthOptions& truth,
                                                   const std::vector<std::unique_ptr<Method>>& methods) {
  std::vector<std::vector<EqualTally>> tallies;
  int64_t lines = 0;
  for (const auto& method : methods) {
    tallies.emplace_back(method->lines().size());
    lines += static_cast<int64_t>(method->lines().size());
  }
  Progress progress(lines * dataset.info().num_heads());
  for (int h = 0; h < dataset.info().num_heads(); ++h) {
    auto head = dataset.Load(h);
    if (!head.ok()) return head.status();
    const std::vector<Ask> asks = MakeAsks(*head, dataset.info().group, truth);
    for (size_t m = 0; m < methods.size(); ++m) {
      if (absl::Status s = methods[m]->Build(*head); !s.ok()) return s;
      for (size_t l = 0; l < methods[m]->lines().size(); ++l) {
        const Line& line = methods[m]->lines()[l];
        Found found;
        for (const Ask& ask : asks) {
          if (absl::Status s = methods[m]->Search(line, ask, /*with_candidates=*/true, &found); !s.ok()) return s;
          tallies[m][l].Answer(ask, *head, truth, methods[m]->BytesRead(line, head->num_keys(), found), found);
        }
        tallies[m][l].EndHead();
        progress.Step(absl::StrCat("layer ", head->layer, ", KV head ", head->kv_head, ": ", line.name));
      }
      methods[m]->Release();
    }
  }
  std::vector<EqualRow> rows;
  for (size_t m = 0; m < methods.size(); ++m) {
    for (size_t l = 0; l < methods[m]->lines().size(); ++l) {
      rows.push_back(tallies[m][l].MakeRow(methods[m]->lines()[l], *methods[m]));
    }
  }
  Order(&rows);
  return rows;
}

}  // namespace seine::bench
