#include "kernels/ops/scan/collision.h"

#include <algorithm>

#include "kernels/ops/query/search.h"
#include "kernels/ops/scan/scan.h"

namespace seine {

void MakeTiers(const float* transformed, int head_dim, const uint32_t* counts, int64_t num_keys, double fraction,
               int table_bytes, std::vector<uint8_t>* tiers) {
  tiers->assign(static_cast<size_t>(table_bytes) * 256, 0);
  uint64_t limits[kCollisionTiers];
  for (int t = 0; t < kCollisionTiers; ++t) limits[t] = CollisionLimit(num_keys, fraction, t);
  uint64_t ranked[256];
  for (int b = 0; b < head_dim / 8; ++b) {
    const float* q = transformed + b * 8;
    for (uint32_t id = 0; id < 256; ++id) {
      float sum = 0;
      for (int j = 0; j < 8; ++j) sum += (id >> j) & 1 ? q[j] : -q[j];
      ranked[id] = CollisionRank(sum, id);
    }
    std::sort(ranked, ranked + 256);
    uint64_t before = 0;
    for (int i = 0, tier = 0; i < 256; ++i) {
      while (tier < kCollisionTiers && before >= limits[tier]) ++tier;
      if (tier == kCollisionTiers) break;
      const uint32_t id = static_cast<uint32_t>(ranked[i]);
      (*tiers)[b * 256 + id] = static_cast<uint8_t>(kCollisionTiers - tier);
      before += counts[b * 256 + id];
    }
  }
}

const uint32_t* SearchedCounts(const SearchTask& task, std::vector<uint32_t>* made) {
  if (task.counted_keys == task.num_keys) return task.collision_counts;
  const CodeLayout& layout = task.codec->layout();
  const size_t size = static_cast<size_t>(layout.head_dim / 8) * 256;
  const bool takes_off = TakesOff(task.num_keys, task.counted_keys);
  made->assign(size, 0);
  if (takes_off) std::copy_n(task.collision_counts, size, made->data());
  const int64_t end = takes_off ? task.counted_keys : task.num_keys;
  for (int64_t key = takes_off ? task.num_keys : 0; key < end;) {
    const int64_t segment = key / task.segment_keys, first = segment * task.segment_keys;
    const int64_t stop = std::min(end, first + task.segment_keys);
    cpu::CountCodes(task.segments[segment], layout, static_cast<int>(key - first), static_cast<int>(stop - first),
                    takes_off ? -1 : 1, made->data());
    key = stop;
  }
  return made->data();
}

}  // namespace seine
