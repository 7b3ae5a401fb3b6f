// Facts of a layer that are told without its lock: how much it holds and in what shape, as of its last change. So
// questions about sequences never wait for a search or an append.
#ifndef SEINE_INDEX_SEQUENCE_LAYER_FACTS_H_
#define SEINE_INDEX_SEQUENCE_LAYER_FACTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "index/subspace/low_rank_store.h"
#include "index/transforms/transforms.h"

namespace seine {

// Facts of a cache; what they say of a head goes for each of its heads.
struct HeadGroupFacts {
  int64_t size = 0;
  int64_t zone_keys = 0, segments = 0;
  int64_t head_code_bytes = 0, head_store_bytes = 0;
  std::shared_ptr<const LayerCodecs> codecs;             // nullptr: nothing is encoded
  std::shared_ptr<const std::vector<LowRankStore>> low;  // copies, [heads]; nullptr: everything is full-rank
};

struct LayerTotals {
  int64_t length = 0;
  int64_t code_bytes = 0, store_bytes = 0;
};

// One head's.
struct HeadFacts {
  int64_t length = 0;  // of the layer
  HeadGroupFacts cache;
  const LowRankStore* low_rank = nullptr;  // in `cache`
};

}  // namespace seine

#endif  // SEINE_INDEX_SEQUENCE_LAYER_FACTS_H_
