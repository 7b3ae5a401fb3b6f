// The bases of a layer, read and replaced, and what is said about its low-rank rows.
#ifndef SEINE_INDEX_CALLS_SUBSPACES_H_
#define SEINE_INDEX_CALLS_SUBSPACES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "index/index.h"
#include "index/sequence/layer.h"

namespace seine {

// Index::Reconstruct, GetBases and SetBases once a layer with low-rank stores is found. Each takes its lock.
absl::Status ReconstructRows(const Layer& layer, int kv_head, int64_t begin, int64_t end,
                             std::vector<int32_t>* positions, std::string* keys, std::string* values);
absl::StatusOr<LayerBases> BasesOf(const Layer& layer);
absl::Status ReplaceBases(const IndexConfig& config, int layer, const LayerBases& bases, Layer* held);

// Describes a head's low-rank store; nullopt where that is nullptr.
std::optional<SubspaceInfo> DescribeSubspace(const IndexConfig& config, const LowRankStore* low);

}  // namespace seine

#endif  // SEINE_INDEX_CALLS_SUBSPACES_H_
