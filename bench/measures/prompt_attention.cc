#include "bench/measures/prompt_attention.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/report/progress.h"

#include "index/prompt/choose_runs.h"
#include "index/prompt/prompt_attention.h"
#include "index/prompt/prompt_batch.h"

namespace seine::bench {

namespace {

// One head's micro-batch: every block with what its tokens see.
class MicroBatch {
 public:
  MicroBatch(const DatasetInfo& info, const Head& head)
      : info_(info),
        head_(head),
        keys_(head.tokens.data()),
        values_(head.values.data()),
        mask_(info.num_positions, info.num_tokens, info.group, [](int count, const std::function<void(int)>& task) {
          for (int i = 0; i < count; ++i) task(i);
        }) {
    const int64_t tokens = info.num_positions;
    const size_t rows = static_cast<size_t>(tokens) * info.group;
    for (size_t r = 0; r < rows; ++r) queries_.push_back(head.queries.data() + r * info.head_dim);
  }

  int num_blocks() const { return mask_.num_blocks(); }
  PromptTask Task(int b) const {
    PromptTask task;
    task.block = &mask_.block(0, 0, b);
    task.queries = queries_.data() + FirstRow(b);
    task.group = info_.group;
    task.scale = 1 / std::sqrt(static_cast<float>(info_.head_dim));
    constexpr int kOneChunk = std::numeric_limits<int>::max();
    task.keys = {&keys_, kOneChunk, info_.head_dim, info_.dtype};
    task.values = {&values_, kOneChunk, info_.head_dim, info_.dtype};
    task.num_places = info_.num_tokens;
    return task;
  }
  std::vector<float*> Outputs(int b, std::vector<float>* all) const {
    all->resize(queries_.size() * info_.head_dim);
    std::vector<float*> rows;
    for (int r = 0; r < mask_.block(0, 0, b).tokens() * info_.group; ++r) {
      rows.push_back(all->data() + (FirstRow(b) + r) * info_.head_dim);
    }
    return rows;
  }
  // Mean over the rows of |o - o_exact| / |o_exact|.
  double Error(const std::vector<float>& out, const std::vector<float>& exact) const {
    double sum = 0;
    for (size_t r = 0; r < queries_.size(); ++r) {
      double difference = 0, norm = 0;
      for (int j = 0; j < info_.head_dim; ++j) {
        const size_t i = r * info_.head_dim + j;
        difference += (out[i] - exact[i]) * (out[i] - exact[i]);
        norm += exact[i] * exact[i];
      }
      sum += std::sqrt(difference / std::max(norm, 1e-30));
    }
    return sum / static_cast<double>(queries_.size());
  }

  // Attends `count` runs of the block's zone, chosen by means, and what is always attended.
  void AttendByMeans(int b, const PromptParams& params, int64_t count, std::vector<float>* out) const {
    const PromptTask task = Task(b);
    std::vector<host::KeyTile> tiles, zone;
    int64_t whole = 0, next = 0;
    for (const host::KeyTile& tile : task.block->tiles()) whole += tile.seen == nullptr ? 1 : 0;
    const auto tiles_of = [](int keys) { return (keys + host::kTileKeys - 1) / host::kTileKeys; };
    for (const host::KeyTile& tile : task.block->tiles()) {
      const bool in_zone =
          tile.seen == nullptr && next >= tiles_of(params.sink) && next < whole - tiles_of(params.local);
      next += tile.seen == nullptr ? 1 : 0;
      (in_zone ? zone : tiles).push_back(tile);
    }
    const std::vector<float> masses = MeanMasses(task, zone);
    std::vector<int32_t> order(masses.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int32_t x, int32_t y) { return masses[x] > masses[y]; });
    order.resize(std::min<size_t>(order.size(), std::max<int64_t>(0, count)));
    for (size_t i = 0; i < order.size(); ++i) {
      if (i % host::kTileRuns == 0) std::fill_n(tiles.emplace_back().runs, host::kTileRuns, -1);
      tiles.back().runs[i % host::kTileRuns] = zone[order[i] / host::kTileRuns].runs[order[i] % host::kTileRuns];
    }
    host::BlockTask block;
    block.queries = task.queries, block.num_rows = task.block->tokens() * task.group, block.group = task.group;
    block.scale = task.scale, block.keys = task.keys, block.values = task.values, block.num_places = task.num_places;
    block.tiles = tiles.data(), block.num_tiles = static_cast<int64_t>(tiles.size());
    host::AttendBlock(block, Outputs(b, out).data(), nullptr);
  }

 private:
  ptrdiff_t FirstRow(int b) const { return ptrdiff_t{b} * kPromptBlockTokens * info_.group; }

