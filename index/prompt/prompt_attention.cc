#include "index/prompt/prompt_attention.h"

#include <algorithm>
#include <vector>

#include "index/prompt/choose_runs.h"

namespace seine {

namespace {

// All but the rows and the tiles.
host::BlockTask TaskOf(const PromptTask& task) {
  host::BlockTask block;
  block.scale = task.scale, block.softcap = task.softcap;
  block.keys = task.keys, block.values = task.values;
  block.num_places = task.num_places;
  return block;
}

int64_t CountRuns(const std::vector<host::KeyTile>& tiles) {
  int64_t runs = 0;
  for (const host::KeyTile& tile : tiles) {
    for (const int32_t run : tile.runs) runs += run >= 0 ? 1 : 0;
  }
  return runs;
}

// The block's tiles: those that are always attended, and those whose runs are chosen.
struct Parts {
  std::vector<host::KeyTile> dense, zone;
};

Parts Divide(const PromptBlock& block, const PromptParams& params) {
  const auto tiles_of = [](int keys) { return (keys + host::kTileKeys - 1) / host::kTileKeys; };
  int64_t whole = 0, next = 0;
  for (const host::KeyTile& tile : block.tiles()) whole += tile.seen == nullptr ? 1 : 0;
  const int64_t first = tiles_of(params.sink), last = whole - tiles_of(params.local);
  Parts parts;
  for (const host::KeyTile& tile : block.tiles()) {
    const bool in_zone = tile.seen == nullptr && next >= first && next < last;
    next += tile.seen == nullptr ? 1 : 0;
    (in_zone ? parts.zone : parts.dense).push_back(tile);
  }
  return parts;
}

// Every 16th token of a block is sampled, and more of a short one: what the others choose is judged by one at a time.
constexpr int kSampled = 16, kLeastSampled = 6;

// The sampled tokens' view of some tiles.
class Samples {
 public:
  Samples(const PromptTask& task, const PromptParams& params) : task_(task) {
    const int tokens = task.block->tokens();
    const int every = params.sample > 0 ? params.sample : std::clamp(tokens / kLeastSampled, 1, kSampled);
    for (int t = std::min(every, tokens) - 1; t < tokens; t += every) {
      tokens_.push_back(t);
      queries_.insert(queries_.end(), task.queries + static_cast<ptrdiff_t>(t) * task.group,
                      task.queries + static_cast<ptrdiff_t>(t + 1) * task.group);
    }
  }

  int tokens() const { return static_cast<int>(tokens_.size()); }

  // masses [dense and zone tiles][kTileRuns][sampled tokens][group], as RunMasses has them.
  void Weigh(const Parts& parts, std::vector<float>* masses) const {
    std::vector<host::KeyTile> tiles = parts.dense;
    std::vector<uint64_t> words(tiles.size() * tokens_.size());
    for (size_t i = 0; i < tiles.size(); ++i) {
      if (tiles[i].seen == nullptr) continue;
      uint64_t* const of_tile = words.data() + i * tokens_.size();
      for (size_t t = 0; t < tokens_.size(); ++t) of_tile[t] = tiles[i].seen[tokens_[t]];
      tiles[i].seen = of_tile;
    }
    tiles.insert(tiles.end(), parts.zone.begin(), parts.zone.end());
    host::BlockTask block = TaskOf(task_);
    block.queries = queries_.data();
    block.num_rows = static_cast<int>(queries_.size());
    block.group = task_.group;
    block.tiles = tiles.data();
    block.num_tiles = static_cast<int64_t>(tiles.size());
    masses->resize(tiles.size() * host::kTileRuns * queries_.size());
    host::RunMasses(block, masses->data());
  }

 private:
  const PromptTask& task_;
  std::vector<int> tokens_;
  std::vector<const float*> queries_;
};

// Adds tiles of the chosen runs; run i is run i % kTileRuns of zone tile i / kTileRuns.
void Gather(const std::vector<host::KeyTile>& zone, const std::vector<int32_t>& chosen,
            std::vector<host::KeyTile>* tiles) {
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (i % host::kTileRuns == 0) {
      host::KeyTile& tile = tiles->emplace_back();
      std::fill_n(tile.runs, host::kTileRuns, -1);
    }
    tiles->back().runs[i % host::kTileRuns] = zone[chosen[i] / host::kTileRuns].runs[chosen[i] % host::kTileRuns];
  }
}

// Heads [first, end) of the block attend `tiles`.
void AttendHeads(const PromptTask& task, const std::vector<host::KeyTile>& tiles, int first, int end,
                 float* const* outputs, float* log_sum_exp) {
  host::BlockTask block = TaskOf(task);
  block.tiles = tiles.data();
  block.num_tiles = static_cast<int64_t>(tiles.size());
  block.group = end - first;
  block.num_rows = task.block->tokens() * block.group;
  std::vector<const float*> queries;
  std::vector<float*> rows;
  for (int t = 0; t < task.block->tokens(); ++t) {
    for (int g = first; g < end; ++g) {
      queries.push_back(task.queries[t * task.group + g]);
      rows.push_back(outputs[t * task.group + g]);
    }
  }
  block.queries = queries.data();
  std::vector<float> of_rows(log_sum_exp == nullptr ? 0 : rows.size());
  host::AttendBlock(block, rows.data(), of_rows.empty() ? nullptr : of_rows.data());
  for (size_t r = 0; r < of_rows.size(); ++r) {
    log_sum_exp[r / block.group * task.group + first + r % block.group] = of_rows[r];
  }
}

}  // namespace

PromptCounts AttendPrompt(const PromptTask& task, const PromptParams& params, float* const* outputs,
                          float* log_sum_exp) {
  const std::vector<host::KeyTile>& all = task.block->tiles();
  const int64_t seen = CountRuns(all), group = task.group;
  PromptCounts counts{.seen = seen * group, .blocks = group};
  const auto attend_all = [&](int first, int end) {
    AttendHeads(task, all, first, end, outputs, log_sum_exp);
    counts.taken += seen * (end - first), counts.exact_blocks += end - first;
  };
  if (params.mass >= 1) {
    attend_all(0, task.group);
    return counts;
  }
  const Parts parts = Divide(*task.block, params);
  const auto runs = static_cast<int64_t>(parts.zone.size()) * host::kTileRuns;
  counts.zone = runs * group;
  if (runs * host::kRunKeys < std::max<int64_t>(params.least, 1)) {
    attend_all(0, task.group);
    return counts;
  }
  std::vector<float> masses;
  const Samples samples(task, params);
  samples.Weigh(parts, &masses);
  const size_t step = static_cast<size_t>(samples.tokens()) * task.group;
  const size_t always = parts.dense.size() * host::kTileRuns * step;
  std::vector<int32_t> chosen;
  std::vector<host::KeyTile> tiles;
  for (int g = 0; g < task.group; ++g) {
    // Each sampled token sees the zone, so that its masses add up to 1; what is always attended has its part of that.
    double wanted = params.mass * samples.tokens();
    for (size_t i = g; i < always; i += task.group) wanted -= masses[i];
    if (!ChooseRuns(masses.data() + always + g, runs, samples.tokens(), task.group, wanted,
                    static_cast<int64_t>(params.most * static_cast<double>(runs)), &chosen)) {
      attend_all(g, g + 1);
      continue;
    }
    tiles = parts.dense;
    Gather(parts.zone, chosen, &tiles);
    AttendHeads(task, tiles, g, g + 1, outputs, log_sum_exp);
    counts.taken += CountRuns(tiles);
  }
  return counts;
}

}  // namespace seine
