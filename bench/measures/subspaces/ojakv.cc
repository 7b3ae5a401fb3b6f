// See ojakv.h.
#include "bench/measures/subspaces/ojakv.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/inputs/head_profile.h"
#include "bench/report/progress.h"
#include "index/index.h"
#include "index/subspace/low_rank.h"
#include "kernels/ops/rows/rows.h"

namespace seine::bench {
namespace {

constexpr int kOjakvSink = 16, kOjakvLocal = 64, kOjakvBuffer = 64;
constexpr int kPaperPool = 4;  // the paper names no size

// An arm and its settings, over those of the frame; nullptr: as asked. Without hybrid no token stays full-rank, and
// ranks take its bytes.
struct Setting {
  OjakvArm arm;
  bool hybrid;
  void (*set)(SubspaceConfig*);
};

void ByQueries(SubspaceConfig* s) { s->choice.queries = 32; }
void Every(SubspaceConfig* s, int interval) { ByQueries(s), s->oja.interval = interval; }
// One pooled step with the prompt.
void AtOnce(SubspaceConfig* s, double learning_rate) { ByQueries(s), s->prompt = {kPaperPool, learning_rate}; }
// The whole pipeline as we read it: one pooled step with the prompt at its own eta, then decode steps at another. The
// published one differs in three things (docs/decisions/subspaces/0121-ojakv-is-our-reading.md).
void Paper(SubspaceConfig* s, double prompt, double decode, int interval) {
  Every(s, interval);
  s->oja.relative = false;
  s->oja.learning_rate = decode;
  s->prompt = {kPaperPool, prompt};
}

const std::vector<Setting>& Settings() {
  static const auto* const kSettings = new std::vector<Setting>{
      {{"asked", "as the flags ask"}, true, nullptr},
      {{"plain", "no token full-rank"}, false, [](SubspaceConfig*) {}},
      {{"moment", "full-rank by the profile's moment"}, true, [](SubspaceConfig* s) { s->choice.queries = 0; }},
      {{"queries", "full-rank by the last 32 queries"}, true, ByQueries},
      {{"pooled", "the same, over 7 neighbours"}, true, [](SubspaceConfig* s) { ByQueries(s), s->choice.pool = 7; }},
      {{"static", "by queries, bases that stay"},
       true,
       [](SubspaceConfig* s) { ByQueries(s), s->oja.error_threshold = 1; }},
      {{"t64", "by queries, T = 64"}, true, [](SubspaceConfig* s) { Every(s, 64); }},
      {{"t128", "by queries, T = 128"}, true, [](SubspaceConfig* s) { Every(s, 128); }},
      {{"t256", "by queries, T = 256"}, true, [](SubspaceConfig* s) { Every(s, 256); }},
      {{"prompt", "by queries, a step a prompt, relative 0.1"}, true, [](SubspaceConfig* s) { AtOnce(s, .1); }},
      {{"stacked", "by queries, queries and keys stacked"},
       true,
       [](SubspaceConfig* s) { ByQueries(s), s->stack_queries = true; }},
      {{"plainstacked", "no token full-rank, stacked"}, false, [](SubspaceConfig* s) { s->stack_queries = true; }},
      {{"promptstacked", "by queries, a step a prompt, stacked"},
       true,
       [](SubspaceConfig* s) { AtOnce(s, .1), s->stack_queries = true; }},
      {{"paper", "our reading of the paper: eta 0.1, then 0.01; T = 32"},
       true,
       [](SubspaceConfig* s) { Paper(s, .1, .01, 32); }},
      {{"paper64", "our reading, T = 64"}, true, [](SubspaceConfig* s) { Paper(s, .1, .01, 64); }},
      {{"paper128", "our reading, T = 128"}, true, [](SubspaceConfig* s) { Paper(s, .1, .01, 128); }},
      {{"paper256", "our reading, T = 256"}, true, [](SubspaceConfig* s) { Paper(s, .1, .01, 256); }},
      {{"papersmall", "our reading, eta 0.001, then 0.0001"},
       true,
       [](SubspaceConfig* s) { Paper(s, .001, .0001, 32); }},
  };
  return *kSettings;
}

IndexConfig ConfigOf(const DatasetInfo& info, const OjakvOptions& o, const Setting& setting, KeyFrame frame,
                     size_t layer, std::shared_ptr<const Profile> profile) {
  IndexConfig config;
  config.name = "ojakv";
  config.geometry = {1, info.group, 1, info.head_dim, info.dtype, o.rope};
  config.zones = {kOjakvSink, kOjakvLocal, kOjakvBuffer, 0};
  config.kv_store = KvStore::kKeysValues;
  SubspaceConfig s = setting.set == nullptr ? o.asked : SubspaceConfig();
  s.carried_to = o.asked.carried_to;
  s.frame = frame;
  s.key_rank = frame == KeyFrame::kPreRope ? o.pre_rope_rank : o.rank;
  s.value_rank = o.rank;
  s.full_rank = setting.hybrid ? o.full_rank : 0;
  if (!setting.hybrid) {  // what a full-rank token takes, shared between keys and values
    const auto more = static_cast<int>(std::lround(o.full_rank * info.head_dim));
    s.key_rank = std::min(info.head_dim, s.key_rank + more);
    s.value_rank = std::min(info.head_dim, s.value_rank + more);
  }
  const auto own = [&](std::vector<int>* ranks, int* rank) {
    if (!ranks->empty()) *rank = (*ranks)[layer];
    ranks->clear();  // the index has one layer
  };
  own(&s.key_ranks, &s.key_rank);
  own(&s.value_ranks, &s.value_rank);
  s.profile = std::move(profile);
  if (setting.set != nullptr) setting.set(&s);
  config.subspace = std::move(s);
  return config;
}

std::vector<double> Weights(const std::vector<float>& keys, const float* query, int dim) {
  const auto count = static_cast<int64_t>(keys.size()) / dim;
  std::vector<double> weights(count);
  for (int64_t t = 0; t < count; ++t) {
    double dot = 0;
    for (int j = 0; j < dim; ++j) dot += double{keys[t * dim + j]} * query[j];
    weights[t] = dot / std::sqrt(static_cast<double>(dim));
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& w : weights) sum += w = std::exp(w - largest);
  for (double& w : weights) w /= sum;
  return weights;
}

// One head's stream through an index.
class HeadStream {
 public:
  HeadStream(const DatasetInfo& info, const OjakvOptions& o, const Head& head, const std::vector<uint8_t>& value_rows,
             const std::vector<float>& values)
      : info_(info), o_(o), head_(head), value_rows_(value_rows), values_(values) {}

