// The mass of a zone (kernels/ops/query/zone_mass.h) by the lanes of a block, as ops/mass/zone_mass_cpu.cc adds it up.
#ifndef SEINE_KERNELS_OPS_MASS_ZONE_MASS_CUDA_H_
#define SEINE_KERNELS_OPS_MASS_ZONE_MASS_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/ops/mass/log_sum_exp_cuda.h"
#include "kernels/ops/query/code_reader.h"
#include "kernels/ops/query/search_items.h"
#include "kernels/ops/query/zone_mass.h"
#include "kernels/ops/select/block_select_cuda.h"

namespace seine::cuda {

struct MassShared {
  float e[kMostMassKeys], factors[kMostMassKeys];
  float lanes[3][kMassLanes];
  MassModel model;
  bool candidate[kMostMassKeys];
  uint32_t chosen;  // of the sampled keys
};

// The i-th sampled key of the zone.
SEINE_BODY inline uint32_t SampledKey(const MassSample& sample, uint32_t i) {
  const uint32_t window = i >> sample.shift;
  return sample.window(window) * kWindowTokens + sample.first(window) + i % sample.keys();
}

// s.e, s.factors and s.model but for what SetRest sets.
template <typename Block>
SEINE_BODY void MakeModel(Block& block, MassShared& s, const SearchItem& item, const QueryPlan& q,
                          const MassSample& sample, float scale) {
  block.Lanes([&](int lane) {
    if (lane == 0) s.chosen = 0;
    for (uint32_t i = lane; i < sample.size(); i += block.num_lanes()) {
      const uint32_t key = SampledKey(sample, i), place = key % kWindowTokens;
      const Window w = WindowOf(item, key / kWindowTokens);
      const float base = q.bases[key / kWindowTokens];
      s.e[i] = CoarseScore(false, CoarseSum(item, false, q.place, w, place), base, w, place) - base;
      s.factors[i] = DecodeFactor(w.factor[place], w.factor_base);
    }
  });
  block.Lanes([&](int lane) {
    const int row = lane / static_cast<int>(kMassLanes);
    if (row >= 3) return;
    float sum = 0;
    for (uint32_t i = lane % static_cast<int>(kMassLanes); i < sample.size(); i += static_cast<int>(kMassLanes)) {
      sum = sum + (row == 0 ? s.e[i] : row == 1 ? s.e[i] * s.e[i] : s.factors[i] * s.factors[i]);
    }
    s.lanes[row][lane % static_cast<int>(kMassLanes)] = sum;
  });
  block.Lanes([&](int lane) {
    if (lane != 0) return;
    const MassSums sums = {TreeOf(s.lanes[0]), TreeOf(s.lanes[1]), TreeOf(s.lanes[2])};
    s.model = MassModelOf(scale * q.state->coarse_step, q.state->errors, sums, sample.size());
  });
}

// Adds the rest of the zone; q.estimates are FineLogits.
template <typename Block>
SEINE_BODY void AddRest(Block& block, MassShared& s, LseShared& lse, const SearchItem& item, const QueryPlan& q,
                        const MassSample& sample) {
  const uint32_t n = q.state->num_candidates, size = sample.size();
  block.Lanes([&](int lane) {
    for (uint32_t i = lane; i < size; i += block.num_lanes()) {
      const uint32_t key = SampledKey(sample, i);
      uint32_t place;
      lse.terms[i] = 0;
      s.candidate[i] = FindAmong(q.chosen, n, key, &place);
      if (!s.candidate[i]) continue;
      lse.terms[i] = q.estimates[place] - s.model.Logit(q.bases[key / kWindowTokens], s.e[i]);
      block.AtomicAdd(&s.chosen, 1u);
    }
  });
  if (block.Read(s.chosen) == size || n == static_cast<uint32_t>(item.num_keys)) return;
  block.Lanes([&](int lane) {
    if (lane >= static_cast<int>(kMassLanes)) return;
    float sum = 0;
    for (uint32_t i = lane; i < size; i += static_cast<int>(kMassLanes)) sum = sum + lse.terms[i];
    s.lanes[0][lane] = sum;
  });
  block.Lanes([&](int lane) {
    if (lane != 0) return;
    SetRest(static_cast<uint32_t>(item.num_keys) - n, size, s.chosen, TreeOf(s.lanes[0]), &s.model);
  });
  block.Lanes([&](int lane) {
    for (uint32_t i = lane; i < size; i += block.num_lanes()) {
      const uint32_t key = SampledKey(sample, i);
      const float base = q.bases[key / kWindowTokens];
      s.e[i] = s.candidate[i] ? -INFINITY : s.model.Exponent(base, s.e[i], s.factors[i]);
    }
  });
  AddToLse(block, lse, s.e, size, 1.0f);
}

// Adds the keys of the zone but the query's survivors. The estimates are of no use afterwards.
template <typename Block>
SEINE_BODY void AddUnscored(Block& block, MassShared& s, LseShared& lse, const SearchItem& item, const QueryPlan& q,
                            float scale) {
  const MassSample sample = MassSampleOf(item.num_keys);
  const uint32_t n = q.state->num_candidates, kept = q.state->num_survivors;
  MakeModel(block, s, item, q, sample, scale);
  block.Lanes([&](int lane) {
    for (uint32_t c = lane; c < n; c += block.num_lanes()) {
      q.estimates[c] = s.model.FineLogit(q.bases[q.chosen[c] / kWindowTokens], q.estimates[c] * scale);
    }
  });
  AddRest(block, s, lse, item, q, sample);
  if (kept == n) return;
  block.Lanes([&](int lane) {
    for (uint32_t c = lane; c < n; c += block.num_lanes()) q.estimates[c] = q.estimates[c] + s.model.fine_growth;
  });
  block.Lanes([&](int lane) {
    for (uint32_t i = lane; i < kept; i += block.num_lanes()) {
      q.estimates[PlaceAmong(q.chosen, n, q.survivors[i])] = -INFINITY;
    }
  });
  AddToLse(block, lse, q.estimates, n, 1.0f);
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_MASS_ZONE_MASS_CUDA_H_
