// Scoring and eviction of one layer: checks, locks, and what is said about them.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "index/index_impl.h"
#include "index/sequence/layer_lock.h"
#include "kernels/host.h"
#include "profile/field_error.h"

namespace seine {

namespace {

std::vector<std::vector<int32_t>> PositionsOf(const Layer& layer, const std::vector<std::vector<uint32_t>>& places) {
  std::vector<std::vector<int32_t>> positions(places.size());
  for (size_t h = 0; h < places.size(); ++h) {
    const HeadGroupCache& cache = layer.cache(static_cast<int>(h));
    positions[h].reserve(places[h].size());
    for (const uint32_t place : places[h]) positions[h].push_back(cache.position(place));
  }
  return positions;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Scorer>> IndexImpl::CheckScorer(const ScorerConfig& config) const {
  if (context_.config.kv_store == KvStore::kNone) {
    return FieldError(absl::StatusCode::kFailedPrecondition, "handle",
                      "the index keeps no keys, and scorers read them");
  }
  auto scorer = MakeScorer(config);
  if (!scorer.ok()) return scorer.status();
  const char* const option = (*scorer)->values_option();
  if (option != nullptr && context_.config.kv_store != KvStore::kKeysValues) {
    return FieldError(absl::StatusCode::kFailedPrecondition, absl::StrCat("scorer.", option),
                      "kv_store keeps no values; keep them (keys_values) or turn it off");
  }
  return scorer;
}

absl::Status IndexImpl::CheckGiven(const Layer& layer, const ScoreGiven& given) const {
  const Geometry& g = context_.config.geometry;
  const auto row_bytes = static_cast<size_t>(g.head_dim) * sizeof(float);
  if (given.num_queries < 0 || given.num_queries > layer.length()) {
    return BadField("given.queries", "of ", given.num_queries, " positions; the layer holds ", layer.length(),
                    " tokens");
  }
  if ((given.queries == nullptr) != (given.num_queries == 0)) return BadField("given.queries", "no data");
  if (given.queries != nullptr) {
    if (absl::Status s = CheckFinite("given.queries", given.queries, given.num_queries); !s.ok()) return s;
  }
  if (absl::Status s = CheckSoftmaxScale("given.softmax_scale", given.softmax_scale); !s.ok()) return s;
  if ((given.output_projection == nullptr) != (given.hidden_size == 0)) {
    return BadField("given.output_projection", "no data");
  }
  if (given.hidden_size < 0 || given.hidden_size > kMaxHiddenSize) {
    return BadField("given.output_projection", "hidden_size ", given.hidden_size, " is not in [1, ", kMaxHiddenSize,
                    "]");
  }
  if (given.output_projection != nullptr) {
    const ConstRows rows{given.output_projection, row_bytes, DType::kFloat32};
    const int64_t bad = host::FirstNonFinite(rows, int64_t{given.hidden_size} * g.num_q_heads, g.head_dim);
    if (bad >= 0) {
      return BadField("given.output_projection", "row ", bad / g.num_q_heads, ", head ", bad % g.num_q_heads,
                      " holds NaN or infinity");
    }
  }
  if (given.filters == nullptr) return absl::OkStatus();
  const int64_t head = host::FirstNonFinite({given.filters, row_bytes, DType::kFloat32}, g.num_kv_heads, g.head_dim);
  if (head < 0) return absl::OkStatus();
  return BadField("given.filters", "KV head ", head, " holds NaN or infinity");
}

absl::StatusOr<LayerScores> IndexImpl::Score(const SequenceHandle& handle, int layer, const ScorerConfig& config,
                                             const ScoreGiven& given) const {
  absl::StatusOr<SequenceRef> sequence = Find(handle);
  if (!sequence.ok()) return sequence.status();
  if (absl::Status s = CheckLayer(layer); !s.ok()) return s;
  auto scorer = CheckScorer(config);
  if (!scorer.ok()) return scorer.status();
  const Layer& target = *(*sequence)->layers[layer];
  const auto lock = ReadLock::Of(target);
  if (!lock.ok()) return lock.status();
  if (absl::Status s = CheckGiven(target, given); !s.ok()) return s;
  LayerScores answer;
  if (absl::Status s = target.Score(**scorer, given, &answer.scores); !s.ok()) return s;
  answer.positions.resize(answer.scores.size());
  for (size_t h = 0; h < answer.scores.size(); ++h) {
    const HeadGroupCache& cache = target.cache(static_cast<int>(h));
    for (int64_t place = 0; place < cache.size(); ++place) answer.positions[h].push_back(cache.position(place));
  }
  return answer;
}

absl::StatusOr<EvictAnswer> IndexImpl::Evict(const SequenceHandle& handle, int layer, const EvictParams& params,
                                             const ScoreGiven& given) {
  absl::StatusOr<SequenceRef> sequence = Find(handle);
  if (!sequence.ok()) return sequence.status();
  if (absl::Status s = CheckLayer(layer); !s.ok()) return s;
  if (absl::Status s = Validate(params.budget); !s.ok()) return s;
  if (absl::Status s = Validate(params.keep); !s.ok()) return s;
  auto scorer = CheckScorer(params.scorer);
  if (!scorer.ok()) return scorer.status();
  Layer& target = *(*sequence)->layers[layer];
  std::optional<ReadLock> reading;
  std::optional<WriteLock> writing;
  if (params.dry_run) {
    auto lock = ReadLock::Of(target);
    if (!lock.ok()) return lock.status();
    reading.emplace(*std::move(lock));
  } else {
    auto lock = WriteLock::Of(&target);
    if (!lock.ok()) return lock.status();
    writing.emplace(*std::move(lock));
  }
  if (absl::Status s = CheckGiven(target, given); !s.ok()) return s;
  auto places = target.Select(params, **scorer, given);
  if (!places.ok()) return places.status();
  EvictAnswer answer;
  answer.kept = PositionsOf(target, *places);
  for (size_t h = 0; h < places->size(); ++h) {
    answer.tokens_evicted += target.cache(static_cast<int>(h)).size() - static_cast<int64_t>((*places)[h].size());
  }
  DroppedPositions dropped;
  target.BeginReport(params.report, &answer.retained, &dropped);
  if (params.dry_run) {
    target.EndReport(&dropped, &answer.retained);
    return answer;
  }
  const int64_t before = target.code_bytes() + target.store_bytes();
  absl::StatusOr<int64_t> gone = target.Keep(*places, &dropped);
  if (!gone.ok()) return gone.status();
  context_.CountEvicted(params.scorer.name, *gone > 0 ? 1 : 0, *gone);
  answer.bytes_freed = before - target.code_bytes() - target.store_bytes();
  target.EndReport(&dropped, &answer.retained);
  return answer;
}

absl::StatusOr<std::vector<HeadDiagnosis>> IndexImpl::Diagnose(const SequenceHandle& handle, int layer,
                                                               const DiagnoseParams& params,
                                                               const ScoreGiven& given) const {
  absl::StatusOr<SequenceRef> sequence = Find(handle);
  if (!sequence.ok()) return sequence.status();
  if (absl::Status s = CheckLayer(layer); !s.ok()) return s;
  if (context_.config.kv_store == KvStore::kNone) return CheckScorer({}).status();
  std::vector<std::shared_ptr<const Scorer>> scorers;
  for (size_t i = 0; i < params.scorers.size(); ++i) {
    auto scorer = CheckScorer(params.scorers[i]);
    if (!scorer.ok()) return OfScorers(i, scorer.status());
    scorers.push_back(*std::move(scorer));
  }
  const Layer& target = *(*sequence)->layers[layer];
  const auto lock = ReadLock::Of(target);
  if (!lock.ok()) return lock.status();
  if (absl::Status s = CheckGiven(target, given); !s.ok()) return s;
  return target.Diagnose(params, scorers, given);
}

}  // namespace seine
