// One retrieved item, kept so that it can be answered a second time exactly: what was asked and what was found.
#ifndef SEINE_INDEX_QUALITY_SAMPLE_H_
#define SEINE_INDEX_QUALITY_SAMPLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "index/retrieval/search_batch.h"
#include "index/sequence/sequence.h"
#include "kernels/ops/query/search.h"

namespace seine {

// Counts tokens by place (head_group_cache.h). A place means the same token until the layer is cut: appends change
// nothing before them.
struct QualitySample {
  struct Head {
    int kv_head = 0;
    int64_t size = 0;                         // tokens held when it was answered
    int64_t zone_begin = 0, zone_keys = 0;    // of them
    double candidates = 0;                    // that outlived the scan, a query head's
    double noise = 0, fine_noise = 0;         // HeadCodec's; 0: its codec predicts nothing
    std::vector<std::vector<int32_t>> found;  // [sets] places, ascending
  };

  const Context* context = nullptr;
  std::weak_ptr<Sequence> sequence;  // weak: a sample keeps no deleted sequence's memory
  int layer = 0;
  int64_t cuts = 0;            // Layer::cuts() when it was answered
  SearchParams params;         // with which it was searched
  std::vector<float> queries;  // [num_q_heads, head_dim]
  std::vector<Head> heads;     // those that were searched
  bool by_chance = false;      // counts in live quality
  bool of_gate = false;        // taken for the layer's gate
  float softcap = 0;           // AttentionParams::softcap

  int64_t bytes() const;  // of what it points to
};

// A copy of one target of a batch that was searched, or of one of its KV heads; before ReadAnswer and Unlock.
// std::bad_alloc.
QualitySample SampleOf(const SearchBatch& batch, size_t target, std::optional<int> only_head = std::nullopt);

}  // namespace seine

#endif  // SEINE_INDEX_QUALITY_SAMPLE_H_
