#include "bench/measures/evict.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "bench/inputs/truth.h"
#include "bench/machine/median.h"
#include "bench/machine/parallel.h"
#include "bench/measures/recall.h"
#include "index/eviction/select_kept.h"
#include "kernels/ops/select/select.h"

namespace seine::bench {
namespace {

using Selected = std::vector<std::vector<uint32_t>>;

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// Mean softmax weight of each scored token over the later queries of the head's group.
std::vector<float> LaterWeights(const EvictLayer& layer, const Head& head) {
  std::vector<float> mean(layer.scored), logits(layer.scored);
  const float scale = 1 / std::sqrt(static_cast<float>(layer.head_dim));
  const int64_t queries = layer.later * layer.group;
  const float* first = head.queries.data() + layer.observed * layer.group * layer.head_dim;
  for (int64_t q = 0; q < queries; ++q) {
    float largest = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < layer.scored; ++i) {
      logits[i] = scale * Dot(first + q * layer.head_dim, &head.keys[i * layer.head_dim], layer.head_dim);
      largest = std::max(largest, logits[i]);
    }
    double sum = 0;
    for (float& l : logits) sum += l = std::exp(l - largest);
    const auto share = static_cast<float>(1 / (sum * static_cast<double>(queries)));
    for (int64_t i = 0; i < layer.scored; ++i) mean[i] += share * logits[i];
  }
  return mean;
}

// Queries of all heads by position, from those of each KV head's group.
void GatherObserved(EvictLayer* layer) {
  const size_t row = static_cast<size_t>(layer->group) * layer->head_dim;
  for (int64_t q = 0; q < layer->observed; ++q) {
    for (const Head& head : layer->heads) {
      const float* queries = head.queries.data() + q * row;
      layer->observed_queries.insert(layer->observed_queries.end(), queries, queries + row);
    }
  }
}

absl::Status Finish(const DatasetInfo& info, const Profile* profile, EvictLayer* layer) {
  layer->group = info.group;
  layer->head_dim = info.head_dim;
  layer->dtype = info.dtype;
  layer->observed = info.num_positions / 2;
  layer->later = info.num_positions - layer->observed;
  layer->scored = info.synthetic ? info.num_tokens : info.num_tokens - layer->later;
  if (layer->observed < 1) return absl::InvalidArgumentError("--trace: holds one query; two at least are needed");
  GatherObserved(layer);
  layer->weights.resize(layer->heads.size());
  ParallelFor(static_cast<int64_t>(layer->heads.size()),
              [&](int64_t h) { layer->weights[h] = LaterWeights(*layer, layer->heads[h]); });
  const auto kv_heads = static_cast<int>(layer->heads.size());
  layer->filters =
      FiltersFromQueries(layer->observed_queries.data(), layer->observed, kv_heads, info.group, info.head_dim);
  if (profile == nullptr) return absl::OkStatus();
  if (absl::Status s = CheckGeometry(*profile, profile->num_layers(), kv_heads * info.group, kv_heads, info.head_dim);
      !s.ok()) {
    return s;
  }
  auto rope = ParseRope(info.rope_json, info.head_dim, info.rope_style, info.num_tokens);
  if (!rope.ok()) return rope.status();
  auto filters = FiltersFromProfile(*profile, layer->layer, *rope, 0, static_cast<double>(info.num_tokens));
  if (!filters.ok()) return filters.status();
  layer->filters = *std::move(filters);
  return absl::OkStatus();
}

// What inputs point to: keys in the backend's own memory (huge pages, as an index has them), and running sums.
struct Views {
  std::vector<Buffer> memory;
  std::vector<const uint8_t*> keys, values;
  std::vector<KeySums> sums;
};

ScoreInput MakeInput(const EvictLayer& layer, const Rope& rope, const Profile* profile, Backend* backend,
                     Views* views) {
  ScoreInput input;
  input.backend = backend;
  input.head_dim = layer.head_dim;
  input.group = layer.group;
  input.softmax_scale = 1 / std::sqrt(static_cast<float>(layer.head_dim));
  input.length = std::max(layer.scored, layer.heads[0].num_tokens - layer.later);
  if (layer.scored == layer.heads[0].num_tokens) input.length += layer.observed;  // synthetic: queries follow the keys
  input.layer = layer.layer;
  input.queries = layer.observed_queries.data();
  input.num_queries = layer.observed;
  input.filters = layer.filters.data();
  input.profile = profile;
  input.rope = &rope;
  for (const Head& head : layer.heads) {
    Buffer& copy = views->memory.emplace_back(backend->Allocate(head.tokens.size(), MemorySpace::kStore));
    if (copy) std::memcpy(copy.data(), head.tokens.data(), head.tokens.size());
    views->keys.push_back(copy.data());
    views->values.push_back(head.values.data());
  }
  for (size_t h = 0; h < layer.heads.size(); ++h) {
    HeadTokens& head = input.heads.emplace_back();
    head.count = layer.scored;
    head.keys = {&views->keys[h], static_cast<int>(layer.scored), layer.head_dim, layer.dtype};
    if (!layer.heads[h].values.empty())
      head.values = {&views->values[h], head.keys.chunk_tokens, layer.head_dim, layer.dtype};
  }
  return input;
}

// Adds one layer's quality to the row's sums.
void AddQuality(const EvictLayer& layer, const Selected& selected, EvictRow* row) {
  for (size_t h = 0; h < selected.size(); ++h) {
    const std::vector<float>& weights = layer.weights[h];
    std::vector<uint32_t> top;
    std::vector<float> scratch;
    SelectLargest(weights.data(), weights.size(), selected[h].size(), &scratch, &top);
    double mass = 0;
    for (const uint32_t i : selected[h]) mass += weights[i];
    std::vector<uint32_t> common;
    std::set_intersection(top.begin(), top.end(), selected[h].begin(), selected[h].end(), std::back_inserter(common));
    row->retained_attention_mass += mass;
    row->worst_head = std::min(row->worst_head, mass);
    row->overlap_with_attention_top +=
        selected[h].empty() ? 0 : static_cast<double>(common.size()) / static_cast<double>(selected[h].size());
    row->kept += static_cast<double>(selected[h].size());
  }
}

void Average(double heads, EvictRow* row) {
  row->retained_attention_mass /= heads;
  row->overlap_with_attention_top /= heads;
  row->kept /= heads;
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<EvictLayer>>> LoadEvictLayers(const DatasetOptions& options, int kv_heads,
                                                                         const Profile* profile, DatasetInfo* info) {
  std::vector<std::unique_ptr<EvictLayer>> layers;
  const int datasets = options.trace.empty() ? kv_heads : 1;
  for (int d = 0; d < datasets; ++d) {
    DatasetOptions one = options;
    one.seed += d;
    auto dataset = Dataset::Open(one);
    if (!dataset.ok()) return dataset.status();
    *info = (*dataset)->info();
    for (int h = 0; h < info->num_heads(); ++h) {
      auto head = (*dataset)->Load(h);
      if (!head.ok()) return head.status();
      if (layers.empty() || layers.back()->layer != head->layer) {
        layers.push_back(std::make_unique<EvictLayer>());
        layers.back()->layer = head->layer;
      }
      layers.back()->heads.push_back(*std::move(head));
    }
  }
  for (const auto& layer : layers) {
    if (absl::Status s = Finish(*info, profile, layer.get()); !s.ok()) return s;
  }
  return layers;
}

absl::StatusOr<EvictRow> MeasureEviction(const std::vector<std::unique_ptr<EvictLayer>>& layers, int num_layers,
                                         const EvictSetting& setting, const Rope& rope, const Profile* profile,
                                         Backend* backend, MemoryProbe* probe) {
  auto scorer = MakeScorer(setting.scorer);
  if (!scorer.ok()) return scorer.status();
  EvictRow row{.scorer = setting.scorer.name, .budget = setting.budget_name, .worst_head = 1};
  double heads = 0, tokens = 0, seconds = 0, first_seconds = 0, bytes = 0;
  std::vector<double> shares;
  for (const auto& layer : layers) {
    Views views;
    ScoreInput input = MakeInput(*layer, rope, profile, backend, &views);
    for (const Buffer& keys : views.memory) {
      if (!keys) return absl::ResourceExhaustedError("not enough memory for a copy of the keys");
    }
    const SumsWanted wanted = (*scorer)->sums();
    for (size_t h = 0; h < layer->heads.size() && wanted.any(); ++h) {
      KeySums& sums = views.sums.emplace_back(wanted, layer->head_dim);
      sums.Add({views.keys[h], layer->head_dim * SizeOf(layer->dtype), layer->dtype}, layer->scored);
    }
    Selected selected;
    Scores scores;  // kept from run to run, as an index does
    const auto keys = static_cast<double>(layer->scored * static_cast<int64_t>(layer->heads.size()));
    const double key_bytes = keys * static_cast<double>(layer->head_dim * SizeOf(layer->dtype));
    const auto run = [&](bool running) -> absl::StatusOr<double> {
      for (size_t h = 0; h < views.sums.size(); ++h) input.heads[h].sums = running ? &views.sums[h] : nullptr;
      const double gb_s = probe->EvictCaches();
      const auto begin = std::chrono::steady_clock::now();
      if (absl::Status s = (*scorer)->Score(input, &scores); !s.ok()) return s;
      auto kept = SelectKept(setting.budget, setting.keep, num_layers, (*scorer)->observation_window(), input, &scores,
                             (*scorer)->weighting());
      const double taken = Seconds(begin);
      if (!kept.ok()) return kept.status();
      selected = *std::move(kept);
      if (running) shares.push_back(key_bytes / taken / 1e9 / gb_s);
      return taken;
    };
    double best = std::numeric_limits<double>::infinity(), best_first = best;
    for (int repeat = 0; repeat < setting.repeats; ++repeat) {
      auto again = run(true);
      if (!again.ok()) return again.status();
      best = std::min(best, *again);
      if (*again > 1 && repeat > 0) break;  // a slow scorer is not run more often than it must
    }
    for (int repeat = 0; repeat < std::min(3, setting.repeats); ++repeat) {
      auto first = run(false);
      if (!first.ok()) return first.status();
      best_first = std::min(best_first, *first);
      if (*first > 1) break;
    }
    seconds += best;
    first_seconds += best_first;
    heads += static_cast<double>(layer->heads.size());
    tokens += keys;
    bytes += key_bytes;
    AddQuality(*layer, selected, &row);
  }
  Average(heads, &row);
  row.us_per_token = seconds / tokens * 1e6;
  row.us_per_token_first = first_seconds / tokens * 1e6;
  row.gb_s = bytes / seconds / 1e9;
  row.paired_share = Median(std::move(shares));
  return row;
}

EvictRow MeasureOracle(const std::vector<std::unique_ptr<EvictLayer>>& layers, const EvictSetting& setting) {
  EvictRow row{.scorer = "oracle", .budget = setting.budget_name, .worst_head = 1};
  double heads = 0;
  for (const auto& layer : layers) {
    Selected selected(layer->heads.size());
    std::vector<float> scratch;
    const int64_t kept = KeptTokens(setting.budget, layer->scored, {.length = layer->scored});
    for (size_t h = 0; h < selected.size(); ++h) {
      SelectLargest(layer->weights[h].data(), layer->scored, kept, &scratch, &selected[h]);
    }
    AddQuality(*layer, selected, &row);
    heads += static_cast<double>(selected.size());
  }
  Average(heads, &row);
  return row;
}

}  // namespace seine::bench
