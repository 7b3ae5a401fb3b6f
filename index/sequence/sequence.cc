#include "index/sequence/sequence.h"

#include "index/index.h"

namespace seine {
namespace {

constexpr int64_t kLowRankShape = 272, kTooLittleToCount = 64 << 10;
constexpr int64_t kSequence = 640, kLayer = 1680, kScoredHead = 208, kLowRankHead = 184;
constexpr int64_t kSpilledSequence = 960;

}  // namespace

int64_t IndexBytes(const IndexConfig& config) {
  const Geometry& g = config.geometry;
  const int64_t shapes = config.subspace ? int64_t{g.num_layers} * g.num_kv_heads * kLowRankShape : 0;
  return shapes < kTooLittleToCount ? 0 : shapes;
}

int64_t SequenceBytes(const IndexConfig& config) {
  const Geometry& g = config.geometry;
  int64_t head = 0;
  if (config.eviction) head += kScoredHead + 2 * int64_t{g.head_dim} * static_cast<int64_t>(sizeof(double));  // sums
  if (config.subspace) head += kLowRankHead;
  return kSequence + g.num_layers * (kLayer + g.num_kv_heads * head);
}

int64_t SpilledSequenceBytes(const IndexConfig& config) {
  return kSpilledSequence + config.geometry.num_layers * static_cast<int64_t>(sizeof(int64_t));
}

}  // namespace seine