  std::vector<float> MeanMasses(const PromptTask& task, const std::vector<host::KeyTile>& zone) const {
    const int dim = info_.head_dim;
    std::vector<float> masses(zone.size() * host::kTileRuns), logits(masses.size());
    for (int g = 0; g < task.group; ++g) {
      std::vector<double> query(dim);
      for (int t = 0; t < task.block->tokens(); ++t) {
        for (int j = 0; j < dim; ++j) query[j] += task.queries[t * task.group + g][j] / task.block->tokens();
      }
      double most = -1e300, sum = 0;
      for (size_t i = 0; i < logits.size(); ++i) {
        const size_t first = zone[i / host::kTileRuns].runs[i % host::kTileRuns];
        double dot = 0;
        for (int k = 0; k < host::kRunKeys; ++k) {
          for (int j = 0; j < dim; ++j) dot += query[j] * head_.keys[(first + k) * dim + j] / host::kRunKeys;
        }
        logits[i] = static_cast<float>(dot * task.scale);
        most = std::max(most, static_cast<double>(logits[i]));
      }
      for (const float logit : logits) sum += std::exp(logit - most);
      for (size_t i = 0; i < logits.size(); ++i) masses[i] += static_cast<float>(std::exp(logits[i] - most) / sum);
    }
    return masses;
  }

  const DatasetInfo& info_;
  const Head& head_;
  const uint8_t *keys_, *values_;
  const PromptMask mask_;
  std::vector<const float*> queries_;
};

template <typename Fn>
double FastestMs(int repeats, Fn fn) {
  double fastest = 1e300;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    fn();
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - begin;
    fastest = std::min(fastest, ms.count());
  }
  return fastest;
}

void AddHead(const PromptAttentionOptions& o, const MicroBatch& batch, std::vector<PromptAttentionRow>* rows) {
  std::vector<float> exact, out;
  const auto attend = [&](const PromptParams& params, std::vector<float>* to, std::vector<PromptCounts>* counts) {
    counts->clear();
    for (int b = 0; b < batch.num_blocks(); ++b) {
      counts->push_back(AttendPrompt(batch.Task(b), params, batch.Outputs(b, to).data(), nullptr));
    }
  };
  std::vector<PromptCounts> counts;
  (*rows)[0].ms += FastestMs(o.repeats, [&] { attend({}, &exact, &counts); });
  const auto add = [&](PromptAttentionRow* row) {
    const double error = batch.Error(out, exact);
    row->error += error;
    row->worst_head = std::max(row->worst_head, error);
    PromptCounts sum;
    for (const PromptCounts& c : counts) sum.Add(c);
    row->taken += static_cast<double>(sum.taken) / static_cast<double>(sum.seen);
    row->exact_blocks += static_cast<double>(sum.exact_blocks) / static_cast<double>(sum.blocks);
  };
  for (size_t i = 1; i < rows->size(); i += 2) {
    PromptAttentionRow& sampled = (*rows)[i];
    PromptParams params;
    params.mass = sampled.mass, params.most = sampled.most, params.sample = sampled.sample;
    params.sink = o.sink, params.local = o.local;
    sampled.ms += FastestMs(o.repeats, [&] { attend(params, &out, &counts); });
    add(&sampled);
    for (int b = 0; b < batch.num_blocks(); ++b) {
      const int64_t always = counts[b].seen - counts[b].zone;
      batch.AttendByMeans(b, params, (counts[b].taken - always) / counts[b].blocks, &out);
    }
    add(&(*rows)[i + 1]);
  }
}

}  // namespace

absl::StatusOr<PromptAttentionResult> MeasurePromptAttention(const PromptAttentionOptions& options) {
  DatasetOptions data = options.data;
  data.values = data.all_queries = true;
  auto set = Dataset::Open(data);
  if (!set.ok()) return set.status();
  PromptAttentionResult result;
  result.data = (*set)->info();
  result.tokens = result.data.num_positions;
  result.rows.push_back({.method = "exact"});
  for (const double mass : options.masses) {
    for (const int sample : options.samples) {
      for (const double most : options.most) {
        for (const char* method : {"sampled", "means"}) {
          result.rows.push_back(
              {.method = method, .mass = mass, .most = most, .sample = sample, .taken = 0, .exact_blocks = 0});
        }
      }
    }
  }
  const int heads = result.data.num_heads();
  Progress progress(heads);
  for (int h = 0; h < heads; ++h) {
    progress.Step(absl::StrCat("head ", h + 1, " of ", heads), h > 0 ? 1 : 0);
    auto head = (*set)->Load(h);
    if (!head.ok()) return head.status();
    AddHead(options, MicroBatch(result.data, *head), &result.rows);
  }
  for (size_t i = 1; i < result.rows.size(); ++i) {
    PromptAttentionRow& row = result.rows[i];
    row.error /= heads, row.taken /= heads, row.exact_blocks /= heads;
  }
  return result;
}

}  // namespace seine::bench
