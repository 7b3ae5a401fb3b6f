// See subspace.h.
#include "bench/measures/subspaces/subspace.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/inputs/synthetic.h"
#include "bench/measures/attention_probe.h"
#include "bench/report/progress.h"
#include "index/subspace/calibrate.h"
#include "profile/moments.h"

namespace seine::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kBuckets = 64;        // of the decode part, over time
constexpr int64_t kRecentTokens = 512;  // of the prefill, that the trigger's threshold is measured on
constexpr int kPrefillInterval = 16;    // the prefill's tokens are all at hand, so that it may learn in smaller steps
constexpr int64_t kCalibrationKeys = 4096;  // synthetic, before the drift

struct MethodSpec {
  const char* name;
  int interval;  // of Oja's rule; 0: none
};
constexpr MethodSpec kMethods[] = {{"static", 0},  {"pca_prefill", 0}, {"oja_batch", 0},  {"oja_32", 32},
                                   {"oja_64", 64}, {"oja_128", 128},   {"triggered", -1}, {"oracle", 0}};

// Rows of one head, and what the bases begin with.
struct KeyStream {
  std::string name;
  int rank = 0;
  int head_dim = 0;
  std::vector<float> rows;  // [num_tokens, head_dim]
  Eigen::MatrixXd calibration;

  ConstRows View(int64_t first = 0) const {
    return {rows.data() + first * head_dim, head_dim * sizeof(float), DType::kFloat32};
  }
  int64_t num_tokens() const { return static_cast<int64_t>(rows.size()) / head_dim; }
};

// What one method made of one stream.
struct Outcome {
  std::vector<float> rebuilt;  // [num_tokens, head_dim]
  Basis last;                  // basis at the end
  double updates = 0, us = 0;
};

void Rebuild(const Basis& basis, const KeyStream& stream, int64_t begin, int64_t end, std::vector<float>* out) {
  std::vector<float> codes((end - begin) * basis.stride());
  Project(basis, stream.rows.data() + begin * stream.head_dim, end - begin, codes.data(), basis.stride());
  Reconstruct(basis, codes.data(), basis.stride(), end - begin, out->data() + begin * stream.head_dim);
}

Outcome RunFixed(const Basis& basis, const KeyStream& stream) {
  Outcome out;
  out.rebuilt.resize(stream.rows.size());
  Rebuild(basis, stream, 0, stream.num_tokens(), &out.rebuilt);
  out.last = basis;
  return out;
}

double RatioUnder(const Basis& basis, const KeyStream& stream, int64_t begin, int64_t end) {
  return 1 - CapturedEnergy(basis, MomentOfRows(stream.View(begin), end - begin, stream.head_dim));
}

// Prefill by Oja's rule in intervals, then decode steps: an interval is stored in the basis that it found.
absl::StatusOr<Outcome> RunOja(const Basis& start, const KeyStream& stream, const SubspaceOptions& o, OjaOptions oja,
                               bool triggered) {
  OjaOptions prefill_oja = oja;
  prefill_oja.interval = std::min(kPrefillInterval, oja.interval);
  OjaTracker prefill(start, prefill_oja);
  if (absl::Status s = prefill.Add(stream.View(), o.prefill); !s.ok()) return s;
  if (triggered) {
    const double ratio =
        RatioUnder(prefill.basis(), stream, std::max<int64_t>(0, o.prefill - kRecentTokens), o.prefill);
    oja.error_threshold = std::min(1.0, std::max(1e-12, o.trigger * ratio));
  }
  Outcome out;
  out.rebuilt.resize(stream.rows.size());
  Rebuild(prefill.basis(), stream, 0, o.prefill, &out.rebuilt);
  OjaTracker decode(prefill.basis(), oja);
  for (int64_t i = o.prefill; i < stream.num_tokens(); i += oja.interval) {
    const int64_t end = std::min<int64_t>(i + oja.interval, stream.num_tokens());
    Rebuild(decode.basis(), stream, i, end, &out.rebuilt);
    const auto begin = Clock::now();
    if (absl::Status s = decode.Add(stream.View(i), end - i); !s.ok()) return s;
    out.us += std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  }
  out.updates = static_cast<double>(decode.stats().updates);
  out.last = decode.basis();
  return out;
}

