#include "kernels/collision.h"

#include <algorithm>
#include <cmath>

#include "kernels/math.h"

namespace seine {
namespace {

constexpr int kTiers = 6;
constexpr double kCuts[kTiers] = {.05, .15, .30, .50, .75, 1.0};

// Ascending order of the keys is descending order of the floats, then ascending id.
uint64_t RankKey(float score, uint32_t id) {
  const uint32_t u = FloatBits(score + 0.0f);
  const uint32_t ascending = u & 0x80000000u ? ~u : u | 0x80000000u;
  return static_cast<uint64_t>(~ascending) << 32 | id;
}

}  // namespace

void MakeTiers(const float* transformed, int head_dim, const uint32_t* counts, int64_t num_keys, double rho,
               int table_bytes, std::vector<uint8_t>* tiers) {
  tiers->assign(static_cast<size_t>(table_bytes) * 256, 0);
  uint64_t limits[kTiers];
  for (int t = 0; t < kTiers; ++t)
    limits[t] = static_cast<uint64_t>(std::ceil(static_cast<double>(num_keys) * rho * kCuts[t]));
  uint64_t ranked[256];
  for (int b = 0; b < head_dim / 8; ++b) {
    const float* q = transformed + b * 8;
    for (uint32_t id = 0; id < 256; ++id) {
      float sum = 0;
      for (int j = 0; j < 8; ++j) sum += (id >> j) & 1 ? q[j] : -q[j];
      ranked[id] = RankKey(sum, id);
    }
    std::sort(ranked, ranked + 256);
    uint64_t before = 0;
    for (int i = 0, tier = 0; i < 256; ++i) {
      while (tier < kTiers && before >= limits[tier]) ++tier;
      if (tier == kTiers) break;
      const uint32_t id = static_cast<uint32_t>(ranked[i]);
      (*tiers)[b * 256 + id] = static_cast<uint8_t>(kTiers - tier);
      before += counts[b * 256 + id];
    }
  }
}

}  // namespace seine
