#include "index/quality/sample.h"

namespace seine {

namespace {

QualitySample::Head HeadOf(const SearchBatch& batch, size_t target, int kv_head) {
  const HeadGroupCache& cache = batch.targets()[target].layer().cache(kv_head);
  const SearchOutput& found = batch.Found(target, kv_head);
  const IndexConfig& config = batch.context().config;
  QualitySample::Head head;
  head.kv_head = kv_head;
  head.size = cache.size();
  head.zone_begin = config.zones.sink;
  head.zone_keys = batch.ZoneKeys(target, kv_head);
  head.candidates = static_cast<double>(found.stats.candidates) / config.geometry.group();
  const HeadCodec& codec = cache.codes().codecs()->heads[kv_head];
  head.noise = codec.noise;
  head.fine_noise = codec.fine_noise;
  head.found = found.positions;
  return head;
}

}  // namespace

int64_t QualitySample::bytes() const {
  size_t bytes = queries.size() * sizeof(float);
  for (const Head& head : heads) {
    bytes += sizeof(Head);
    for (const auto& set : head.found) bytes += set.size() * sizeof(int32_t);
  }
  return static_cast<int64_t>(bytes);
}

QualitySample SampleOf(const SearchBatch& batch, size_t target, std::optional<int> only_head) {
  const SearchBatch::Target& of = batch.targets()[target];
  const Geometry& g = batch.context().config.geometry;
  QualitySample sample;
  sample.context = &batch.context();
  sample.sequence = of.sequence;
  sample.layer = of.item->layer;
  sample.cuts = of.layer().cuts();
  sample.params = batch.params();
  sample.queries.assign(of.item->queries, of.item->queries + int64_t{g.num_q_heads} * g.head_dim);
  for (int h = 0; h < g.num_kv_heads; ++h) {
    if (only_head && h != *only_head) continue;
    if (batch.Searched(target, h)) sample.heads.push_back(HeadOf(batch, target, h));
  }
  return sample;
}

}  // namespace seine