absl::StatusOr<Outcome> RunMethod(const MethodSpec& method, const KeyStream& stream, const SubspaceOptions& o) {
  const absl::StatusOr<Basis> start = BasisOfMoment(stream.calibration, stream.rank);
  if (!start.ok()) return absl::Status(start.status().code(), absl::StrCat("--rank: ", start.status().message()));
  const std::string name = method.name;
  const bool whole = name == "oracle";
  if (whole || name == "pca_prefill") {
    const int64_t count = whole ? stream.num_tokens() : o.prefill;
    const auto basis = BasisOfMoment(MomentOfRows(stream.View(), count, stream.head_dim), stream.rank);
    if (!basis.ok()) return basis.status();
    return RunFixed(*basis, stream);
  }
  if (name == "static") return RunFixed(*start, stream);
  OjaOptions oja = o.oja;
  if (name == "oja_batch") {  // the paper's prefill alone
    OjaTracker tracker(*start, oja);
    if (absl::Status s = tracker.AddBatch(stream.View(), o.prefill, 1); !s.ok()) return s;
    return RunFixed(tracker.basis(), stream);
  }
  if (method.interval > 0) oja.interval = method.interval;
  return RunOja(*start, stream, o, oja, name == "triggered");
}

// Residual and whole energy of tokens [begin, end).
std::pair<double, double> Energies(const KeyStream& stream, const std::vector<float>& rebuilt, int64_t begin,
                                   int64_t end) {
  double residual = 0, energy = 0;
  for (int64_t i = begin * stream.head_dim; i < end * stream.head_dim; ++i) {
    const double x = stream.rows[i], r = x - rebuilt[i];
    residual += r * r, energy += x * x;
  }
  return {residual, energy};
}

SubspaceRow RowOf(const KeyStream& stream, const char* method, const Outcome& outcome, const Basis& oracle,
                  int64_t prefill) {
  SubspaceRow row;
  row.stream = stream.name;
  row.method = method;
  row.rank = stream.rank;
  const auto [residual, energy] = Energies(stream, outcome.rebuilt, prefill, stream.num_tokens());
  row.rer = residual / energy;
  row.overlap = Overlap(outcome.last, oracle);
  row.updates = outcome.updates;
  row.us_per_update = outcome.updates > 0 ? outcome.us / outcome.updates : 0;
  const int64_t bucket = std::max<int64_t>(1, (stream.num_tokens() - prefill) / kBuckets);
  for (int64_t i = prefill; i + bucket <= stream.num_tokens(); i += bucket) {
    const auto [r, e] = Energies(stream, outcome.rebuilt, i, i + bucket);
    row.rer_over_time.push_back(r / e);
  }
  return row;
}

class HeadMeasure {
 public:
  HeadMeasure(const Dataset& dataset, const DatasetOptions& data, const SubspaceOptions& options)
      : dataset_(dataset), data_(data), options_(options) {}

  absl::Status Measure(int index, std::vector<SubspaceRow>* rows) {
    auto head = dataset_.Load(index);
    if (!head.ok()) return head.status();
    auto values = dataset_.LoadValues(index);
    if (!values.ok()) return values.status();
    auto streams = Streams(*head, *values);
    if (!streams.ok()) return streams.status();
    std::optional<AttentionProbe> probe;
    if (!values->empty()) probe.emplace(dataset_.info(), *head, *values, options_.queries);
    for (const MethodSpec& method : kMethods) {
      std::map<std::string, Outcome> outcomes;
      for (const KeyStream& stream : *streams) {
        auto outcome = RunMethod(method, stream, options_);
        if (!outcome.ok()) return outcome.status();
        const auto oracle =
            BasisOfMoment(MomentOfRows(stream.View(), stream.num_tokens(), stream.head_dim), stream.rank);
        if (!oracle.ok()) return oracle.status();
        rows->push_back(RowOf(stream, method.name, *outcome, *oracle, options_.prefill));
        outcomes[stream.name] = *std::move(outcome);
      }
      if (values->empty()) continue;
      for (size_t i = rows->size() - streams->size(); i + 1 < rows->size(); ++i) {
        SubspaceRow& row = (*rows)[i];
        std::vector<float> keys = std::move(outcomes[row.stream].rebuilt), rebuilt_values = outcomes["values"].rebuilt;
        if (row.stream == "keys_pre_rope") ApplyRopeToRows(options_.rope, int64_t{0}, head->num_tokens, keys.data());
        probe->RestoreDense(&keys, &rebuilt_values);
        row.attention_error = probe->Error(keys, rebuilt_values);
        probe->RestoreTop(options_.full_rank, &keys, &rebuilt_values);
        row.hybrid_error = probe->Error(keys, rebuilt_values);
      }
    }
    return absl::OkStatus();
  }

