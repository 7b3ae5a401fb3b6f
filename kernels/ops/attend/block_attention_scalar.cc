// The plain twin of block_attention_cpu.cc: one row after another, the same sums.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ops/attend/block_attention.h"
#include "kernels/ops/attend/block_softmax.h"
#include "kernels/ops/rows/rows.h"
#include "kernels/stop.h"

namespace seine::cpu::scalar {
namespace {

float Exp2(float x) {
  x = std::max(x, kLeastExponent);
  const float whole = std::nearbyint(x), part = x - whole;
  float p = kExp2Terms[0];
  for (int i = 1; i < kNumExp2Terms; ++i) p = std::fma(p, part, kExp2Terms[i]);
  return BitsFloat(FloatBits(p) + (static_cast<uint32_t>(static_cast<int32_t>(whole)) << 23));
}

// One row's softmax as it goes along the tiles.
struct Row {
  std::vector<float> query;  // times the scale, in powers of two
  float most = kNothingSeen, total = 0;

  Row(const BlockTask& task, int r) : query(task.queries[r], task.queries[r] + task.keys.head_dim) {
    for (float& x : query) x *= task.scale * kLog2E;
  }
  // weights [kTileKeys]. Returns what sums so far are scaled by; `seen` must not be 0.
  float Weigh(const BlockTask& task, const KeyTile& tile, uint64_t seen, float* weights) {
    const int dim = task.keys.head_dim;
    std::vector<float> key(dim);
    for (int i = 0; i < kTileKeys; ++i) {
      weights[i] = kHidden;
      if ((seen >> i & 1) == 0) continue;
      ToFloat({task.keys.row(tile.runs[i / kRunKeys] + i % kRunKeys), 0, task.keys.dtype}, 1, dim, key.data());
      weights[i] = 0;
      for (int j = 0; j < dim; ++j) weights[i] = std::fma(key[j], query[j], weights[i]);
      if (task.softcap > 0) {
        const float cap = task.softcap * kLog2E, t = Exp2(std::fabs(weights[i]) * CapExponent(cap));
        weights[i] = std::copysign(((1.0f - t) / (1.0f + t)) * cap, weights[i]);
      }
    }
    const float peak = *std::max_element(weights, weights + kTileKeys), before = most;
    if (peak > most + kLazyExponent) most = peak;
    const float scale = Exp2(before - most);
    total *= scale;
    for (int i = 0; i < kTileKeys; ++i) {
      weights[i] = Exp2(weights[i] - most);
      total += weights[i];
    }
    return scale;
  }
};

uint64_t SeenBy(const BlockTask& task, const KeyTile& tile, int r) {
  return PresentKeys(tile, task.num_places) & (tile.seen == nullptr ? ~uint64_t{0} : tile.seen[r / task.group]);
}

}  // namespace

void AttendBlock(const BlockTask& task, float* const* outputs, float* log_sum_exp) {
  const int dim = task.keys.head_dim;
  std::vector<float> value(dim);
  float weights[kTileKeys];
  for (int r = 0; r < task.num_rows && !StopRequested(); ++r) {
    Row row(task, r);
    std::vector<float> sums(dim, 0.0f);
    for (int64_t t = 0; t < task.num_tiles; ++t) {
      const KeyTile& tile = task.tiles[t];
      const uint64_t seen = SeenBy(task, tile, r);
      if (seen == 0) continue;
      const float scale = row.Weigh(task, tile, seen, weights);
      for (float& sum : sums) sum *= scale;
      for (int i = 0; i < kTileKeys; ++i) {
        if ((seen >> i & 1) == 0) continue;
        ToFloat({task.values.row(tile.runs[i / kRunKeys] + i % kRunKeys), 0, task.values.dtype}, 1, dim, value.data());
        for (int j = 0; j < dim; ++j) sums[j] = std::fma(value[j], weights[i], sums[j]);
      }
    }
    const float share = row.total > 0 ? 1 / row.total : 0;
    for (int j = 0; j < dim; ++j) outputs[r][j] = sums[j] * share;
    if (log_sum_exp != nullptr) log_sum_exp[r] = LogSumExpOf(row.most, row.total);
  }
}

void RunMasses(const BlockTask& task, float* masses) {
  std::fill_n(masses, task.num_tiles * kTileRuns * task.num_rows, 0.0f);
  std::vector<float> of_runs(task.num_tiles * kTileRuns), at_most(task.num_tiles);
  float weights[kTileKeys];
  for (int r = 0; r < task.num_rows && !StopRequested(); ++r) {
    Row row(task, r);
    std::fill(of_runs.begin(), of_runs.end(), 0.0f);
    for (int64_t t = 0; t < task.num_tiles; ++t) {
      const uint64_t seen = SeenBy(task, task.tiles[t], r);
      at_most[t] = row.most;
      if (seen == 0) continue;
      row.Weigh(task, task.tiles[t], seen, weights);
      at_most[t] = row.most;
      for (int run = 0; run < kTileRuns; ++run) {
        float sum = weights[run * kRunKeys];
        for (int i = 1; i < kRunKeys; ++i) sum += weights[run * kRunKeys + i];
        of_runs[t * kTileRuns + run] = sum;
      }
    }
    if (!(row.total > 0)) continue;
    for (int64_t t = 0; t < task.num_tiles; ++t) {
      const float share = Exp2(at_most[t] - row.most) / row.total;
      for (int run = 0; run < kTileRuns; ++run) {
        masses[(t * kTileRuns + run) * task.num_rows + r] = of_runs[t * kTileRuns + run] * share;
      }
    }
  }
}

}  // namespace seine::cpu::scalar
