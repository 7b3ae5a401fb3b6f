// See recall.h.
#include "bench/measures/recall.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "bench/machine/median.h"
#include "bench/report/progress.h"

namespace seine::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kFewestTimed = 3;        // a head and row, however slow
constexpr double kTimedSeconds = 2.0;  // a head and row: no more answers are timed after so long

// Sums over a line's answers.
class Tally {
 public:
  void Answer(const Ask& ask, const Head& head, int head_group, const TruthOptions& truth, const Found& found) {
    const double recall = RecallOf(ask, found.positions);
    recall_ += recall;
    mass_ += AttentionMassOf(ask, head, truth, found.positions);
    if (!found.candidates.empty()) {
      coarse_ += RecallOf(ask, found.candidates);
      ++coarse_count_;
    }
    if (head_recall_.size() != static_cast<size_t>(head_group)) head_recall_.assign(head_group, {});
    head_recall_[ask.q_head].Add(recall);
    ++count_;
  }

  void EndHead() {
    for (const Mean& m : head_recall_) {
      if (m.count > 0) worst_ = std::min(worst_, m.sum / m.count);
    }
    head_recall_.clear();
  }

  // `beside` is the bandwidth measured just before, 0 if it was not.
  void Timed(double us, const SearchStats& s, double beside) {
    us_.push_back(us);
    if (s.scanned_keys == 0) return;
    ++scans_;
    candidates_ += s.candidates;
    rescans_ += s.rescans;
    if (s.scan_ns == 0) return;  // a device does not time its steps apart
    scan_ns_per_key_.push_back(static_cast<double>(s.scan_ns) / static_cast<double>(s.scanned_keys));
    if (beside > 0) ns_times_bandwidth_.push_back(scan_ns_per_key_.back() * beside);
    const int64_t ns[kStages] = {s.prepare_ns, s.scan_ns, s.select_ns, s.rerank_ns, s.refine_ns};
    for (int i = 0; i < kStages; ++i) stage_us_[i].push_back(static_cast<double>(ns[i]) / 1e3);
  }

  Row MakeRow(const Line& line, const Method& method, double bandwidth, double num_keys) const {
    Row row;
    row.name = line.name;
    if (line.beta > 0) row.beta = line.beta;
    if (line.rho > 0) row.rho = line.rho;
    row.exact = line.exact;
    row.num_queries = count_;
    row.recall_at_k = recall_ / count_;
    row.recall_at_k_worst_head = worst_;
    row.attention_mass = mass_ / count_;
    if (coarse_count_ > 0) row.coarse_recall = coarse_ / coarse_count_;
    row.bytes_per_key = method.BytesPerKey(line);
    row.scan_bytes_per_key = method.ScanBytesPerKey(line);
    row.us_per_query = Median(us_);
    if (const double rate = method.EncodeKeysPerSecond(line); rate > 0) row.encode_keys_per_s = rate;
    if (scans_ == 0 || line.exact) return row;
    row.candidates = static_cast<double>(candidates_) / static_cast<double>(us_.size());
    if (line.recall_target > 0) {
      row.recall_target = line.recall_target;
      row.beta = *row.candidates / num_keys;
    }
    row.rescans = static_cast<double>(rescans_) / static_cast<double>(us_.size());
    if (scan_ns_per_key_.empty()) return row;
    row.scan_ns_per_key = Median(scan_ns_per_key_);
    row.scan_bandwidth_share = row.scan_bytes_per_key / *row.scan_ns_per_key / bandwidth;
    if (!ns_times_bandwidth_.empty()) {
      row.scan_bandwidth_share_paired = row.scan_bytes_per_key / Median(ns_times_bandwidth_);
    }
    std::optional<double>* stages[kStages] = {&row.prepare_us, &row.scan_us, &row.select_us, &row.rerank_us,
                                              &row.refine_us};
    for (int i = 0; i < kStages; ++i) *stages[i] = Median(stage_us_[i]);
    return row;
  }

 private:
  struct Mean {
    double sum = 0;
    int64_t count = 0;
    void Add(double v) { sum += v, ++count; }
  };
  double recall_ = 0, mass_ = 0, coarse_ = 0, worst_ = 1;
  int64_t count_ = 0, coarse_count_ = 0;
  std::vector<Mean> head_recall_;  // [group] of the head at hand
  std::vector<double> us_, scan_ns_per_key_, ns_times_bandwidth_;
  static constexpr int kStages = 5;
  std::vector<double> stage_us_[kStages];
  int64_t scans_ = 0, candidates_ = 0, rescans_ = 0;
};