  absl::StatusOr<OjakvRow> Run(const IndexConfig& config, Backend* backend) {
    auto index = Index::Create(config, backend);
    if (!index.ok()) return index.status();
    const auto sequence = (*index)->CreateSequence("");
    if (!sequence.ok()) return sequence.status();
    const int64_t first = head_.num_tokens - info_.num_positions, prompt = first + o_.prompt_queries;
    OjakvRow row;
    if (absl::Status s = Append(**index, *sequence, 0, prompt, o_.prompt_queries); !s.ok()) return s;
    int64_t asked = 0;
    for (int64_t t = prompt; t < head_.num_tokens; ++t) {
      if (absl::Status s = Append(**index, *sequence, t, t + 1, 1); !s.ok()) return s;
      if (t + 1 < prompt + (asked + 1) * (head_.num_tokens - prompt) / o_.queries) continue;
      if (absl::Status s = Ask(**index, *sequence, t, &row); !s.ok()) return s;
      ++asked;
    }
    const auto share = 1 / static_cast<double>(asked * info_.group);
    row.attention_error *= share;
    row.mass *= share;
    return Describe(**index, *sequence, config, row);
  }

 private:
  // Tokens [begin, end), with the queries of the last positions.
  absl::Status Append(Index& index, const SequenceHandle& sequence, int64_t begin, int64_t end, int64_t positions) {
    const size_t row = info_.head_dim * SizeOf(info_.dtype);
    const auto view = [&](const std::vector<uint8_t>& rows) {
      return TensorView{rows.data() + begin * row, end - begin, (end - begin) * row};
    };
    QueryView queries;
    if (index.config().subspace->full_rank > 0 && index.config().subspace->choice.queries > 0) {
      queries = {QueriesAt(end - positions), positions};
    }
    return index.Append(sequence, 0, begin, view(head_.tokens), view(value_rows_), queries).status();
  }

  const float* QueriesAt(int64_t position) const {
    const int64_t place = position - (head_.num_tokens - info_.num_positions);
    return head_.queries.data() + place * info_.group * info_.head_dim;
  }