 private:
  // Keys after RoPE, before it where it is stated, then values where there are some.
  absl::StatusOr<std::vector<KeyStream>> Streams(const Head& head, const std::vector<float>& values) const {
    const DatasetInfo& info = dataset_.info();
    std::vector<KeyStream> streams = {{"keys_post_rope", options_.rank, info.head_dim, head.keys, {}}};
    if (options_.rope.stated()) {
      streams.push_back({"keys_pre_rope", options_.pre_rope_rank, info.head_dim, head.keys, {}});
      UndoRopeOfRows(options_.rope, int64_t{0}, head.num_tokens, streams.back().rows.data());
    }
    if (!values.empty()) streams.push_back({"values", options_.rank, info.head_dim, values, {}});
    for (KeyStream& stream : streams) {
      if (options_.profile != nullptr) {
        const LayerProfile& moments = options_.profile->layers[head.layer];
        stream.calibration = stream.name == "values" ? moments.v_moment[head.kv_head]
                             : stream.name == "keys_pre_rope"
                                 ? moments.k_moment[head.kv_head]
                                 : CarryMoment(moments.k_moment[head.kv_head], options_.rope, 0, options_.carried_to);
      } else {
        auto made = SyntheticCalibration(stream.name == "keys_pre_rope");
        if (!made.ok()) return made.status();
        stream.calibration = *std::move(made);
      }
    }
    return streams;
  }

  // Drawn before anything drifts: the keys' own distribution where it stands still.
  absl::StatusOr<Eigen::MatrixXd> SyntheticCalibration(bool undo_rope) const {
    auto kind = SyntheticKindOf(data_.synthetic);
    if (!kind.ok()) return kind.status();
    if (*kind == SyntheticKind::kDrift) kind = SyntheticKind::kAnisotropic;
    const int dim = dataset_.info().head_dim;
    std::vector<float> keys = MakeSynthetic({*kind, kCalibrationKeys, 0, dim, data_.seed}).keys;
    if (undo_rope) UndoRopeOfRows(options_.rope, int64_t{0}, kCalibrationKeys, keys.data());
    return MomentOfRows({keys.data(), dim * sizeof(float), DType::kFloat32}, kCalibrationKeys, dim);
  }

  const Dataset& dataset_;
  const DatasetOptions& data_;
  const SubspaceOptions& options_;
};

// Means over heads of rows in the same places.
std::vector<SubspaceRow> MeanRows(const std::vector<std::vector<SubspaceRow>>& heads) {
  std::vector<SubspaceRow> mean = heads[0];
  const auto share = 1 / static_cast<double>(heads.size());
  const auto average = [&](size_t i, auto member) {
    double sum = 0;
    for (const auto& rows : heads) sum += member(rows[i]);
    return sum * share;
  };
  for (size_t i = 0; i < mean.size(); ++i) {
    SubspaceRow& row = mean[i];
    row.rer = average(i, [](const SubspaceRow& r) { return r.rer; });
    row.overlap = average(i, [](const SubspaceRow& r) { return r.overlap; });
    const double us = average(i, [](const SubspaceRow& r) { return r.us_per_update * r.updates; });
    row.updates = average(i, [](const SubspaceRow& r) { return r.updates; });
    row.us_per_update = row.updates > 0 ? us / row.updates : 0;
    if (row.attention_error) {
      row.attention_error = average(i, [](const SubspaceRow& r) { return *r.attention_error; });
      row.hybrid_error = average(i, [](const SubspaceRow& r) { return *r.hybrid_error; });
    }
    for (size_t b = 0; b < row.rer_over_time.size(); ++b) {
      row.rer_over_time[b] = average(i, [b](const SubspaceRow& r) { return r.rer_over_time[b]; });
    }
  }
  return mean;
}

}  // namespace

const SubspaceRow* SubspaceResult::Find(const std::string& stream, const std::string& method) const {
  for (const SubspaceRow& row : rows) {
    if (row.stream == stream && row.method == method) return &row;
  }
  return nullptr;
}

absl::StatusOr<SubspaceResult> MeasureSubspaces(const Dataset& dataset, const DatasetOptions& data,
                                                const SubspaceOptions& options) {
  HeadMeasure measure(dataset, data, options);
  std::vector<std::vector<SubspaceRow>> heads(dataset.info().num_heads());
  Progress progress(dataset.info().num_heads());
  for (int h = 0; h < dataset.info().num_heads(); ++h) {
    if (absl::Status s = measure.Measure(h, &heads[h]); !s.ok()) return s;
    progress.Step(absl::StrCat("head ", h + 1, " of ", dataset.info().num_heads()));
  }
  SubspaceResult result;
  result.rows = MeanRows(heads);
  result.bucket_tokens = std::max<int64_t>(1, (dataset.info().num_tokens - options.prefill) / kBuckets);
  return result;
}

}  // namespace seine::bench
