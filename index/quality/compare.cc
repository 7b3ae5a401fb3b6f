#include "index/quality/compare.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "index/sequence/layer_lock.h"
#include "kernels/stop.h"

namespace seine {

namespace {

constexpr int64_t kSliceTokens = 1024;

// <q, k> of places [begin, end) of a head into `logits` [group][head.size].
Compared ReadSlice(const QualitySample& sample, const QualitySample::Head& head, int64_t begin, int64_t end,
                   float* logits) {
  const Geometry& g = sample.context->config.geometry;
  const std::shared_ptr<Sequence> sequence = sample.sequence.lock();
  if (sequence == nullptr) return Compared::kGone;
  const Layer& layer = *sequence->layers[sample.layer];
  const auto lock = ReadLock::Of(layer);
  if (!lock.ok()) return Compared::kStopped;
  if (layer.cuts() != sample.cuts) return Compared::kChanged;
  const HeadGroupCache& cache = layer.cache(head.kv_head);
  const float* const queries = sample.queries.data() + int64_t{head.kv_head} * g.group() * g.head_dim;
  cache.DotKeys(head.kv_head - cache.first_head(), begin, end, queries, g.group(), logits + begin, head.size);
  return Compared::kDone;
}

Compared ReadLogits(const QualitySample& sample, const QualitySample::Head& head, const std::function<void()>& rest,
                    std::vector<float>* logits) {
  const Geometry& g = sample.context->config.geometry;
  logits->resize(static_cast<size_t>(g.group() * head.size));
  for (int64_t begin = 0; begin < head.size; begin += kSliceTokens) {
    const int64_t end = std::min(begin + kSliceTokens, head.size);
    if (const Compared read = ReadSlice(sample, head, begin, end, logits->data()); read != Compared::kDone) return read;
    rest();
    if (StopRequested()) return Compared::kStopped;
  }
  const float given = sample.params.softmax_scale;
  ScaleLogits(given > 0 ? given : 1 / std::sqrt(static_cast<float>(g.head_dim)), sample.softcap, logits);
  return Compared::kDone;
}

}  // namespace

Compared Compare(const QualitySample& sample, const std::function<void()>& rest, std::vector<HeadQuality>* heads,
                 bool with_weights) try {
  heads->clear();
  std::vector<float> logits;
  for (const QualitySample::Head& head : sample.heads) {
    if (const Compared read = ReadLogits(sample, head, rest, &logits); read != Compared::kDone) return read;
    const int group = sample.context->config.geometry.group();
    heads->push_back({head.kv_head, Judge(head, sample.params, group, logits), {}});
    if (with_weights) heads->back().weights = Weigh(head, sample.params, group, logits);
    rest();
  }
  return Compared::kDone;
} catch (const std::bad_alloc&) {
  return Compared::kNoMemory;
}

}  // namespace seine