  // Adds a position's errors and mass, of its queries together.
  absl::Status Ask(Index& index, const SequenceHandle& sequence, int64_t position, OjakvRow* row) const {
    const int dim = info_.head_dim;
    const int64_t count = position + 1;
    std::vector<int32_t> all(count);
    std::iota(all.begin(), all.end(), 0);
    std::string keys, values;
    if (absl::Status s = index.Gather(sequence, 0, 0, all, &keys, &values); !s.ok()) return s;
    std::vector<float> key_rows(count * dim), value_rows(count * dim);
    const size_t bytes = dim * SizeOf(info_.dtype);
    cpu::ToFloat({keys.data(), bytes, info_.dtype}, static_cast<int>(count), dim, key_rows.data());
    cpu::ToFloat({values.data(), bytes, info_.dtype}, static_cast<int>(count), dim, value_rows.data());
    const std::vector<float> exact(head_.keys.begin(), head_.keys.begin() + count * dim);
    for (int g = 0; g < info_.group; ++g) {
      const float* query = QueriesAt(position) + g * dim;
      const std::vector<double> want = Weights(exact, query, dim), got = Weights(key_rows, query, dim);
      std::vector<double> output(dim), approximate(dim);
      for (int64_t t = 0; t < count; ++t) {
        row->mass += std::min(want[t], got[t]);
        for (int j = 0; j < dim; ++j) {
          output[j] += want[t] * values_[t * dim + j];
          approximate[j] += got[t] * value_rows[t * dim + j];
        }
      }
      double error = 0, norm = 0;
      for (int j = 0; j < dim; ++j) {
        error += std::pow(approximate[j] - output[j], 2);
        norm += std::pow(output[j], 2);
      }
      row->attention_error += std::sqrt(error / norm);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<OjakvRow> Describe(Index& index, const SequenceHandle& sequence, const IndexConfig& config,
                                    OjakvRow row) const {
    const auto described = index.DescribeHead(sequence, 0, 0);
    if (!described.ok()) return described.status();
    const SubspaceInfo& low = *described->subspace;
    row.frame = Name(config.subspace->frame);
    row.key_rank = low.key_rank;
    row.value_rank = low.value_rank;
    const auto full =
        static_cast<double>(low.low_rank_tokens * 2 * info_.head_dim) * static_cast<double>(SizeOf(info_.dtype));
    row.bytes = static_cast<double>(low.code_bytes + low.full_rank_bytes + low.basis_bytes) / full;
    row.updates = static_cast<double>(low.keys.updates);
    row.blocks_without_queries = static_cast<double>(low.blocks_without_queries);
    return row;
  }

  const DatasetInfo& info_;
  const OjakvOptions& o_;
  const Head& head_;
  const std::vector<uint8_t>& value_rows_;
  const std::vector<float>& values_;
};

void AddShare(const OjakvRow& row, double share, OjakvRow* sum) {
  sum->frame = row.frame;
  sum->key_rank = row.key_rank;
  sum->value_rank = row.value_rank;
  sum->bytes += share * row.bytes;
  sum->attention_error += share * row.attention_error;
  sum->mass += share * row.mass;
  sum->updates += share * row.updates;
  sum->blocks_without_queries += share * row.blocks_without_queries;
}

}  // namespace

const std::vector<OjakvArm>& OjakvArms() {
  static const auto* const kArms = [] {
    auto* arms = new std::vector<OjakvArm>();
    for (const Setting& setting : Settings()) arms->push_back(setting.arm);
    return arms;
  }();
  return *kArms;
}

absl::StatusOr<std::vector<OjakvRow>> MeasureOjakv(const Dataset& dataset, const OjakvOptions& options,
                                                   Backend* backend) {
  const DatasetInfo& info = dataset.info();
  if (info.num_positions < options.prompt_queries + options.queries) {
    return absl::InvalidArgumentError(absl::StrCat("--trace: queries of ", info.num_positions, " positions, at least ",
                                                   options.prompt_queries + options.queries, " are needed"));
  }
  std::vector<KeyFrame> frames = {KeyFrame::kPostRope};
  if (options.rope.stated()) frames.push_back(KeyFrame::kPreRope);
  std::vector<Setting> settings;
  for (const Setting& setting : Settings()) {
    const bool asked =
        std::find(options.methods.begin(), options.methods.end(), setting.arm.id) != options.methods.end();
    if (asked || options.methods.empty()) settings.push_back(setting);
  }
  std::vector<OjakvRow> mean(frames.size() * settings.size());
  Progress progress(info.num_heads());
  for (int h = 0; h < info.num_heads(); ++h) {
    const auto head = dataset.Load(h);
    if (!head.ok()) return head.status();
    auto values = dataset.LoadValues(h);
    if (!values.ok()) return values.status();
    const std::vector<uint8_t> value_rows = ToDType(info.dtype, &*values);
    const std::shared_ptr<const Profile> profile = ProfileOfHead(*options.profile, head->layer, head->kv_head);
    const auto layer = static_cast<size_t>(h / info.num_kv_heads);
    HeadStream stream(info, options, *head, value_rows, *values);
    size_t place = 0;
    for (const KeyFrame frame : frames) {
      for (const Setting& setting : settings) {
        auto row = stream.Run(ConfigOf(info, options, setting, frame, layer, profile), backend);
        if (!row.ok()) return row.status();
        OjakvRow& sum = mean[place++];
        sum.method = setting.arm.id;
        AddShare(*row, 1 / static_cast<double>(info.num_heads()), &sum);
      }
    }
    progress.Step(absl::StrCat("head ", h + 1, " of ", info.num_heads()));
  }
  return mean;
}

}  // namespace seine::bench