// `count` asks of `all`, spread over positions and over the heads of a group, which take turns.
std::vector<const Ask*> Sample(const std::vector<Ask>& all, int64_t count) {
  const int64_t n = static_cast<int64_t>(all.size());
  count = std::min(n, count);
  std::vector<const Ask*> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(&all[(i * n / count + i) % n]);
  return out;
}

class Runner {
 public:
  Runner(const Dataset& dataset, const RecallOptions& options, MemoryProbe* probe)
      : dataset_(dataset), options_(options), probe_(probe) {}

  // A line's quality comes from every ask, or from as many as the method says (peers are slow, and need no third
  // digit); exact lines, which need no average at all, are asked where timed only.
  absl::Status RunLine(const Head& head, const std::vector<Ask>& asks, const Line& line, Method* method, Tally* tally) {
    const int group = options_.truth.scope == Scope::kPerQHead ? dataset_.info().group : 1;
    const int per_head = std::max(kFewestTimed, options_.timed_asks / dataset_.info().num_heads());
    const std::vector<const Ask*> timed = Sample(asks, per_head);
    Found found;
    if (!line.exact) {
      for (const Ask* ask : Sample(asks, method->MostAsks())) {
        if (absl::Status s = method->Search(line, *ask, true, &found); !s.ok()) return s;
        tally->Answer(*ask, head, group, options_.truth, found);
      }
    }
    const Clock::time_point begin = Clock::now();
    for (size_t i = 0; i < timed.size(); ++i) {
      const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
      if (i >= kFewestTimed && elapsed > kTimedSeconds) break;
      const double beside = options_.cold ? probe_->EvictCaches() : 0;
      const Clock::time_point start = Clock::now();
      if (absl::Status s = method->Search(line, *timed[i], false, &found); !s.ok()) return s;
      tally->Timed(std::chrono::duration<double, std::micro>(Clock::now() - start).count(), found.stats, beside);
      if (line.exact) tally->Answer(*timed[i], head, group, options_.truth, found);
    }
    tally->EndHead();
    return absl::OkStatus();
  }

 private:
  const Dataset& dataset_;
  const RecallOptions& options_;
  MemoryProbe* probe_;
};

}  // namespace

absl::StatusOr<std::vector<Row>> MeasureRecall(const Dataset& dataset, const RecallOptions& options,
                                               const std::vector<std::unique_ptr<Method>>& methods,
                                               MemoryProbe* probe) {
  int64_t steps = 1;  // the exact answer
  std::vector<std::vector<Tally>> tallies;
  for (const auto& method : methods) {
    tallies.emplace_back(method->lines().size());
    steps += 1 + static_cast<int64_t>(method->lines().size());
  }
  Progress progress(steps * dataset.info().num_heads());
  Runner runner(dataset, options, probe);
  for (int h = 0; h < dataset.info().num_heads(); ++h) {
    progress.Step("loading", 0);
    auto head = dataset.Load(h);
    if (!head.ok()) return head.status();
    const std::string where = absl::StrCat("layer ", head->layer, ", KV head ", head->kv_head, ": ");
    // Before the exact answers, which take long: what the first method cannot take is said at once.
    if (absl::Status s = methods.front()->Build(*head); !s.ok()) return s;
    const std::vector<Ask> asks = MakeAsks(*head, dataset.info().group, options.truth);
    progress.Step(where + "exact answers");
    for (size_t m = 0; m < methods.size(); ++m) {
      if (m > 0) {
        if (absl::Status s = methods[m]->Build(*head); !s.ok()) return s;
      }
      progress.Step(where + methods[m]->lines().front().name);
      for (size_t l = 0; l < methods[m]->lines().size(); ++l) {
        const Line& line = methods[m]->lines()[l];
        if (absl::Status s = runner.RunLine(*head, asks, line, methods[m].get(), &tallies[m][l]); !s.ok()) return s;
        progress.Step(where + line.name);
      }
      methods[m]->Release();
    }
  }
  std::vector<Row> rows;
  for (size_t m = 0; m < methods.size(); ++m) {
    for (size_t l = 0; l < methods[m]->lines().size(); ++l) {
      rows.push_back(tallies[m][l].MakeRow(methods[m]->lines()[l], *methods[m], probe->best_gb_s(),
                                           static_cast<double>(dataset.info().num_keys())));
    }
  }
  return rows;
}

}  // namespace seine::bench
